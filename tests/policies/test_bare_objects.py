"""Layer 5's promise to everybody else: the barest object on every route is judged without an error, and let through.

An unguarded field once refused every pod of a cluster for ten minutes. What would do so is sent here by the portal, which every
policy looks at, by an administrator and by an owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.asking import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api
from tests.policies import matrix

pytestmark = pytest.mark.lab

RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAMESPACE = "cases-bare-objects"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
BINDINGS = f"{RBAC}/namespaces/{NAMESPACE}/rolebindings"
CLUSTER_BINDINGS = f"{RBAC}/clusterrolebindings"
REF = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "bare", "namespace": NAMESPACE},
    "spec": {"containers": [{"name": "a", "image": "a"}]},
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "bare", "namespace": NAMESPACE},
    "roleRef": REF,
}
CLUSTER_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "cases-bare"},
    "roleRef": REF,
}
SETUP = {"setup": [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, POD, BINDING, CLUSTER_BINDING]}
CONTAINER = {"name": "x", "image": "x"}


def with_container(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"spec": {**body["spec"], "ephemeralContainers": [CONTAINER]}}


def named(body: dict[str, Any], name: str) -> dict[str, Any]:
    return body | {"metadata": body["metadata"] | {"name": name}}


REQUESTS: list[tuple[str, str, str, Any, str]] = [
    ("create a pod", "POST", PODS, named(POD, "new"), ""),
    ("create a pod without a name", "POST", PODS, POD | {"metadata": {"generateName": "new-"}}, ""),
    ("apply a pod", "PATCH", f"{PODS}/new", named(POD, "new"), APPLY),
    ("put a pod", "PUT", f"{PODS}/bare", POD, ""),
    ("label a pod", "PATCH", f"{PODS}/bare", {"metadata": {"labels": {"a": "b"}}}, MERGE),
    ("delete a pod", "DELETE", f"{PODS}/bare", None, ""),
    ("delete every pod", "DELETE", PODS, None, ""),
    (
        "add an ephemeral container",
        "PATCH",
        f"{PODS}/bare/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [CONTAINER]}},
        STRATEGIC,
    ),
    ("add one by merge", "PATCH", f"{PODS}/bare/ephemeralcontainers", {"spec": {"ephemeralContainers": [CONTAINER]}}, MERGE),
    (
        "add one by JSON patch",
        "PATCH",
        f"{PODS}/bare/ephemeralcontainers",
        [{"op": "add", "path": "/spec/ephemeralContainers", "value": [CONTAINER]}],
        JSON_PATCH,
    ),
    ("add one by apply", "PATCH", f"{PODS}/bare/ephemeralcontainers", with_container(POD), APPLY),
    ("add one by put", "PUT", f"{PODS}/bare/ephemeralcontainers", with_container(POD), ""),
    ("add none", "PATCH", f"{PODS}/bare/ephemeralcontainers", {}, MERGE),
    ("add none to no pod", "PATCH", f"{PODS}/nowhere/ephemeralcontainers", {}, MERGE),
    ("attach", "POST", f"{PODS}/bare/attach?stdout=true", None, ""),
    ("attach by GET", "GET", f"{PODS}/bare/attach?stdout=true", None, ""),
    ("exec", "POST", f"{PODS}/bare/exec?stdout=true&command=id", None, ""),
    ("exec by GET", "GET", f"{PODS}/bare/exec?stdout=true&command=id", None, ""),
    ("exec in no pod", "POST", f"{PODS}/nowhere/exec?command=id&stdout=true&container=x", None, ""),
    ("create a binding", "POST", BINDINGS, named(BINDING, "new"), ""),
    ("create a binding without a name", "POST", BINDINGS, BINDING | {"metadata": {"generateName": "new-"}}, ""),
    ("apply a binding", "PATCH", f"{BINDINGS}/new", named(BINDING, "new"), APPLY),
    ("put a binding", "PUT", f"{BINDINGS}/bare", BINDING, ""),
    ("put a new binding", "PUT", f"{BINDINGS}/new", named(BINDING, "new"), ""),
    ("label a binding", "PATCH", f"{BINDINGS}/bare", {"metadata": {"labels": {"a": "b"}}}, MERGE),
    ("delete a binding", "DELETE", f"{BINDINGS}/bare", None, ""),
    ("delete every binding", "DELETE", BINDINGS, None, ""),
    ("create a cluster binding", "POST", CLUSTER_BINDINGS, named(CLUSTER_BINDING, "cases-new"), ""),
    ("apply a cluster binding", "PATCH", f"{CLUSTER_BINDINGS}/cases-new", named(CLUSTER_BINDING, "cases-new"), APPLY),
    ("put a cluster binding", "PUT", f"{CLUSTER_BINDINGS}/cases-bare", CLUSTER_BINDING, ""),
    ("label a cluster binding", "PATCH", f"{CLUSTER_BINDINGS}/cases-bare", {"metadata": {"labels": {"a": "b"}}}, MERGE),
    ("delete a cluster binding", "DELETE", f"{CLUSTER_BINDINGS}/cases-bare", None, ""),
]


@pytest.fixture(scope="module")
def bare(api: Api) -> Iterator[Api]:
    matrix.prepare(api, SETUP)
    yield api
    matrix.remove(api, SETUP)


@pytest.mark.parametrize("who", ["portal", "admin", "editor"])
@pytest.mark.parametrize(("method", "path", "body", "kind"), [r[1:] for r in REQUESTS], ids=[r[0] for r in REQUESTS])
def test_the_barest_request_is_judged_without_an_error(bare: Api, who: str, method: str, path: str, body: Any, kind: str) -> None:
    query = {"fieldManager": "bare", "force": "true"} if kind == APPLY else {}
    connects = "/exec" in path or "/attach" in path

    answer = bare.ask(matrix.PEOPLE[who], method, path, body, kind=kind, query=query, dry_run=not connects)

    assert "resulted in error" not in answer.message, answer
    assert answer.status != 500, answer
    if who != "portal":
        assert answer.refused is None, answer
        assert answer.status != 403, answer
