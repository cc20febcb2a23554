"""Builds the debug image from Debian packages without a container engine: `python -m image.build OUT.tar`.

Build tool, outside the layers. It must never put a set-uid file, a named user or a secret of the building machine into the image.
Two layers: the packages (cached by the list below), and the supervisor (a few kilobytes, so that editing it costs no rebuild).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from image import oci

REPOSITORY: Final = "registry.tower.local/tower/debug"
SUITE: Final = "bookworm"
PACKAGES: Final = (
    "bash", "bind9-dnsutils", "ca-certificates", "coreutils", "curl", "gdb", "iproute2", "jattach", "jq",
    "less", "ncat", "openssl", "procps", "python3", "python3-cryptography", "strace", "vim-tiny",
)  # fmt: skip
#: Left out of the layer: caches and logs (they differ from build to build) and what nobody reads in a shell.
DROP: Final = (
    "dev/", "proc/", "sys/", "run/", "tmp/", "var/cache/", "var/log/", "var/lib/apt/", "var/lib/dpkg/info/",
    "etc/machine-id", "etc/hostname", "etc/resolv.conf",
    "usr/share/doc/", "usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/",
)  # fmt: skip
#: Raised when the recipe below changes in a way that the package list does not show.
RECIPE: Final = "1"
#: 65532 is what "nonroot" means in distroless images; a session replaces it by the target's own ids.
USER: Final = 65532
SUPERVISOR_PATH: Final = "/usr/local/lib/tower/supervisor.py"
#: HOME is a directory nobody can write (read-only root): /dev/shm is shared with the app's containers, and a `.bashrc` there
#: would be theirs.
ENV: Final = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/tmp",
    "TMPDIR=/dev/shm",
    "LANG=C.UTF-8",
    "TERM=xterm-256color",
    "LESSHISTFILE=-",
    "HISTFILE=/dev/null",
    "PYTHONDONTWRITEBYTECODE=1",
)
#: Byte code that needs no time stamp: python starts fast from a read-only root, and the bytes are the same in every build.
COMPILE: Final = "compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.11"


class BuildError(RuntimeError):
    """The image could not be built; the text says what to do."""


def cache_dir() -> Path:
    """Return where layers and binaries are kept between runs."""
    if explicit := os.environ.get("TOWER_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tower"


def base_layer(cache: Path) -> oci.Layer:
    """Return the packages' layer: from the cache, or built (about two minutes); safe against a second builder."""
    key = hashlib.sha256("\n".join((SUITE, RECIPE, COMPILE, *DROP, *PACKAGES)).encode()).hexdigest()[:16]
    folder = cache / "image"
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"debug-base-{key}.tar"
    with (folder / f".{final.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.exists():
            build_base(final)
    return known_layer(final)


def known_layer(path: Path) -> oci.Layer:
    """Describe a cached layer; its digest is kept beside it, because hashing it on every start would cost half a second."""
    note = path.with_suffix(".digest")
    if not note.exists():
        note.write_text(oci.layer_at(path).digest)
    return oci.Layer(path=path, digest=note.read_text(), size=path.stat().st_size)


def build_base(final: Path) -> None:
    """Run mmdebstrap and write its result as a plain layer at `final`."""
    if not shutil.which("mmdebstrap"):
        raise BuildError("mmdebstrap is missing: apt-get install mmdebstrap")
    with tempfile.TemporaryDirectory(dir=final.parent) as temporary:
        raw, layer = Path(temporary, "raw.tar"), Path(temporary, "layer.tar")
        hooks = [
            f'chroot "$1" python3 -m {COMPILE}',
            f'echo "debug:x:{USER}:{USER}::/tmp:/bin/bash" >> "$1/etc/passwd"; echo "debug:x:{USER}:" >> "$1/etc/group"',
            'rm -f "$1"/etc/*- "$1"/etc/ld.so.cache && chroot "$1" ldconfig',
        ]
        command = ["mmdebstrap", "--variant=minbase", "--mode=root", f"--include={','.join(PACKAGES)}"]
        command += [f"--customize-hook={hook}" for hook in hooks]
        log = final.with_suffix(".log")
        with log.open("wb") as output:
            environment = os.environ | {"SOURCE_DATE_EPOCH": str(oci.EPOCH)}
            done = subprocess.run(
                ["nice", *command, SUITE, str(raw)], stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
            )
        if done.returncode != 0:
            raise BuildError(f"mmdebstrap failed (exit {done.returncode}): see {log}\n{log.read_text(errors='replace')[-2000:]}")
        oci.rewrite(raw, layer, DROP)
        layer.rename(final)


def supervisor_layer(source: Path, folder: Path) -> oci.Layer:
    """Write the layer that holds the supervisor alone, readable by everybody and writable by nobody."""
    entries = [
        oci.Entry(path="/usr/local/lib/tower", mode=0o755),
        oci.Entry(path=SUPERVISOR_PATH, mode=0o444, content=source.read_bytes()),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    return oci.write_entries(folder / "debug-supervisor.tar", entries)


def debug_image(supervisor: Path, folder: Path, cache: Path | None = None) -> oci.Image:
    """Return the debug image; `folder` receives the small layer and must outlive the image's use."""
    layers = (base_layer(cache or cache_dir()), supervisor_layer(supervisor, folder))
    run = oci.RunConfig(user=f"{USER}:{USER}", env=ENV, cmd=("/bin/bash",))
    return oci.image(REPOSITORY, layers, run)


def main() -> int:
    """Write the image as an OCI archive and print its reference."""
    if len(sys.argv) != 2:
        print("usage: python -m image.build OUT.tar", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        built = debug_image(Path(__file__).with_name("supervisor.py"), Path(temporary))
        oci.write_archive(Path(sys.argv[1]), [built])
    print(built.reference)
    return 0


if __name__ == "__main__":
    sys.exit(main())
