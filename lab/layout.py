"""Says where everything of one cluster lives: paths under its state directory and addresses of its slot; computes, never creates.

Lab, outside the layers. It must never name a path, port or link that two clusters could share.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: A Kubernetes name, short enough for `<name>-node` and for a certificate.
NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
#: Slots 1..250: one /24 each for the node, its pods and its services.
SLOTS: Final = range(1, 251)


class LabError(RuntimeError):
    """Something the person can act on; the text says what failed and what to do."""


def default_state_dir(name: str) -> Path:
    """Return the directory a cluster of this name uses unless told otherwise."""
    return Path(tempfile.gettempdir(), f"tower-lab-{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The number a cluster has claimed on this machine, and the addresses that follow from it."""

    number: int

    @property
    def bridge(self) -> str:
        """The link that is the claim: the kernel allows one of this name."""
        return f"tower{self.number}"

    @property
    def veth(self) -> str:
        """The machine's end of the node's cable."""
        return f"tower{self.number}n"

    @property
    def node_net(self) -> ipaddress.IPv4Network:
        """The machine's and the node's addresses."""
        return ipaddress.IPv4Network(f"10.213.{self.number}.0/24")

    @property
    def pod_net(self) -> ipaddress.IPv4Network:
        """The pods' addresses."""
        return ipaddress.IPv4Network(f"10.214.{self.number}.0/24")

    @property
    def service_net(self) -> ipaddress.IPv4Network:
        """The services' addresses (nothing routes them: the lab has no kube-proxy)."""
        return ipaddress.IPv4Network(f"10.215.{self.number}.0/24")

    @property
    def host_ip(self) -> str:
        """Where the API server listens: the machine's end of the bridge, reachable from the node and its pods."""
        return str(self.node_net[1])

    @property
    def node_ip(self) -> str:
        """The kubelet's address."""
        return str(self.node_net[2])

    @property
    def pod_gateway(self) -> str:
        """The node's end of the pods' bridge."""
        return str(self.pod_net[1])

    @property
    def etcd_ip(self) -> str:
        """A loopback address of the cluster's own: no port to race for, and no pod can reach it."""
        return f"127.213.{self.number}.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The paths of one cluster."""

    name: str
    state: Path

    @staticmethod
    def of(name: str, state_dir: Path | None = None) -> Layout:
        """Check the name and the directory and return the layout; LabError says what is wrong with them."""
        if not NAME.fullmatch(name):
            raise LabError(f"{name!r} is not a cluster name: use a-z, 0-9 and -, at most 40 characters")
        state = (state_dir or default_state_dir(name)).resolve()
        if state.is_relative_to("/run") or state.is_relative_to("/var/run"):
            raise LabError(f"{state} can't be a state directory, the node hides /run: choose one elsewhere with --state-dir")
        return Layout(name=name, state=state)

    @property
    def mac(self) -> str:
        """The bridge's hardware address, made from the state directory: a link says whose it is from its first moment."""
        digest = hashlib.sha256(str(self.state).encode()).hexdigest()
        return ":".join(("02", *(digest[i : i + 2] for i in range(0, 10, 2))))

    @property
    def node_name(self) -> str:
        """The node's name in the API."""
        return f"{self.name}-node"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        """Every program's output, and the audit log."""
        return self.state / "logs"

    @property
    def etcd_data(self) -> Path:
        """Where etcd keeps its data."""
        return self.state / "etcd"

    @property
    def node(self) -> Path:
        """Everything of the node."""
        return self.state / "node"

    @property
    def containerd_root(self) -> Path:
        """What containerd keeps over a reboot of the node."""
        return self.node / "containerd"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON object a line."""
        return self.logs / "audit.log"

    @property
    def record(self) -> Path:
        """Written last: a state directory without it is debris of an interrupted start."""
        return self.state / "cluster.json"

    def kubeconfig(self, who: str) -> Path:
        """Return the path of this one's kubeconfig."""
        return self.state / f"{who}.kubeconfig"
