"""Reads `cases.yaml` and asks the real API server each of its questions: an accepted request with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import yaml

from lab import processes
from tests.asking import STRATEGIC, Answer, Api, Who
from tests.installed import PORTAL, REPOSITORY

#: Layer 4 is taken away from everybody (`system:masters`): what is refused here is refused by layer 5 alone.
PEOPLE: Final = {
    name: Who(user=user, groups=("system:authenticated", "system:masters"))
    for name, user in {
        "portal": PORTAL,
        "admin": "carla",
        "editor": "ana",
        "cleanup": "system:serviceaccount:kyverno:kyverno-cleanup-controller",
    }.items()
}
CASE_KEYS: Final = frozenset(
    {"case", "as", "base", "change", "namespace", "name", "method", "query", "object", "also", "expect", "refused"}
)
BASE_KEYS: Final = frozenset({"method", "path", "namespace", "name", "query", "object", "under"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question and the answer it must get: `refused` holds the sentence, else `expect` says allowed, untouched or invalid."""

    policy: str
    title: str
    who: str
    request: Mapping[str, Any]
    expect: str
    refused: str | None


def read(policy: str) -> dict[str, Any]:
    """The whole `cases.yaml` of a policy."""
    text = (REPOSITORY / "policies" / policy / "cases.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def cases(policy: str) -> list[Case]:
    """Every case of a policy."""
    written = read(policy)
    return [
        Case(
            policy=f"tower-breakglass-{policy}",
            title=item["case"],
            who=item["as"],
            request=request(written, item),
            expect=item.get("expect", "refused"),
            refused=item.get("refused"),
        )
        for item in written["cases"]
    ]


def request(written: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    """The base's request with this case's changes."""
    made = deepcopy(written["bases"][item["base"]])
    for key in ("method", "namespace", "name", "query", "object"):
        if key in item:
            made[key] = item[key]
    if "change" in item:
        made["object"] = merged(made["object"], item["change"])
    if "under" in made and made.get("object") is not None:
        made["object"] = {"spec": {made["under"]: [made["object"], *item.get("also", [])]}}
    made["path"] = str(made["path"]).format(namespace=made.get("namespace"), name=made.get("name"))
    return dict(made)


def merged(target: Any, change: Any) -> Any:
    """JSON merge patch (RFC 7386): null removes, lists are replaced whole."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def ask(api: Api, who: str, asked: Mapping[str, Any], *, dry_run: bool = True) -> Answer:
    """Send one case's request."""
    patch = STRATEGIC if asked["method"] == "PATCH" else ""
    if "rolebindings" in asked["path"] and patch:
        patch = "application/merge-patch+json"
    connects = asked["path"].endswith(("/exec", "/attach"))
    return api.ask(
        PEOPLE[who],
        asked["method"],
        asked["path"],
        asked.get("object"),
        kind=patch,
        query=asked.get("query"),
        dry_run=dry_run and not connects,
    )


def shadow(policy: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A policy with this one's scope that warns of every request in it and refuses none: it tells `allowed` from `untouched`."""
    name = policy["metadata"]["name"] + "-looks"
    spec = dict(policy["spec"]) | {"variables": [], "validations": [{"expression": "false", "message": "looked at"}]}
    meta = {"name": name}
    binding = {"policyName": name, "validationActions": ["Warn"]}
    group = "admissionregistration.k8s.io/v1"
    return [
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": meta, "spec": spec},
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": meta, "spec": binding},
    ]


def looked(answer: Answer, policy: str) -> bool:
    """Whether the policy's scope took this request in."""
    return any(f"'{policy}-looks'" in warning for warning in answer.warnings)


def sees(api: Api, case: Case) -> bool:
    """Whether the shadow of the case's policy is at work."""
    return looked(ask(api, case.who, case.request), case.policy)


PLURALS: Final = {
    "Namespace": ("/api/v1", "namespaces"),
    "Pod": ("/api/v1", "pods"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "ValidatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"),
}


def path_of(item: Mapping[str, Any], *, named: bool = True) -> str:
    """Where the object lives in the API."""
    root, plural = PLURALS[item["kind"]]
    namespace = item["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{place}/{plural}" + (f"/{item['metadata']['name']}" if named else "")


def prepare(api: Api, written: Mapping[str, Any]) -> None:
    """Make what the cases need: a leftover of an earlier run is removed first, namespaces of the cluster's own are kept."""
    own = [i for i in written["setup"] if i["kind"] == "Namespace" and "cases" in i["metadata"]["name"]]
    for item in own:
        api.ask(None, "DELETE", path_of(item))
    for item in own:
        processes.wait_until(f"{path_of(item)} to be gone", partial(gone, api, path_of(item)), 60)
    for item in written["setup"]:
        put(api, item)
    for step in written.get("steps", ()):
        answer = ask(api, step["as"], request(written, step), dry_run=False)
        assert answer.ok, answer


def gone(api: Api, path: str) -> bool:
    """Whether there is nothing (any more) at this path."""
    return api.ask(None, "GET", path).status == 404


def put(api: Api, item: Mapping[str, Any]) -> None:
    """Apply one object as administrator; a namespace is ready when its service account is."""
    query = {"fieldManager": "cases", "force": "true"}
    answer = api.ask(None, "PATCH", path_of(item), item, kind="application/apply-patch+yaml", query=query)
    assert answer.ok, answer
    if item["kind"] == "Namespace":
        path = path_of(item) + "/serviceaccounts/default"
        processes.wait_until(path, lambda: api.ask(None, "GET", path).ok, 20)


def remove(api: Api, written: Mapping[str, Any]) -> None:
    """Remove what `prepare` made, and what it said of namespaces that are not the cases' own."""
    for item in written["setup"]:
        if "cases" in item["metadata"]["name"]:
            api.ask(None, "DELETE", path_of(item))
        elif item["kind"] == "Namespace":
            nothing = {"metadata": {"labels": {"tower.hangar/app": None}, "annotations": {"tower.hangar/entity": None}}}
            api.ask(None, "PATCH", path_of(item), nothing, kind="application/merge-patch+json")
