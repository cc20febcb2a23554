"""Provides the cluster's programs: from PATH where the version fits, from the cache, or built from Go modules.

Lab, outside the layers. It must never leave a half-built program where another start would use it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from image.build import cache_dir
from lab.layout import LabError
from lab.processes import tail
from lab.steps import Steps

SOURCES: Final = Path(__file__).with_name("go")
KUBERNETES: Final = "1.37.2"
ETCD: Final = "3.7.3"
CONTAINERD: Final = "2.4.2"
PAUSE: Final = "1"
KUBE_VERSION: Final = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One program: which module it is built from, with which flags, and how long that took on two cores with nothing cached."""

    name: str
    version: str
    module: str
    package: str
    flags: str = ""
    tags: str = ""
    usually: str

    @property
    def cached(self) -> Path:
        """Where the built program is kept."""
        return cache_dir() / "bin" / f"{self.name}-{self.version}" / self.name


def _kubernetes(name: str, usually: str) -> Tool:
    major, minor, _ = KUBERNETES.split(".")
    flags = f"-X {KUBE_VERSION}.gitVersion=v{KUBERNETES} -X {KUBE_VERSION}.gitMajor={major} -X {KUBE_VERSION}.gitMinor={minor}"
    return Tool(
        name=name, version=KUBERNETES, module="kubernetes", package=f"k8s.io/kubernetes/cmd/{name}", flags=flags, usually=usually
    )


def _containerd(name: str, usually: str) -> Tool:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    flags = f"-X github.com/containerd/containerd/v2/version.Version=v{CONTAINERD}"
    tags = "no_btrfs no_zfs no_devmapper"
    return Tool(name=name, version=CONTAINERD, module="containerd", package=package, flags=flags, tags=tags, usually=usually)


#: In build order: what is quick and what the rest waits for comes first.
TOOLS: Final = (
    Tool(name="pause", version=PAUSE, module="pause", package=".", usually="5 s"),
    Tool(name="etcd", version=ETCD, module="etcd", package=".", usually="40 s"),
    _containerd("containerd", "1 min"),
    _containerd("containerd-shim-runc-v2", "2 s"),
    _containerd("ctr", "3 s"),
    _kubernetes("kube-apiserver", "4–8 min"),
    _kubernetes("kube-controller-manager", "1–2 min"),
    _kubernetes("kubelet", "30 s"),
    _kubernetes("kube-scheduler", "10 s"),
)
#: What Debian provides: the file that must be there, and the package it comes in.
SYSTEM: Final = {
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/bin/mmdebstrap": "mmdebstrap",
    "/usr/bin/nsenter": "util-linux",
    "/sbin/ip": "iproute2",
}


def ensure_system(steps: Steps) -> None:
    """Install what is missing from Debian (root), or say what to install."""
    missing = [package for file, package in SYSTEM.items() if not os.path.exists(file)]
    if static_busybox() is None:
        missing.append("busybox-static")
    if not missing:
        return
    command = f"apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise LabError(f"programs are missing: run `{command}` as root (the lab needs a Debian-like machine)")
    with steps.step("packages", "20 s"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]):
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
            if done.returncode != 0:
                raise LabError(f"`{' '.join(words)}` failed: {done.stderr[-1500:]}")


def static_busybox() -> Path | None:
    """Return a busybox that runs in an image with nothing else in it."""
    for path in (Path("/bin/busybox"), Path("/usr/bin/busybox")):
        if path.exists() and is_static(path.read_bytes()):
            return path
    return None


def is_static(elf: bytes) -> bool:
    """Tell whether a 64-bit ELF program needs no loader: no PT_INTERP among its program headers (ELF-64 object file format)."""
    offset = int.from_bytes(elf[32:40], "little")
    size, count = int.from_bytes(elf[54:56], "little"), int.from_bytes(elf[56:58], "little")
    kinds = {int.from_bytes(elf[offset + i * size : offset + i * size + 4], "little") for i in range(count)}
    return elf[:4] == b"\x7fELF" and 3 not in kinds


def ensure_all(steps: Steps) -> dict[str, Path]:
    """Return the path of every program, building what neither PATH nor the cache has."""
    return {tool.name: ensure(tool, steps) for tool in TOOLS}


def ensure(tool: Tool, steps: Steps) -> Path:
    """Return one program's path; safe against a second builder."""
    if tool.cached.exists():
        return tool.cached
    if found := on_path(tool):
        return found
    tool.cached.parent.mkdir(parents=True, exist_ok=True)
    with tool.cached.with_name(".lock").open("w") as lock:
        if not try_lock(lock.fileno()):
            with steps.step(f"waiting for another build of {tool.name}", tool.usually):
                fcntl.flock(lock, fcntl.LOCK_EX)
        if not tool.cached.exists():
            with steps.step(f"building {tool.name} {tool.version}", tool.usually):
                build(tool)
    return tool.cached


def try_lock(number: int) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def on_path(tool: Tool) -> Path | None:
    """Return the program found on PATH if it reports exactly the pinned version."""
    found = shutil.which(tool.name)
    if found is None or tool.name == "pause":
        return None
    for flag in ("--version", "-v"):
        done = subprocess.run([found, flag], capture_output=True, text=True, check=False, timeout=20)
        if re.search(rf"\bv?{re.escape(tool.version)}\b", done.stdout):
            return Path(found)
    return None


def build(tool: Tool) -> None:
    """Build one program into the cache; the file appears there only when it is whole."""
    if not shutil.which("go"):
        raise LabError("go is missing: install Go 1.26 or newer, the lab builds Kubernetes with it")
    partial = tool.cached.with_name(f".{tool.name}.partial")
    log = tool.cached.with_name("build.log")
    command = ["nice", "go", "build", "-trimpath", "-buildvcs=false", "-tags", tool.tags, "-ldflags", f"-s -w {tool.flags}"]
    with log.open("wb") as output:
        done = subprocess.run(
            [*command, "-o", str(partial), tool.package],
            cwd=SOURCES / tool.module,
            stdout=output,
            stderr=output,
            env=os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"},
            check=False,
        )
    if done.returncode != 0:
        raise LabError(f"building {tool.name} failed" + tail(log))
    partial.rename(tool.cached)
