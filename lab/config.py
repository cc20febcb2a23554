"""The configuration of containerd, the network plug-ins, the kubelet and the audit log; every odd setting says why it is there.

Lab, outside the layers. It must never contain an address or a path that is not the cluster's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from lab.layout import Layout, Slot

#: Inside the node's own mount namespace; the machine's /run is not touched.
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
CONTAINERD_ROOT: Final = "/var/lib/containerd"
KUBELET_ROOT: Final = "/var/lib/kubelet"
CNI_PLUGINS: Final = "/usr/lib/cni"
#: What the kubelet would set for the whole machine; the node sees these values in files of its own instead (node.py).
KERNEL_SETTINGS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def containerd(layout: Layout, tools: dict[str, Path], sandbox_image: str) -> str:
    """Return containerd's config, version 3."""
    return f"""\
version = 3
root = "{CONTAINERD_ROOT}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{sandbox_image}"

[plugins.'io.containerd.cri.v1.runtime']
# without CAP_SYS_RESOURCE runc cannot lower a score and dies with "can't get final child's PID from pipe: EOF"
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true
netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{layout.node}/cni"

[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{tools["containerd-shim-runc-v2"]}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "/usr/sbin/runc"
SystemdCgroup = false
"""


def cni(layout: Layout, slot: Slot) -> str:
    """Return the pods' network: a bridge inside the node's network namespace, no masquerading, so no iptables rule anywhere."""
    ranges = [[{"subnet": str(slot.pod_net), "gateway": slot.pod_gateway}]]
    ipam = {"type": "host-local", "dataDir": f"{layout.node}/cni/leases", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": f"tower-lab-{slot.number}", "plugins": [bridge]}, indent=1)


def kubelet(layout: Layout, slot: Slot) -> str:
    """Return the kubelet's configuration (JSON is YAML)."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": slot.node_ip,
            "tlsCertFile": f"{layout.pki}/kubelet.crt",
            "tlsPrivateKeyFile": f"{layout.pki}/kubelet.key",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "podLogsDir": f"{layout.node}/pod-logs",
            "resolvConf": f"{layout.node}/resolv.conf",
            # works on cgroup v1 too: the lab's machines may have nothing newer
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "oomScoreAdj": 0,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            # a nearly full disk or a busy machine must not evict what a test looks at
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            # a dead node is seen as dead within seconds (with the controller manager's grace period)
            "nodeLeaseDurationSeconds": 8,
            "nodeStatusUpdateFrequency": "2s",
            "healthzPort": 10248,
            "healthzBindAddress": slot.node_ip,
            "readOnlyPort": 0,
            "protectKernelDefaults": True,
        },
        indent=1,
    )


def audit_policy() -> dict[str, Any]:
    """Return the audit policy: grants whole, everything else by metadata."""
    grants = {"level": "RequestResponse", "resources": [{"group": "rbac.authorization.k8s.io", "resources": ["rolebindings"]}]}
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [grants, {"level": "Metadata"}],
    }
