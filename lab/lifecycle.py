"""Brings a cluster up, step by step and partly in parallel, and says what state it is in.

Lab, outside the layers. It must never leave a half-started cluster behind: what fails is taken down again.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lightkube import ApiError, Client, KubeConfig
from lightkube.resources.core_v1 import Namespace, Node, ServiceAccount

from lab import binaries, cleanup, control, images, node, processes
from lab.layout import LabError, Layout, Slot
from lab.steps import Steps

ROLES: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", node.INIT, "containerd", "kubelet")
TIER_LABEL: Final = "tower.hangar/tier"


@contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """Let one program at a time change this cluster; the lock is a socket name, so it goes with its holder and leaves no file."""
    name = b"\0tower-lab-" + hashlib.sha256(str(layout.state).encode()).digest()[:16].hex().encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        deadline = time.monotonic() + 1800
        while True:
            try:
                lock.bind(name)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise LabError(f"another program has been changing {layout.name} for half an hour") from None
                time.sleep(0.1)
        yield


def up(layout: Layout, *, tier: str, steps: Steps) -> dict[str, Any]:
    """Bring the cluster up, or find it up, and return its record; a start that fails is undone."""
    if os.geteuid() != 0:
        raise LabError("the lab makes namespaces, mounts and links: run it as root")
    with exclusive(layout):
        if layout.record.exists() and not missing(layout):
            steps.say(f"  {layout.name} is up already")
            return read_record(layout)
        if layout.state.exists():
            with steps.step("removing what was left of it"):
                cleanup.down(layout)
        binaries.ensure_system(steps)
        tools = binaries.ensure_all(steps)
        try:
            return start(layout, tools, tier, steps)
        except BaseException:
            cleanup.down(layout)
            raise


def start(layout: Layout, tools: dict[str, Path], tier: str, steps: Steps) -> dict[str, Any]:
    """Start everything in an empty state directory: control plane and node side by side, then the kubelet."""
    layout.state.mkdir(parents=True, mode=0o711)
    cleanup.mark(layout)
    layout.logs.mkdir()
    slot = node.claim(layout)
    control.write_pki(layout, slot)
    with ThreadPoolExecutor(max_workers=2) as pool:
        plane = pool.submit(start_control_plane, layout, slot, tools, steps)
        made = pool.submit(start_runtime, layout, slot, tools, steps)
        plane.result()
        ready = made.result()
    with steps.step("kubelet, node ready"):
        node.start_kubelet(layout, slot, tools)
        with admin(layout) as client:
            label_tier(client, tier)
            wait_for_node(layout, client)
    record = {
        "name": layout.name,
        "slot": slot.number,
        "tier": tier,
        "server": control.server(slot),
        "debug_image": ready.debug.reference,
        "app_image": ready.demo_app.reference,
        "sandbox_image": ready.sandbox.reference,
        "seconds": steps.seconds,
    }
    write_record(layout, record)
    return record


def start_control_plane(layout: Layout, slot: Slot, tools: dict[str, Path], steps: Steps) -> None:
    """Start etcd, the API server and the controllers."""
    with steps.step("etcd, API server"):
        control.start_etcd(layout, slot, tools)
        control.start_apiserver(layout, slot, tools)
        control.wait_for_apiserver(layout, slot)
    control.start_controllers(layout, tools)


def start_runtime(layout: Layout, slot: Slot, tools: dict[str, Path], steps: Steps) -> images.Images:
    """Boot the node and start containerd with the images in it."""
    with steps.step("images made"):
        ready = images.make(layout.state / "images", tools)
    with steps.step("image store copied"):
        warm = images.prepare_root(layout, ready)
    with steps.step("node, containerd"):
        node.boot(layout, slot, tools)
        node.start_containerd(layout, tools, ready.sandbox.reference)
    if not warm:
        with steps.step("images unpacked", "20 s, once"):
            images.load_all(layout, tools, ready)
            processes.end(layout, "containerd", what=signal.SIGTERM)
            images.save_store(layout, ready)
            node.start_containerd(layout, tools, ready.sandbox.reference)
    with steps.step("debug image imported"):
        images.load_debug(layout, tools, ready)
    return ready


def admin(layout: Layout) -> Client:
    """Return an API client of the cluster's administrator."""
    return Client(config=KubeConfig.from_file(layout.kubeconfig("admin")), field_manager="lab", trust_env=False)


def label_tier(client: Client, tier: str) -> None:
    """Put the cluster's own word on its tier where Tower looks for it."""

    def labelled() -> bool:
        try:
            client.patch(Namespace, "kube-system", {"metadata": {"labels": {TIER_LABEL: tier}}})
        except ApiError as error:
            if error.status.code == 404:
                return False
            raise
        return True

    processes.wait_until("the namespace kube-system", labelled, 20)


def wait_for_node(layout: Layout, client: Client, *, wanted: str = "True", seconds: float = 60) -> None:
    """Return when the node's Ready condition has this value and, if that is True, pods can be placed on it."""

    def there() -> bool:
        try:
            found = client.get(Node, layout.node_name)
            client.get(ServiceAccount, "default", namespace="default")
        except ApiError:
            return False
        conditions = (found.status.conditions if found.status else None) or []
        taints = (found.spec.taints if found.spec else None) or []
        state = next((c.status for c in conditions if c.type == "Ready"), "Unknown")
        return state == wanted and (wanted != "True" or not taints)

    processes.wait_until(f"node Ready={wanted}", there, seconds, log=layout.logs / "kubelet.log")


def write_record(layout: Layout, record: dict[str, Any]) -> None:
    """Write the cluster's record in one piece."""
    partial = layout.record.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1))
    partial.rename(layout.record)


def read_record(layout: Layout) -> dict[str, Any]:
    """Return the record of a cluster that is up; LabError otherwise."""
    if not layout.record.exists():
        raise LabError(f"no cluster in {layout.state}: start one with `python -m lab up --name {layout.name}`")
    record: dict[str, Any] = json.loads(layout.record.read_text())
    return record


def missing(layout: Layout) -> list[str]:
    """Return the roles whose process is not running."""
    running = {process.program for process in processes.alive(layout)}
    return [role for role in ROLES if role not in running]
