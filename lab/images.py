"""The images a cluster starts with: sandbox, demo app and debug image, made here and put into containerd without a registry.

Lab, outside the layers. It must never write into the cached store after it is complete: clusters share its files by hard links.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from image import build, oci
from lab import binaries, node
from lab.layout import LabError, Layout

SANDBOX: Final = "registry.tower.local/lab/pause"
DEMO_APP: Final = "registry.tower.local/demo/checkout"
BASE: Final = "registry.tower.local/lab/debug-base"
SUPERVISOR: Final = Path(build.__file__).with_name("supervisor.py")
#: Ends when told to, answers HTTP on 8080: `wait` lets the shell take the TERM that a first process would otherwise ignore.
SERVE: Final = b"""#!/bin/sh
trap 'kill $server; exit 0' TERM INT
httpd -f -v -p 8080 -h /www & server=$!
wait $server
"""
#: The demo app's user, by name, so that its primary group is 1000 too (without /etc/passwd containerd takes group 0).
PASSWD: Final = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/tmp:/bin/sh\n"
GROUP: Final = b"root:x:0:\napp:x:1000:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What a cluster needs; `debug` shares its first layer with `base`."""

    sandbox: oci.Image
    demo_app: oci.Image
    base: oci.Image
    debug: oci.Image


def make(folder: Path, tools: dict[str, Path]) -> Images:
    """Make every image; their small layers are written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    base = build.base_layer(build.cache_dir())
    user = f"{build.USER}:{build.USER}"
    return Images(
        sandbox=sandbox_image(folder, tools["pause"]),
        demo_app=demo_image(folder),
        base=oci.image(BASE, (base,), oci.RunConfig(user=user, cmd=("/bin/bash",))),
        debug=build.debug_image(SUPERVISOR, folder),
    )


def sandbox_image(folder: Path, pause: Path) -> oci.Image:
    """Return the image whose process holds a pod's namespaces."""
    layer = oci.write_entries(folder / "pause.tar", [oci.Entry(path="/pause", mode=0o755, content=pause.read_bytes())])
    return oci.image(SANDBOX, (layer,), oci.RunConfig(user="65535:65535", entrypoint=("/pause",)))


def demo_image(folder: Path) -> oci.Image:
    """Return the demo app: busybox, its httpd, and a user of its own."""
    busybox = binaries.static_busybox()
    if busybox is None:
        raise LabError("busybox-static is missing: apt-get install busybox-static")
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
    entries = [oci.Entry(path=f"/{name}", mode=0o755) for name in ("bin", "etc", "www", "proc", "sys", "dev")]
    entries += [oci.Entry(path="/tmp", mode=0o1777), oci.Entry(path="/bin/busybox", mode=0o755, content=busybox.read_bytes())]
    entries += [
        oci.Entry(path=f"/bin/{name}", mode=0o777, link="busybox") for name in applets if name not in ("busybox", "serve")
    ]
    files = {"/etc/passwd": PASSWD, "/etc/group": GROUP, "/www/index.html": b"checkout: ok\n", "/www/healthz": b"ok\n"}
    entries += [oci.Entry(path=path, mode=0o644, content=content) for path, content in files.items()]
    entries.append(oci.Entry(path="/bin/serve", mode=0o755, content=SERVE))
    layer = oci.write_entries(folder / "demo.tar", entries)
    env = ("PATH=/bin", "HOME=/tmp")
    return oci.image(DEMO_APP, (layer,), oci.RunConfig(user="app", env=env, cmd=("/bin/serve",)))


def store_path(images: Images) -> Path:
    """Return where the ready-made containerd store for these images is cached."""
    parts = (binaries.CONTAINERD, images.sandbox.digest, images.demo_app.digest, images.base.digest)
    return build.cache_dir() / "store" / hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def prepare_root(layout: Layout, images: Images) -> bool:
    """Give containerd a root that already holds the images, if the cache has one; before containerd starts."""
    store = store_path(images)
    if not store.exists():
        return False
    copy_store(store, layout.containerd_root)
    return True


def copy_store(source: Path, target: Path) -> None:
    """Copy a containerd root: hard links for content and snapshots (never written again), real copies for the databases."""
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    linked = subprocess.run(["cp", "-a", "--link", str(source), str(target)], capture_output=True, check=False)
    if linked.returncode != 0:
        # another file system: hard links can't cross, a copy can
        shutil.rmtree(target, ignore_errors=True)
        node.run(["cp", "-a", "--reflink=auto", source, target])
        return
    for database in target.rglob("*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.rename(database)


def load_all(layout: Layout, tools: dict[str, Path], images: Images) -> None:
    """Import everything but the debug image into the running containerd (the slow way, once per cache)."""
    load(layout, tools, images.sandbox, images.demo_app, images.base)


def load_debug(layout: Layout, tools: dict[str, Path], images: Images) -> None:
    """Import the debug image; its large layer is there already, so this costs a fraction of a second."""
    load(layout, tools, images.debug, without=frozenset(layer.digest for layer in images.base.layers))


def load(layout: Layout, tools: dict[str, Path], *images: oci.Image, without: frozenset[str] = frozenset()) -> None:
    """Import images under `repository@digest` and `repository:lab`; the kubelet finds them by the former and pulls nothing."""
    with tempfile.NamedTemporaryFile(dir=layout.state, suffix=".tar") as archive:
        oci.write_archive(Path(archive.name), images, without=without)
        node.ctr(layout, tools, "images", "import", "--local", archive.name)


def save_store(layout: Layout, images: Images) -> None:
    """Keep the stopped containerd's root for the next cluster; appears in the cache only when whole."""
    store = store_path(images)
    store.parent.mkdir(parents=True, exist_ok=True)
    with locked(store.with_suffix(".lock")):
        if store.exists():
            return
        partial = Path(tempfile.mkdtemp(dir=store.parent, prefix=".partial-"))
        try:
            copy_store(layout.containerd_root, partial / "root")
            os.rename(partial / "root", store)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file while the block runs."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
