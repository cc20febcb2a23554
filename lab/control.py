"""The control plane: etcd, API server, controller manager and scheduler as plain processes of this machine.

Lab, outside the layers. It must never listen on an address that another cluster or the network could reach.
"""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Final

from lab import config, processes
from lab.layout import Layout, Slot
from lab.pki import Authority

API_PORT: Final = 6443
ETCD_PORT: Final = 2379
#: The ones real workloads, grants, policies and a dying node need; no cloud, volume or autoscaling controllers.
CONTROLLERS: Final = (
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "deployment-controller",
    "replicaset-controller",
    "endpointslice-controller",
    "validatingadmissionpolicy-status-controller",
    "clusterrole-aggregation-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
)
#: Seconds without a sign of life until a node is NotReady: short for tests, long enough for two busy cores.
NODE_GRACE: Final = 16


def server(slot: Slot) -> str:
    """Return the API server's URL."""
    return f"https://{slot.host_ip}:{API_PORT}"


def write_pki(layout: Layout, slot: Slot) -> None:
    """Make every certificate and kubeconfig that the cluster's programs and its administrator use."""
    authority = Authority(layout.pki)
    authority.create()
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    authority.issue("apiserver", "kube-apiserver", addresses=(slot.host_ip, "127.0.0.1", str(slot.service_net[1])), names=names)
    authority.issue("apiserver-kubelet", "kube-apiserver-kubelet-client", ("system:masters",))
    authority.issue(
        "kubelet", f"system:node:{layout.node_name}", ("system:nodes",), addresses=(slot.node_ip,), names=(layout.node_name,)
    )
    authority.issue("admin", "lab-admin", ("system:masters",))
    authority.issue("controller-manager", "system:kube-controller-manager")
    authority.issue("scheduler", "system:kube-scheduler")
    for who in ("admin", "kubelet", "controller-manager", "scheduler"):
        authority.kubeconfig(layout.kubeconfig(who), who, server(slot), layout.name)
    (layout.state / "audit-policy.json").write_text(json.dumps(config.audit_policy()))


def start_etcd(layout: Layout, slot: Slot, tools: dict[str, Path]) -> None:
    """Start etcd; it need not be asked for readiness, the API server waits for it."""
    client, peer = f"http://{slot.etcd_ip}:{ETCD_PORT}", f"http://{slot.etcd_ip}:{ETCD_PORT + 1}"
    command: list[str | Path] = [tools["etcd"], "--name", layout.name, "--data-dir", layout.etcd_data, "--unsafe-no-fsync"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"{layout.name}={peer}"]
    processes.start(layout, "etcd", command)


def start_apiserver(layout: Layout, slot: Slot, tools: dict[str, Path]) -> None:
    """Start the API server with its default admission plug-ins and features, RBAC, Node authorisation and the audit log."""
    pki = layout.pki
    flags = {
        "etcd-servers": f"http://{slot.etcd_ip}:{ETCD_PORT}",
        "bind-address": slot.host_ip,
        "advertise-address": slot.host_ip,
        "secure-port": API_PORT,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "kubelet-client-certificate": pki / "apiserver-kubelet.crt",
        "kubelet-client-key": pki / "apiserver-kubelet.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "service-cluster-ip-range": slot.service_net,
        "endpoint-reconciler-type": "none",
        "audit-policy-file": layout.state / "audit-policy.json",
        "audit-log-path": layout.audit_log,
        "shutdown-delay-duration": "0s",
    }
    processes.start(layout, "kube-apiserver", [tools["kube-apiserver"], *(f"--{flag}={value}" for flag, value in flags.items())])


def wait_for_apiserver(layout: Layout, slot: Slot, seconds: float = 90) -> None:
    """Return when the API server says it is ready, RBAC's built-in roles included."""
    context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")

    def ready() -> bool:
        connection = http.client.HTTPSConnection(slot.host_ip, API_PORT, context=context, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    processes.wait_until("the API server's /readyz", ready, seconds, log=layout.logs / "kube-apiserver.log")


def start_controllers(layout: Layout, tools: dict[str, Path]) -> None:
    """Start controller manager and scheduler; neither listens on anything."""
    common = ["--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"]
    manager = [
        f"--kubeconfig={layout.kubeconfig('controller-manager')}",
        f"--controllers={','.join(CONTROLLERS)}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--service-account-private-key-file={layout.pki / 'sa.key'}",
        "--use-service-account-credentials=true",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={NODE_GRACE}s",
    ]
    processes.start(layout, "kube-controller-manager", [tools["kube-controller-manager"], *common, *manager])
    scheduler = [f"--kubeconfig={layout.kubeconfig('scheduler')}"]
    processes.start(layout, "kube-scheduler", [tools["kube-scheduler"], *common, *scheduler])
