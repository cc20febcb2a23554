"""The cluster as tests, benches and the demo see it: who am I, what is where, and how to break it.

Lab, outside the layers. Its guarantee: what it returns is a real API server and a real kubelet; nothing here imitates one.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lightkube import Client, KubeConfig
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccountToken

from lab import binaries, cleanup, control, demo_app, images, lifecycle, node, processes
from lab.layout import LabError, Layout, Slot
from lab.pki import Authority, encoded, kubeconfig, write_private
from lab.steps import Say, Steps, to_stderr

__all__ = ["Cluster", "LabError"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One running cluster; images are named by digest, as a pod must name them."""

    name: str
    state_dir: Path
    slot: int
    tier: str
    server: str
    ca_file: Path
    admin_kubeconfig: Path
    node_name: str
    audit_log: Path
    debug_image: str
    app_image: str

    @staticmethod
    def up(name: str, *, state_dir: Path | None = None, tier: str = "flight", demo: bool = True, say: Say = to_stderr) -> Cluster:
        """Bring a cluster up, or find it up; LabError says what failed, and nothing of it stays behind."""
        layout, steps = Layout.of(name, state_dir), Steps(say)
        lifecycle.up(layout, tier=tier, steps=steps)
        cluster = Cluster.load(layout.state)
        if demo:
            with steps.step("demo app ready"):
                cluster.deploy_demo()
        say(f"  {'total':<34} {steps.total():6.1f} s")
        return cluster

    @staticmethod
    def load(state_dir: Path) -> Cluster:
        """Return the cluster that lives in this state directory; LabError when there is none."""
        probe = Layout(name="unknown", state=state_dir.resolve())
        record = lifecycle.read_record(probe)
        layout = Layout.of(record["name"], state_dir)
        return Cluster(
            name=layout.name,
            state_dir=layout.state,
            slot=record["slot"],
            tier=record["tier"],
            server=record["server"],
            ca_file=layout.pki / "ca.crt",
            admin_kubeconfig=layout.kubeconfig("admin"),
            node_name=layout.node_name,
            audit_log=layout.audit_log,
            debug_image=record["debug_image"],
            app_image=record["app_image"],
        )

    @property
    def layout(self) -> Layout:
        """Where the cluster's parts live."""
        return Layout(name=self.name, state=self.state_dir)

    def down(self) -> None:
        """Remove the cluster and everything it made."""
        with lifecycle.exclusive(self.layout):
            cleanup.down(self.layout)

    # ── acting as somebody ────────────────────────────────────────────────

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Return a kubeconfig of this user, with a client certificate signed by the cluster's authority."""
        stem = "user-" + re.sub(r"[^a-zA-Z0-9]+", "-", "-".join((user, *groups)))
        path = self.layout.kubeconfig(stem)
        if not path.exists():
            authority = Authority(self.layout.pki)
            authority.issue(stem, user, groups)
            authority.kubeconfig(path, stem, self.server, self.name)
        return path

    def kubeconfig_with_token(self, token: str, stem: str) -> Path:
        """Return a kubeconfig that carries a bearer token; `stem` names the file."""
        path = self.layout.kubeconfig(stem)
        write_private(path, yaml_of(kubeconfig(self.server, encoded(self.ca_file), self.name, {"token": token})))
        return path

    def client(self, user: str | None = None, groups: Sequence[str] = ()) -> Client:
        """Return an API client: the administrator's, or that of any user."""
        path = self.admin_kubeconfig if user is None else self.kubeconfig_for(user, groups)
        return Client(config=KubeConfig.from_file(path), field_manager="lab", trust_env=False)

    def token(self, namespace: str, serviceaccount: str, seconds: int = 3600) -> str:
        """Return a bound token of the service account (TokenRequest API; at least 600 seconds)."""
        wanted = ServiceAccountToken(metadata=ObjectMeta(), spec=TokenRequestSpec(audiences=[], expirationSeconds=seconds))
        with self.client() as client:
            issued = client.create(wanted, serviceaccount, namespace=namespace)
        if issued.status is None or issued.status.token is None:
            raise LabError(f"the API server issued no token for {namespace}/{serviceaccount}")
        return issued.status.token

    # ── the demo app ──────────────────────────────────────────────────────

    def deploy_demo(self) -> None:
        """Apply the demo app and wait until its pods are ready."""
        with self.client() as client:
            demo_app.deploy(client, self.app_image)

    def delivery_repository(self, folder: Path) -> Path:
        """Make the demo app's git repository for this cluster in `folder`, which must not exist."""
        return demo_app.delivery_repository(folder, self.name, tier=self.tier)

    @property
    def catalog_file(self) -> Path:
        """The demo's `catalog-info.yaml`."""
        return demo_app.CATALOG

    # ── breaking things ───────────────────────────────────────────────────

    def restart_apiserver(self) -> None:
        """Kill the API server (no goodbye), start it again and wait until it is ready."""
        processes.end(self.layout, "kube-apiserver")
        self.start_apiserver()

    def start_apiserver(self) -> None:
        """Start an API server that was stopped and wait until it is ready."""
        slot = Slot(number=self.slot)
        control.start_apiserver(self.layout, slot, binaries.ensure_all(quiet()))
        control.wait_for_apiserver(self.layout, slot)

    def stop_apiserver(self) -> None:
        """Kill the API server."""
        processes.end(self.layout, "kube-apiserver")

    def stop_kubelet(self) -> None:
        """Kill the kubelet; containers go on."""
        processes.end(self.layout, "kubelet")

    def start_kubelet(self) -> None:
        """Start the kubelet again and wait until the node is ready."""
        node.start_kubelet(self.layout, Slot(number=self.slot), binaries.ensure_all(quiet()))
        self.wait_for_node()

    def kill_node(self) -> None:
        """Cut the node's power: kubelet, containerd, shims and every container end at once, its network link with them."""
        processes.end(self.layout, node.INIT)
        processes.end(self.layout, "kubelet", "containerd", "containerd-shim-runc-v2", "nsenter", "unshare")
        # a reboot forgets these; left over, they make the next kubelet wait three seconds for each
        cleanup.remove_cgroups(self.layout)

    def freeze_node(self) -> None:
        """Stop kubelet, containerd and shims where they stand (SIGSTOP); containers go on, nobody answers for them."""
        processes.send(processes.pids(self.layout, "kubelet", "containerd", "containerd-shim-runc-v2"), signal.SIGSTOP)

    def thaw_node(self) -> None:
        """Undo `freeze_node`."""
        processes.send(processes.pids(self.layout, "kubelet", "containerd", "containerd-shim-runc-v2"), signal.SIGCONT)

    def cut_node(self) -> None:
        """Pull the node's network cable."""
        node.run(["ip", "link", "set", Slot(number=self.slot).veth, "down"])

    def mend_node(self) -> None:
        """Plug the network cable in again."""
        slot = Slot(number=self.slot)
        node.run(["ip", "link", "set", slot.veth, "up"])

    def start_node(self) -> None:
        """Boot a node that was killed and wait until it is ready; its disk is as it was, its containers are gone."""
        slot, tools, record = Slot(number=self.slot), binaries.ensure_all(quiet()), lifecycle.read_record(self.layout)
        node.boot(self.layout, slot, tools)
        node.start_containerd(self.layout, tools, record["sandbox_image"])
        node.start_kubelet(self.layout, slot, tools)
        self.wait_for_node()

    def wait_for_node(self, wanted: str = "True", seconds: float = 60) -> None:
        """Return when the node's Ready condition is `True`, `False` or `Unknown`, as wanted."""
        with self.client() as client:
            lifecycle.wait_for_node(self.layout, client, wanted=wanted, seconds=seconds)

    def container_pids(self, container_id: str) -> list[int]:
        """Return the processes of a container, as this machine numbers them; takes `containerd://<id>` or `<id>`."""
        wanted = container_id.removeprefix("containerd://").encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    if wanted in (entry / "cgroup").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return sorted(found)

    # ── images ────────────────────────────────────────────────────────────

    def load_supervisor(self) -> Cluster:
        """Import the debug image with the supervisor as it is now, and return the cluster with that image."""
        tools = binaries.ensure_all(quiet())
        with lifecycle.exclusive(self.layout):
            made = images.make(self.layout.state / "images", tools)
            if made.debug.reference != self.debug_image:
                images.load_debug(self.layout, tools, made)
                lifecycle.write_record(self.layout, {**lifecycle.read_record(self.layout), "debug_image": made.debug.reference})
        return Cluster.load(self.state_dir)

    def status(self) -> dict[str, Any]:
        """Return what runs and what does not."""
        return {
            "name": self.name,
            "state_dir": str(self.state_dir),
            "server": self.server,
            "tier": self.tier,
            "kubeconfig": str(self.admin_kubeconfig),
            "node": self.node_name,
            "debug_image": self.debug_image,
            "app_image": self.app_image,
            "processes": {p.program: p.pid for p in processes.alive(self.layout) if p.program in lifecycle.ROLES},
            "not_running": lifecycle.missing(self.layout),
        }


def quiet() -> Steps:
    """Return steps that say nothing."""
    return Steps(lambda _: None)


def yaml_of(value: dict[str, Any]) -> bytes:
    """Return the value as YAML text."""
    return yaml.safe_dump(value).encode()
