"""Where the attacks of layers 4 and 5 begin: an app's namespace with a pod, a session's grant, and somebody who edits there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from breakglass.core import grant, workload
from breakglass.core import session as machine
from breakglass.core.model import Sid
from lab import processes
from tests.asking import STRATEGIC, Answer, Api, Who
from tests.core.builders import APPROVE, NOW, REQUEST, after
from tests.installed import PORTAL

RBAC = "/apis/rbac.authorization.k8s.io/v1"
EDITOR = Who(user="ana", groups=("system:authenticated",))
"""An owner of the app who may edit in its namespace, debug there with kubectl included."""
ADMIN = None
"""The cluster's administrator, by their own certificate."""


def new_sid() -> Sid:
    return Sid("".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(10)))


def manifest(sid: Sid, namespace: str, *, process_access: bool = False) -> dict[str, Any]:
    """The grant of an approved session, as Tower makes it."""
    request = replace(REQUEST, sid=sid, namespace=namespace, process_access=process_access)
    session = after(machine.new(request, NOW), replace(APPROVE, request_digest=request.digest))
    return grant.manifest(session, portal=PORTAL, ttl_minutes=45, case_digest="sha256:" + "b" * 64)


def debug_container(sid: Sid, image: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    """A debug container of this session, as Tower makes it."""
    values = {"target_container": None, "uid": 1000, "gid": 1000, "start_sha256": "c" * 64, "max_seconds": 600}
    return workload.debug_container(name=workload.container_name(sid, number), image=image, **(values | changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An app's namespace with one running pod in it."""

    api: Api
    namespace: str
    pod: str = "target"

    @property
    def bindings(self) -> str:
        return f"{RBAC}/namespaces/{self.namespace}/rolebindings"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def at(self, subresource: str = "", pod: str = "") -> str:
        return f"{self.pods}/{pod or self.pod}" + (f"/{subresource}" if subresource else "")

    def add(self, who: Who | None, *containers: dict[str, Any], pod: str = "", dry_run: bool = True) -> Answer:
        """Add ephemeral containers as kubectl does."""
        body = {"spec": {"ephemeralContainers": list(containers)}}
        return self.api.ask(who, "PATCH", self.at("ephemeralcontainers", pod), body, kind=STRATEGIC, dry_run=dry_run)

    def mark(self, sid: Sid | None) -> None:
        """Set the pod's process-access annotation, as administrator."""
        body = {"metadata": {"annotations": {workload.PROCESS_ACCESS: sid}}}
        answer = self.api.ask(None, "PATCH", self.at(), body, kind=STRATEGIC)
        assert answer.ok, answer

    def may(self, who: Who, verb: str, resource: str, subresource: str = "") -> bool:
        """What RBAC says of this person here and now."""
        where = {"namespace": self.namespace, "verb": verb, "resource": resource, "subresource": subresource}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": where}}
        answer = self.api.ask(who, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        assert answer.ok, answer
        return bool(answer.body["status"]["allowed"])


@contextmanager
def granted(place: Place, portal: Who, sid: Sid) -> Iterator[dict[str, Any]]:
    """The portal holds debug-live in this namespace, by a grant it made itself; gone, and seen gone by RBAC, afterwards."""
    made = place.api.ask(portal, "POST", place.bindings, manifest(sid, place.namespace))
    assert made.ok, made
    processes.wait_until("the grant's effect", lambda: place.may(portal, "patch", "pods", "ephemeralcontainers"), 10)
    try:
        yield dict(made.body)
    finally:
        place.api.ask(portal, "DELETE", f"{place.bindings}/{grant.name(sid)}")
        processes.wait_until("the grant's end", lambda: not place.may(portal, "patch", "pods", "ephemeralcontainers"), 10)


@contextmanager
def place(api: Api, namespace: str) -> Iterator[Place]:
    """A new app namespace with a running pod of the demo app's image; removed afterwards."""
    made = Place(api=api, namespace=namespace)
    where = f"/api/v1/namespaces/{namespace}"
    keys = {"labels": {"tower.hangar/app": "checkout"}, "annotations": {"tower.hangar/entity": "component:default/checkout"}}
    processes.wait_until("the namespace's last life to end", lambda: remove(api, where), 60)
    namespaced = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, **keys}}
    assert api.ask(None, "POST", "/api/v1/namespaces", namespaced).ok
    for item in editing(namespace):
        assert api.ask(None, "POST", f"{RBAC}/namespaces/{namespace}/{item['kind'].lower()}s", item).ok
    processes.wait_until("its service account", lambda: api.ask(None, "GET", f"{where}/serviceaccounts/default").ok, 20)
    spec = {
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000},
        "containers": [{"name": "app", "image": api.cluster.app_image}],
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "creds", "secret": {"secretName": "creds", "optional": True}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": made.pod}, "spec": spec}
    answer = api.ask(None, "POST", made.pods, pod)
    assert answer.ok, answer

    def running() -> bool:
        return bool(api.ask(None, "GET", made.at()).body["status"]["phase"] == "Running")

    processes.wait_until("the target pod's start", running, 60)
    try:
        yield made
    finally:
        api.ask(None, "DELETE", where)


def remove(api: Api, where: str) -> bool:
    """Ask for the namespace's end; whether it has come."""
    return api.ask(None, "DELETE", where).status == 404


def editing(namespace: str) -> list[dict[str, Any]]:
    """The editor's rights: the built-in role edit, and ephemeral containers (which edit does not have)."""
    ephemeral = {"apiGroups": [""], "resources": ["pods/ephemeralcontainers"], "verbs": ["patch", "update"]}
    metadata = {"name": "kubectl-debug", "namespace": namespace}
    subjects = [{"kind": "User", "name": EDITOR.user, "apiGroup": "rbac.authorization.k8s.io"}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [ephemeral]}

    def bound(name: str, kind: str, to: str) -> dict[str, Any]:
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": to}
        meta = {"name": name, "namespace": namespace}
        return {"apiVersion": role["apiVersion"], "kind": "RoleBinding", "metadata": meta, "roleRef": ref, "subjects": subjects}

    return [role, bound("editors", "ClusterRole", "edit"), bound("debuggers", "Role", "kubectl-debug")]
