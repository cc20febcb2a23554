"""Layer 4 on the real API server, with the portal's own stolen token: nothing to a pod at rest, and nothing again after close."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from breakglass.core import grant
from lab import processes
from tests.asking import MERGE, STRATEGIC, Api, Who
from tests.layers.granting import RBAC, Place, granted, manifest, new_sid, place

pytestmark = pytest.mark.lab

READ = {"get", "list", "watch"}
EVERYBODYS = {
    ("", "authentication.k8s.io", "selfsubjectreviews", ""): {"create"},
    ("", "authorization.k8s.io", "selfsubjectaccessreviews", ""): {"create"},
    ("", "authorization.k8s.io", "selfsubjectrulesreviews", ""): {"create"},
    ("", "certificates.k8s.io", "clustertrustbundles", ""): READ,
}
"""What Kubernetes gives every service account: to ask who it is and what it may, and public certificates."""
AT_REST = EVERYBODYS | {
    ("", "", "pods", ""): READ,
    ("", "", "namespaces", ""): READ,
    ("", "", "nodes", ""): READ,
    ("", "rbac.authorization.k8s.io", "rolebindings", ""): {"create", "get", "list", "delete"},
    ("", "rbac.authorization.k8s.io", "clusterroles", "debug-live"): {"bind"},
    ("", "rbac.authorization.k8s.io", "clusterroles", "debug-copy"): {"bind"},
}
LIVE = {
    ("", "", "pods/ephemeralcontainers", ""): {"patch"},
    ("", "", "pods/attach", ""): {"create", "get"},
    ("", "", "pods", ""): READ | {"patch", "delete"},
}


@pytest.fixture(scope="module")
def app(api: Api) -> Iterator[Place]:
    with place(api, "layer-4") as made:
        yield made


def rights(where: Place, who: Who, namespace: str = "") -> dict[tuple[str, str, str, str], set[str]]:
    """Everything RBAC lets somebody do in a namespace, by its own account."""
    spec = {"namespace": namespace or where.namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": spec}
    answer = where.api.ask(who, "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body)
    assert answer.ok, answer
    assert not answer.body["status"]["incomplete"]
    found: dict[tuple[str, str, str, str], set[str]] = {}
    for rule in answer.body["status"]["resourceRules"]:
        for group in rule.get("apiGroups", []):
            for resource in rule.get("resources", []):
                for name in rule.get("resourceNames", [""]):
                    found.setdefault(("", group, resource, name), set()).update(rule["verbs"])
    return found


POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "new"},
    "spec": {"containers": [{"name": "a", "image": "a"}]},
}
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "target"}}
TO_A_POD: list[tuple[str, str, Any, str]] = [
    ("POST", "", POD, ""),
    ("DELETE", "", None, ""),
    ("PUT", "/target", POD, ""),
    ("PATCH", "/target", {"metadata": {"annotations": {"a": "b"}}}, MERGE),
    ("DELETE", "/target", None, ""),
    ("PATCH", "/target/ephemeralcontainers", {"spec": {"ephemeralContainers": []}}, STRATEGIC),
    ("PUT", "/target/ephemeralcontainers", POD, ""),
    ("GET", "/target/ephemeralcontainers", None, ""),
    ("PATCH", "/target/status", {"metadata": {"labels": {"a": "b"}}}, MERGE),
    ("PUT", "/target/status", POD, ""),
    ("PATCH", "/target/resize", {"spec": {}}, MERGE),
    ("POST", "/target/eviction", EVICTION, ""),
    ("POST", "/target/binding", {"apiVersion": "v1", "kind": "Binding", "target": {"name": "x"}}, ""),
    ("GET", "/target/log", None, ""),
    ("GET", "/target/exec?command=id", None, ""),
    ("POST", "/target/exec?command=id", None, ""),
    ("GET", "/target/attach", None, ""),
    ("POST", "/target/attach", None, ""),
    ("GET", "/target/portforward", None, ""),
    ("POST", "/target/portforward", None, ""),
    *((verb, f"/target/proxy{rest}", None, "") for verb in ("GET", "POST", "PUT", "PATCH", "DELETE") for rest in ("", "/x")),
]


@pytest.mark.parametrize(("method", "path", "body", "kind"), TO_A_POD, ids=[f"{m} pods{p}" for m, p, *_ in TO_A_POD])
def test_at_rest_a_stolen_token_can_do_nothing_to_a_pod(
    app: Place, thief: Who, method: str, path: str, body: Any, kind: str
) -> None:
    answer = app.api.ask(thief, method, app.pods + path, body, kind=kind)

    assert answer.forbidden, answer
    assert 'User "system:serviceaccount:tower:portal" cannot' in answer.message, answer


def test_at_rest_the_token_is_good_and_reads_what_tower_must_know(app: Place, thief: Who) -> None:
    """Else the refusals above would prove nothing."""
    for path in (app.pods, app.at(), "/api/v1/namespaces/kube-system", "/api/v1/nodes", f"{RBAC}/rolebindings"):
        assert app.api.ask(thief, "GET", path).ok, path


def test_at_rest_the_portal_has_these_rights_and_no_other(app: Place, thief: Who) -> None:
    assert rights(app, thief) == AT_REST
    assert rights(app, thief, "kube-system") == AT_REST
    assert rights(app, thief, "tower") == AT_REST


ELSEWHERE: list[tuple[str, str, Any, str]] = [
    ("GET", "/api/v1/namespaces/layer-4/secrets", None, ""),
    ("GET", "/api/v1/secrets", None, ""),
    ("GET", "/api/v1/namespaces/layer-4/secrets/creds", None, ""),
    ("GET", "/api/v1/namespaces/layer-4/configmaps", None, ""),
    ("GET", "/api/v1/namespaces/layer-4/serviceaccounts", None, ""),
    ("POST", "/api/v1/namespaces/layer-4/serviceaccounts/default/token", {"spec": {"audiences": []}}, ""),
    ("POST", "/api/v1/namespaces/tower/serviceaccounts/portal/token", {"spec": {"audiences": []}}, ""),
    ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token", {"spec": {"audiences": []}}, ""),
    ("PATCH", "/api/v1/namespaces/layer-4", {"metadata": {"labels": {"tower.hangar/app": "other"}}}, MERGE),
    ("PATCH", "/api/v1/namespaces/kube-system", {"metadata": {"labels": {"tower.hangar/tier": "ground"}}}, MERGE),
    ("POST", "/apis/apps/v1/namespaces/layer-4/deployments", {"metadata": {"name": "x"}}, ""),
    ("GET", "/api/v1/nodes/x/proxy/pods", None, ""),
    ("POST", "/api/v1/nodes/x/proxy/exec", None, ""),
    ("PATCH", f"{RBAC}/clusterroles/debug-live", {"rules": []}, MERGE),
    ("PATCH", f"{RBAC}/clusterroles/tower-portal", {"rules": []}, MERGE),
    ("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "x"}}, ""),
    ("POST", f"{RBAC}/namespaces/layer-4/roles", {"metadata": {"name": "x"}}, ""),
    ("PATCH", f"{RBAC}/namespaces/layer-4/rolebindings/editors", {"metadata": {"labels": {"a": "b"}}}, MERGE),
    ("DELETE", f"{RBAC}/namespaces/layer-4/rolebindings", None, ""),
    ("POST", f"{RBAC}/clusterrolebindings", {"metadata": {"name": "x"}}, ""),
    ("DELETE", f"{RBAC}/clusterrolebindings/tower-portal", None, ""),
    ("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/tower-breakglass-rolebinding", None, ""),
    ("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/tower-breakglass-rolebinding", None, ""),
    ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", {"metadata": {"name": "x"}}, ""),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}, ""),
]


@pytest.mark.parametrize(("method", "path", "body", "kind"), ELSEWHERE, ids=[f"{m} {p}" for m, p, *_ in ELSEWHERE])
def test_at_rest_a_stolen_token_reads_no_secret_mints_no_token_and_changes_no_rule(
    app: Place, thief: Who, method: str, path: str, body: Any, kind: str
) -> None:
    answer = app.api.ask(thief, method, path, body, kind=kind)

    assert answer.forbidden, answer
    assert 'User "system:serviceaccount:tower:portal" cannot' in answer.message, answer


@pytest.mark.parametrize(
    "headers",
    [
        {"Impersonate-User": "carla"},
        {"Impersonate-User": "system:admin", "Impersonate-Group": "system:masters"},
        {"Impersonate-User": "system:serviceaccount:kube-system:default"},
        {"Impersonate-User": "system:serviceaccount:tower:portal", "Impersonate-Group": "system:masters"},
        {"Impersonate-User": "carla", "Impersonate-Uid": "1"},
    ],
)
def test_a_stolen_token_cannot_act_as_somebody_else(app: Place, thief: Who, headers: dict[str, str]) -> None:
    answer = app.api.ask(thief, "GET", app.pods, headers=headers)

    assert answer.forbidden, answer
    assert "cannot impersonate" in answer.message, answer


def bind(app: Place, thief: Who, kind: str, name: str) -> Any:
    """Try to bind a role by an otherwise perfect grant."""
    wanted = manifest(new_sid(), app.namespace)
    wanted["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    return app.api.ask(thief, "POST", app.bindings, wanted, dry_run=True)


def test_a_stolen_token_binds_the_two_debug_roles_and_no_other_of_the_cluster(app: Place, thief: Who) -> None:
    """RBAC's escalation check refuses what the portal does not hold itself; the few roles with nothing new in them, layer 5."""
    roles = [item["metadata"]["name"] for item in app.api.ask(None, "GET", f"{RBAC}/clusterroles").body["items"]]
    allowed, by_policy = set(), set()

    for name in roles:
        answer = bind(app, thief, "ClusterRole", name)
        if answer.ok:
            allowed.add(name)
        elif answer.refused is not None:
            by_policy.add(name)
        else:
            assert answer.forbidden, answer
            assert "attempting to grant RBAC permissions not currently held" in answer.message, answer

    assert len(roles) > 60
    assert allowed == {"debug-live", "debug-copy"}
    # nothing but what the portal or everybody has: public facts, and the portal's own rights
    assert by_policy == {
        "system:basic-user",
        "system:cluster-trust-bundle-discovery",
        "system:discovery",
        "system:public-info-viewer",
        "system:service-account-issuer-discovery",
        "tower-portal",
    }


def test_a_stolen_token_binds_no_role_of_a_namespace_not_even_one_called_like_ours(app: Place, thief: Who) -> None:
    role = {"metadata": {"name": "debug-live"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}
    assert app.api.ask(None, "POST", f"{RBAC}/namespaces/{app.namespace}/roles", role).ok

    answer = bind(app, thief, "Role", "debug-live")

    assert answer.forbidden, answer
    assert "attempting to grant RBAC permissions not currently held" in answer.message, answer


def test_a_grant_gives_exactly_debug_live_in_its_namespace_and_nothing_anywhere_else(app: Place, thief: Who) -> None:
    with granted(app, thief, new_sid()):
        assert rights(app, thief) == AT_REST | LIVE
        assert rights(app, thief, "checkout") == AT_REST
        assert rights(app, thief, "kube-system") == AT_REST


def test_after_close_the_portal_has_nothing_again(app: Place, thief: Who) -> None:
    sid = new_sid()
    with granted(app, thief, sid):
        assert app.may(thief, "create", "pods", "attach")

    assert app.api.ask(thief, "GET", f"{app.bindings}/{grant.name(sid)}").status == 404
    processes.wait_until("the rights at rest", lambda: rights(app, thief) == AT_REST, 5)
    for method, path, body, kind in TO_A_POD:
        assert app.api.ask(thief, method, app.pods + path, body, kind=kind).forbidden, (method, path)


@pytest.mark.parametrize("missing", ["exec", "portforward", "proxy", "log", "eviction", "status", "resize", "binding"])
def test_even_with_a_grant_there_is_no_exec_and_no_other_way_in(app: Place, thief: Who, missing: str) -> None:
    with granted(app, thief, new_sid()):
        assert not any(app.may(thief, verb, "pods", missing) for verb in ("create", "get", "patch", "update", "delete"))
