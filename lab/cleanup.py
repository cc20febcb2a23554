"""Ends a cluster and removes everything it made, whatever state it is in; running it twice is fine.

Lab, outside the layers. It must never touch a process, link, mount or cgroup that does not carry this state directory's mark.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from lab import node, processes
from lab.layout import LabError, Layout

#: In every state directory: only a directory with it is ever deleted.
MARKER: Final = ".tower-lab"


def down(layout: Layout) -> None:
    """Remove processes, links, cgroups, mounts and directory, in this order; LabError names what could not be removed."""
    check_owned(layout)
    # 1. the node's first process goes first: the kernel then takes its containers, mounts, links and shims along
    processes.end(layout, node.INIT)
    # 2. the control plane and whatever else carries the mark
    processes.end(layout)
    # 3. the bridge, and with it the route to the pods (the node's end of the link went with its namespace)
    remove_links(layout)
    # 4. empty cgroup directories
    remove_cgroups(layout)
    # 5. mounts under the state directory: none is expected on the machine's side, so this is a belt
    for mount in reversed(mounts(layout)):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
    # 6. the directory
    if layout.state.exists():
        shutil.rmtree(layout.state)


def remove_links(layout: Layout) -> None:
    """Delete the cluster's bridges, and the links attached to them."""
    for name in node.bridges(layout):
        for link in node.links():
            if link.get("master") == name:
                subprocess.run(["ip", "link", "del", link["ifname"]], capture_output=True, check=False)
        with contextlib.suppress(LabError):
            node.run(["ip", "link", "del", name])
    if left := node.bridges(layout):
        raise LabError(f"links are left that could not be deleted: {left}")


def remove_cgroups(layout: Layout, seconds: float = 5.0) -> None:
    """Remove the containers' cgroup directories; the kernel may need a moment after the last process."""
    deadline = time.monotonic() + seconds
    while left := [path for path in node.cgroups(layout) if path.exists()]:
        for path in left:
            for folder, _, _ in os.walk(path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        if time.monotonic() > deadline:
            raise LabError(f"cgroups are left that could not be removed: {left}")
        time.sleep(0.01)
    for parent in (*Path("/sys/fs/cgroup").glob("*/k8s.io"), Path("/sys/fs/cgroup/k8s.io")):
        with contextlib.suppress(OSError):
            # refused by the kernel while another cluster has containers there
            parent.rmdir()


def mounts(layout: Layout) -> list[str]:
    """Return this machine's mounts at or under the state directory."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point) == layout.state or Path(point).is_relative_to(layout.state)]


def mark(layout: Layout) -> None:
    """Say that this directory is the lab's and may be deleted whole."""
    (layout.state / MARKER).write_text("made by `python -m lab up`, deleted by `python -m lab down`\n")


def check_owned(layout: Layout) -> None:
    """Refuse a directory that holds something and was not made by the lab: LabError."""
    if layout.state.exists() and any(layout.state.iterdir()) and not (layout.state / MARKER).exists():
        raise LabError(f"{layout.state} was not made by the lab: choose another --state-dir, or remove it yourself")


def leftovers(layout: Layout) -> list[str]:
    """Say in words what of the cluster is still on this machine; an empty list is the promise of `down`."""
    found = [f"process {process.pid} {process.program}" for process in processes.alive(layout)]
    found += [f"link {name}" for name in node.bridges(layout)]
    found += [f"mount {point}" for point in mounts(layout)]
    found += [f"directory {layout.state}"] if layout.state.exists() else []
    return found
