"""Layer 5 on the real API server, layers 1 to 4 off: a thief with the portal's own token makes one kind of grant or none.

`policies/rolebinding/cases.yaml` has every field; here are the attacks, sent for good and not as dry runs.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from breakglass.core import grant
from lab import processes
from lab.api import Cluster
from tests.asking import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api, Who
from tests.installed import PORTAL
from tests.layers.granting import ADMIN, RBAC, Place, granted, manifest, new_sid, place

pytestmark = pytest.mark.lab

POLICY = "tower-breakglass-rolebinding"
ALMIGHTY_PORTAL = Who(user=PORTAL, groups=("system:authenticated", "system:masters"))
"""The portal in a cluster whose RBAC was opened wide by mistake."""


@pytest.fixture(scope="module")
def app(api: Api) -> Iterator[Place]:
    with place(api, "layer-5-grants") as made:
        yield made


def annotate(**changes: str | None) -> Callable[[dict[str, Any]], None]:
    def change(wanted: dict[str, Any]) -> None:
        for key, value in changes.items():
            name = "tower.hangar/" + key.replace("_", "-")
            wanted["metadata"]["annotations"].pop(name, None)
            if value is not None:
                wanted["metadata"]["annotations"][name] = value

    return change


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(wanted: dict[str, Any]) -> None:
        for key in path[:-1]:
            wanted = wanted[key]
        wanted[path[-1]] = value

    return change


def ttl(value: str) -> Callable[[dict[str, Any]], None]:
    return put("metadata", "labels", "cleanup.kyverno.io/ttl", value=value)


OZ = {"kind": "User", "name": "oz", "apiGroup": "rbac.authorization.k8s.io"}
TOWER = {"kind": "ServiceAccount", "name": "portal", "namespace": "tower"}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "1"}
ATTACKS = {
    "a grant to somebody else": (put("subjects", value=[OZ]), "exactly one subject"),
    "a grant to itself and somebody else": (put("subjects", value=[TOWER, OZ]), "exactly one subject"),
    "a grant to every service account of its namespace": (
        put(
            "subjects", value=[{"kind": "Group", "name": "system:serviceaccounts:tower", "apiGroup": "rbac.authorization.k8s.io"}]
        ),
        "exactly one subject",
    ),
    "a role it holds anyway, to have it under another name": (
        put("roleRef", "name", value="tower-portal"),
        "debug-live or debug-copy",
    ),
    "an approval nobody gave": (annotate(approver=None), "needs an approver or a broken glass"),
    "its own approval": (annotate(approver="user:default/ana"), "nobody approves their own request"),
    "an approval and a broken glass": (annotate(glass_broken="true"), "never both"),
    "half a broken glass": (annotate(approver=None, glass_broken="yes"), "true or absent"),
    "no case file": (annotate(case=None), "by digest"),
    "no request": (annotate(request="the usual"), "by digest"),
    "another app's name": (annotate(entity="component:default/ledger"), "belongs to another app"),
    "the catalog twin's name": (annotate(entity="component:twin/checkout"), "belongs to another app"),
    "a day": (ttl("24h"), "15m to 75m"),
    "a time that Kyverno warns of and never deletes after": (ttl("abc"), "15m to 75m"),
    "a time before it could be used": (ttl("1m"), "15m to 75m"),
    "more time than was approved": (ttl("75m"), "outlives its session's minutes"),
    "a finalizer that outlives its deletion": (put("metadata", "finalizers", value=["example.test/hold"]), "no finalizers"),
    "an owner whose death ends it, or never": (
        put("metadata", "ownerReferences", value=[OWNER]),
        "no finalizers and no owners",
    ),
    "another session's label": (
        put("metadata", "labels", "tower.hangar/session", value="zzzzzzzzzz"),
        "is the session in its name",
    ),
    "a name of its own": (put("metadata", "name", value="kube-monitoring"), "is named tower-breakglass-"),
}


def test_the_grant_that_all_attacks_start_from_is_accepted(app: Place, thief: Who) -> None:
    answer = app.api.ask(thief, "POST", app.bindings, manifest(new_sid(), app.namespace), dry_run=True)

    assert answer.ok, answer


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_thief_widens_no_grant_by(app: Place, thief: Who, attack: str) -> None:
    change, sentence = ATTACKS[attack]
    wanted = manifest(new_sid(), app.namespace)
    change(wanted)

    answer = app.api.ask(thief, "POST", app.bindings, wanted)

    assert answer.refused is not None, answer
    assert answer.refused[0] == POLICY
    assert sentence in answer.refused[1]
    assert app.api.ask(ADMIN, "GET", f"{app.bindings}/{wanted['metadata']['name']}").status == 404


@pytest.mark.parametrize(
    ("namespace", "sentence"),
    [
        ("kube-system", "protected namespace"),
        ("kube-public", "protected namespace"),
        ("tower", "protected namespace"),
        ("default", "not an app namespace"),
        ("ledger", "belongs to another app"),
    ],
)
def test_a_thief_takes_no_grant_to_another_namespace(app: Place, thief: Who, namespace: str, sentence: str) -> None:
    answer = app.api.ask(thief, "POST", f"{RBAC}/namespaces/{namespace}/rolebindings", manifest(new_sid(), namespace))

    assert answer.refused is not None, answer
    assert sentence in answer.refused[1]


CHANGES: list[tuple[str, str, Any]] = [
    ("PATCH", MERGE, {"metadata": {"labels": {"cleanup.kyverno.io/ttl": "75m"}}}),
    ("PATCH", STRATEGIC, {"metadata": {"labels": {"cleanup.kyverno.io/ttl": None}}}),
    ("PATCH", JSON_PATCH, [{"op": "add", "path": "/subjects/-", "value": OZ}]),
    ("PATCH", MERGE, {"metadata": {"finalizers": ["example.test/hold"]}}),
    ("PATCH", APPLY, {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"labels": {"a": "b"}}}),
    ("PUT", "", {"subjects": [OZ]}),
]


@pytest.mark.parametrize(("method", "kind", "body"), CHANGES, ids=[f"{m} {k} {n}" for n, (m, k, _) in enumerate(CHANGES)])
@pytest.mark.parametrize("who", [ALMIGHTY_PORTAL, ADMIN], ids=["the portal", "an administrator"])
def test_nobody_changes_a_grant_by_any_route(app: Place, thief: Who, who: Who | None, method: str, kind: str, body: Any) -> None:
    """The portal has no right to update (layer 4); even with it, and even for administrators, a grant never changes."""
    with granted(app, thief, new_sid()) as made:
        name = made["metadata"]["name"]
        sent = made | body if method == "PUT" else body
        if kind == APPLY:
            sent = body | {"metadata": body["metadata"] | {"name": name}}
        query = {"fieldManager": "x", "force": "true"} if kind == APPLY else {}

        answer = app.api.ask(who, method, f"{app.bindings}/{name}", sent, kind=kind, query=query)

        assert answer.refused == (POLICY, "a grant never changes; end the session and ask for another"), answer
        assert app.api.ask(ADMIN, "GET", f"{app.bindings}/{name}").body == made


def test_a_thief_cannot_keep_a_deleted_grant_alive(app: Place, thief: Who) -> None:
    """In the foreground or orphaning, the API server adds a finalizer, and a terminating binding still grants."""
    with granted(app, thief, new_sid()) as made:
        for options in ({"propagationPolicy": "Foreground"}, {"propagationPolicy": "Orphan"}, {"orphanDependents": True}):
            answer = app.api.ask(thief, "DELETE", f"{app.bindings}/{made['metadata']['name']}", options)

            assert answer.refused is not None, answer
            assert "deleted in the background" in answer.refused[1]


@pytest.mark.parametrize("policy", ["Foreground", "Orphan"])
def test_an_administrators_deletion_in_the_foreground_comes_to_its_end(app: Place, thief: Who, policy: str) -> None:
    """The garbage collector must be let through to remove the finalizer: else the grant would stay for good."""
    sid = new_sid()
    where = f"{app.bindings}/{grant.name(sid)}"
    with granted(app, thief, sid):
        assert app.api.ask(ADMIN, "DELETE", where, {"propagationPolicy": policy}).ok

        processes.wait_until("the grant's end", lambda: app.api.ask(ADMIN, "GET", where).status == 404, 20)


@contextmanager
def frozen_controllers(cluster: Cluster) -> Iterator[None]:
    """The garbage collector hangs, as it may in a real outage."""
    pids = processes.pids(cluster.layout, "kube-controller-manager")
    processes.send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        processes.send(pids, signal.SIGCONT)


def test_a_grant_held_by_a_hanging_garbage_collector_still_grants_and_only_loses_its_finalizers(
    app: Place, thief: Who, cluster: Cluster
) -> None:
    sid = new_sid()
    where = f"{app.bindings}/{grant.name(sid)}"
    with granted(app, thief, sid), frozen_controllers(cluster):
        assert app.api.ask(ADMIN, "DELETE", where, {"propagationPolicy": "Foreground"}).ok
        held = app.api.ask(ADMIN, "GET", where).body
        assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
        assert app.may(thief, "patch", "pods", "ephemeralcontainers")
        for change in (
            {"subjects": [OZ]},
            {"metadata": {"finalizers": [], "labels": {"cleanup.kyverno.io/ttl": "75m"}}},
            {"metadata": {"finalizers": [], "annotations": {"tower.hangar/approver": "user:default/carla"}}},
            {"metadata": {"finalizers": [], "ownerReferences": [OWNER]}},
        ):
            answer = app.api.ask(ADMIN, "PATCH", where, change, kind=MERGE)
            assert answer.refused == (POLICY, "a grant never changes; end the session and ask for another"), answer
        for body in ({"metadata": {"finalizers": ["foregroundDeletion", "x.test/y"]}}, {"roleRef": {"name": "debug-copy"}}):
            assert app.api.ask(ADMIN, "PATCH", where, body, kind=MERGE).status == 422  # nobody may do that to any binding

        assert app.api.ask(ADMIN, "PATCH", where, {"metadata": {"finalizers": None}}, kind=MERGE).ok
        assert app.api.ask(ADMIN, "GET", where).status == 404


def test_a_thief_deletes_no_binding_but_grants(app: Place, thief: Who) -> None:
    answer = app.api.ask(thief, "DELETE", f"{app.bindings}/editors")

    assert answer.refused is not None, answer
    assert "deletes grants and no other binding" in answer.refused[1]
    assert app.api.ask(ADMIN, "GET", f"{app.bindings}/editors").ok


@pytest.mark.parametrize("role", ["debug-live", "debug-copy"])
def test_no_administrator_hands_out_a_debug_role(app: Place, role: str) -> None:
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    binding = {"metadata": {"name": "for-oz"}, "roleRef": ref, "subjects": [OZ]}

    answer = app.api.ask(ADMIN, "POST", app.bindings, binding)
    everywhere = app.api.ask(ADMIN, "POST", f"{RBAC}/clusterrolebindings", binding)

    assert answer.refused == (POLICY, "only Tower's portal makes grants; ask for a session with breakglass shell"), answer
    assert everywhere.refused is not None, everywhere
    assert "no debug role is bound in the whole cluster" in everywhere.refused[1]


def test_a_real_session_leaves_no_grant_that_cleanup_could_not_delete(app: Place, thief: Who) -> None:
    """Kyverno's controller deletes under its own identity, whenever it likes: nothing here is in its way."""
    cleaner = Who(user="system:serviceaccount:kyverno:kyverno-cleanup-controller", groups=("system:masters",))
    sid = new_sid()
    with granted(app, thief, sid):
        assert app.api.ask(cleaner, "DELETE", f"{app.bindings}/{grant.name(sid)}").ok
        assert app.api.ask(ADMIN, "GET", f"{app.bindings}/{grant.name(sid)}").status == 404
