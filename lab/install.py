"""Applies what `breakglass render` wrote and returns when the API server enforces it: Argo CD and its probe Job, for the lab.

Lab, outside the layers. It must never return while a request that the policies refuse would still be admitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lightkube import ApiError, Client, codecs
from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding

from breakglass.render import apply_order
from lab import processes

#: For each policy a request that nobody may make; sent as a dry run, so that it changes nothing even where it is admitted.
PROBES: Final[Mapping[str, dict[str, Any]]] = {
    "tower-breakglass-rolebinding": {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tower-breakglass-probe", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "debug-live"},
    },
    "tower-breakglass-debug-container": {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tower-breakglass-probe", "namespace": "default", "labels": {"tower.hangar/copy-of": "probe"}},
        "spec": {"containers": [{"name": "probe", "image": "probe"}]},
    },
}


def install(client: Client, rendered: Mapping[str, str], seconds: float = 30) -> None:
    """Apply everything in the order of the waves, as administrator, and wait until each policy refuses its probe.

    A policy that is there with another text is removed first: only so can "enforced" be told from "the old one enforced".
    """
    wanted = {item["metadata"]["name"]: item for item in apply_order(rendered) if item["kind"] == "ValidatingAdmissionPolicy"}
    for name, item in wanted.items():
        if differs(client, name, item):
            client.delete(ValidatingAdmissionPolicy, name)
            processes.wait_until(f"{name} to be gone", lambda name=name: not refused(client, name), seconds)  # type: ignore[misc]
    for item in apply_order(rendered):
        client.apply(codecs.from_dict(item), force=True)
    for name in wanted:
        processes.wait_until(f"{name} to be enforced", lambda name=name: refused(client, name), seconds)  # type: ignore[misc]


def uninstall(client: Client, seconds: float = 30) -> None:
    """Remove the policies (the rights stay) and return when the API server has forgotten them."""
    for name in PROBES:
        for kind in (ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicy):
            try:
                client.delete(kind, name)
            except ApiError as error:
                if error.status.code != 404:
                    raise
    for name in PROBES:
        processes.wait_until(f"{name} to be gone", lambda name=name: not refused(client, name), seconds)  # type: ignore[misc]


def differs(client: Client, name: str, wanted: dict[str, Any]) -> bool:
    """Tell whether the cluster has a policy of this name with another text."""
    try:
        found = client.get(ValidatingAdmissionPolicy, name)
    except ApiError as error:
        if error.status.code == 404:
            return False
        raise
    return bool(found.to_dict()["spec"] != wanted["spec"])


def refused(client: Client, name: str) -> bool:
    """Tell whether this policy refuses its probe now."""
    try:
        client.create(codecs.from_dict(PROBES[name]), dry_run=True)
    except ApiError as error:
        return f"ValidatingAdmissionPolicy '{name}'" in (error.status.message or "")
    return False
