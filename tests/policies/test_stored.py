"""What the API server makes of the rendered objects: nothing else than they are, and no doubt about their types."""

from __future__ import annotations

from typing import Any

import pytest

from breakglass.render import apply_order, render
from lab import processes
from lab.api import Cluster
from tests.asking import Api
from tests.installed import inputs
from tests.policies import matrix

pytestmark = pytest.mark.lab

PLURALS = matrix.PLURALS | {
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
}


def stored(api: Api, item: dict[str, Any]) -> dict[str, Any]:
    root, plural = PLURALS[item["kind"]]
    namespace = item["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    answer = api.ask(None, "GET", f"{root}{place}/{plural}/{item['metadata']['name']}")
    assert answer.ok, answer
    return dict(answer.body)


def test_what_is_stored_is_what_was_rendered_so_that_drift_shows(api: Api, cluster: Cluster) -> None:
    """Argo CD and preflight compare texts: a default that the API server adds would look like tampering for good."""
    for item in apply_order(render(inputs(cluster.debug_image))):
        found = stored(api, item)
        for part in set(item) - {"apiVersion", "kind", "metadata"}:
            assert found[part] == item[part], (item["kind"], part)


@pytest.mark.parametrize("name", ["debug-container", "rolebinding"])
def test_the_api_server_finds_no_type_to_doubt(api: Api, name: str) -> None:
    policy = {"kind": "ValidatingAdmissionPolicy", "metadata": {"name": f"tower-breakglass-{name}"}}

    def checked() -> bool:
        found = stored(api, policy)
        return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

    processes.wait_until("the type check", checked, 20)
    assert stored(api, policy)["status"].get("typeChecking", {}) == {}
