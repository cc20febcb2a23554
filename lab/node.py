"""The node: one process that owns mount, pid, network, ipc and uts namespaces, in which containerd and the kubelet run.

Lab, outside the layers. Its guarantee: end that one process and the kernel takes every container, mount, link and shim along.
It must never mount, link or write anything on the machine but its slot's bridge, the state directory and empty cgroups.
"""

from __future__ import annotations

import glob
import ipaddress
import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lab import config, processes
from lab.layout import SLOTS, LabError, Layout, Slot

NAMESPACES: Final = ("--mount", "--pid", "--net", "--uts", "--ipc")
INIT: Final = "pause"
#: Debian's runc keeps container state here; inside the node it is on the node's own /run.
SETUP: Final = """
set -eu
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
for d in lib log; do
  mkdir -p {node}/overlay/$d/upper {node}/overlay/$d/work
  mount -t overlay overlay -o lowerdir=/var/$d,upperdir={node}/overlay/$d/upper,workdir={node}/overlay/$d/work /var/$d
done
mkdir -p {root} {kubelet} {node}/containerd {node}/kubelet {node}/pod-logs
mount --bind {node}/containerd {root}
mount --bind {node}/kubelet {kubelet}
for f in {settings}; do
  [ ! -e /proc/sys/$f ] || mount --bind {node}/sysctl/$f /proc/sys/$f
done
hostname {name}
"""


def run(words: Sequence[str | Path], text: str | None = None) -> str:
    """Run a program to its end and return what it printed; LabError carries what it complained about."""
    done = subprocess.run([str(w) for w in words], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout)[-1500:].strip()
        raise LabError(f"`{' '.join(str(w) for w in words)[:200]}` failed (exit {done.returncode}): {complaint}")
    return done.stdout


def links() -> list[dict[str, Any]]:
    """Return this machine's links as `ip -json` describes them."""
    found: list[dict[str, Any]] = json.loads(run(["ip", "-json", "link", "show"]))
    return found


def claim(layout: Layout) -> Slot:
    """Claim a free slot by creating its bridge: the kernel refuses a second link of that name, so two starts cannot share one."""
    taken = [
        ipaddress.IPv4Network(r["dst"]) for r in json.loads(run(["ip", "-4", "-json", "route", "show"])) if r["dst"] != "default"
    ]
    for number in random.sample(SLOTS, len(SLOTS)):
        slot = Slot(number=number)
        if any(net.overlaps(other) for net in (slot.node_net, slot.pod_net, slot.service_net) for other in taken):
            continue
        try:
            run(["ip", "link", "add", "name", slot.bridge, "address", layout.mac, "type", "bridge"])
        except LabError as error:
            if "File exists" in str(error):
                continue
            raise
        run(
            ["ip", "-batch", "-"],
            f"addr add {slot.host_ip}/24 dev {slot.bridge}\nlink set {slot.bridge} up alias {layout.state}\n",
        )
        return slot
    raise LabError("no free slot: every tower<n> bridge from 1 to 250 is taken, see `ip link show type bridge`")


def bridges(layout: Layout) -> list[str]:
    """Return the bridges that this state directory claimed (by their hardware address)."""
    return [link["ifname"] for link in links() if link.get("address") == layout.mac and link["ifname"].startswith("tower")]


def boot(layout: Layout, slot: Slot, tools: dict[str, Path]) -> int:
    """Create the namespaces, their mounts and their network; return the number of the process that owns them."""
    write_files(layout, slot)
    processes.start(layout, "node", ["unshare", *NAMESPACES, "--fork", "--kill-child=SIGKILL", "--mount-proc", tools["pause"]])
    processes.wait_until(
        "the node's first process", lambda: len(processes.pids(layout, INIT)) == 1, 10, every=0.01, log=layout.logs / "node.log"
    )
    init = processes.pids(layout, INIT)[0]
    settings = " ".join(config.KERNEL_SETTINGS)
    script = SETUP.format(
        node=layout.node, root=config.CONTAINERD_ROOT, kubelet=config.KUBELET_ROOT, settings=settings, name=layout.node_name
    )
    try:
        run([*inside(init), "sh", "-c", script])
    except LabError as error:
        raise LabError(
            f"{error} (the state directory must be on ext4, xfs, btrfs or tmpfs: choose one with --state-dir)"
        ) from error
    connect(slot, init)
    return init


def connect(slot: Slot, init: int) -> None:
    """Plug the node into its bridge, give it addresses, and route its pods."""
    cable = f"link add {slot.veth} type veth peer name node0 netns {init}\nlink set {slot.veth} master {slot.bridge} up\n"
    run(["ip", "-batch", "-"], cable)
    addresses = f"link set lo up\naddr add {slot.node_ip}/24 dev node0\nlink set node0 up\nroute add default via {slot.host_ip}\n"
    run([*inside(init), "ip", "-batch", "-"], addresses)
    run(["ip", "-batch", "-"], f"route replace {slot.pod_net} via {slot.node_ip} dev {slot.bridge}\n")


def inside(init: int) -> list[str]:
    """Return the words that run a program inside the node."""
    return ["nsenter", "--target", str(init), *NAMESPACES, "--"]


def init_pid(layout: Layout) -> int:
    """Return the node's first process, or LabError when the node is down."""
    found = processes.pids(layout, INIT)
    if not found:
        raise LabError(
            f"the node of {layout.name} is not running: start it with start_node() or `python -m lab up --name {layout.name}`"
        )
    return found[0]


def write_files(layout: Layout, slot: Slot) -> None:
    """Write what the node's programs read."""
    for name, value in config.KERNEL_SETTINGS.items():
        path = layout.node / "sysctl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    (layout.node / "cni").mkdir(exist_ok=True)
    (layout.node / "cni" / "10-lab.conflist").write_text(config.cni(layout, slot))
    (layout.node / "kubelet.json").write_text(config.kubelet(layout, slot))
    (layout.node / "resolv.conf").write_text("# no name server: the lab has no cluster DNS\n")


def start_containerd(layout: Layout, tools: dict[str, Path], sandbox_image: str) -> None:
    """Start containerd in the node and wait until it answers."""
    init = init_pid(layout)
    path = layout.node / "containerd.toml"
    path.write_text(config.containerd(layout, tools, sandbox_image))
    processes.start(layout, "containerd", [*inside(init), tools["containerd"], "--config", path])
    answers = [*inside(init), tools["ctr"], "--address", config.CONTAINERD_SOCKET, "plugins", "ls", "-q"]

    def check() -> bool:
        done = subprocess.run([str(w) for w in answers], capture_output=True, check=False)
        return done.returncode == 0

    socket = Path(f"/proc/{init}/root{config.CONTAINERD_SOCKET}")
    processes.wait_until("containerd's socket", socket.exists, 20, every=0.02, log=layout.logs / "containerd.log")
    processes.wait_until("containerd's answer", check, 20, every=0.1, log=layout.logs / "containerd.log")


def ctr(layout: Layout, tools: dict[str, Path], *words: str | Path) -> str:
    """Run containerd's own client in the node, in the namespace Kubernetes uses."""
    return run([*inside(init_pid(layout)), tools["ctr"], "--address", config.CONTAINERD_SOCKET, "--namespace", "k8s.io", *words])


def start_kubelet(layout: Layout, slot: Slot, tools: dict[str, Path]) -> None:
    """Start the kubelet in the node; its being Ready is read from the API."""
    command: list[str | Path] = [
        tools["kubelet"],
        "--config",
        layout.node / "kubelet.json",
        "--kubeconfig",
        layout.kubeconfig("kubelet"),
    ]
    command += ["--hostname-override", layout.node_name, "--node-ip", slot.node_ip, "--root-dir", config.KUBELET_ROOT, "-v", "2"]
    command += ["--cert-dir", layout.node / "kubelet-pki"]
    processes.start(layout, "kubelet", [*inside(init_pid(layout)), *command])


def cgroups(layout: Layout) -> list[Path]:
    """Return the cgroup directories of containers whose bundles are in this cluster's containerd root."""
    names = [path.name for path in (layout.containerd_root / "io.containerd.runtime.v2.task" / "k8s.io").glob("*")]
    return [
        Path(found)
        for name in names
        for found in (*glob.glob(f"/sys/fs/cgroup/*/k8s.io/{name}"), *glob.glob(f"/sys/fs/cgroup/k8s.io/{name}"))
    ]
