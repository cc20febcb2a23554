"""Layers 4 and 5 as files: the portal's rights and the admission policies of one cluster, as plain YAML with Argo CD's waves.

Pure but for reading the policies that come with the package. Must never: apply anything, or write a policy that depends on an
object somebody could delete (no parameters: digests and names are in the text).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, NamedTuple

import yaml

from breakglass.core import grant
from breakglass.core.model import Tier, is_dns_label
from breakglass.core.workload import is_pinned

POLICIES: Final = ("debug-container", "rolebinding")
PREFIX: Final = "tower-breakglass-"
WAVE: Final = "argocd.argoproj.io/sync-wave"
WAVE_POLICIES, WAVE_BINDINGS, WAVE_RBAC = -10, -9, -5
RBAC_GROUP: Final = "rbac.authorization.k8s.io"
ADMISSION: Final = "admissionregistration.k8s.io/v1"

_PLACEHOLDER = re.compile(r"\{\{ ([a-z_]+) \}\}")
_KINDS: Final = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")

Object = dict[str, Any]
"""A Kubernetes object as JSON."""


class RenderError(ValueError):
    """What is to be rendered can't be; the text says which value and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that differs between clusters. `images`: the pinned debug image and, while rolling out, the one before it.

    `protected_namespaces` are refused beside kube-* and the portal's own. RenderError for anything that isn't what it should be.
    """

    tier: Tier
    portal: str
    images: tuple[str, ...]
    protected_namespaces: frozenset[str] = frozenset({"argocd", "kyverno"})

    def __post_init__(self) -> None:
        """Refuse values that would make a policy say something else than its author meant."""
        try:
            grant.subject(self.portal)
        except ValueError as error:
            raise RenderError(str(error)) from None
        if not 1 <= len(self.images) <= 2 or not all(map(is_pinned, self.images)):
            raise RenderError("the debug image is one or two references by digest: REPOSITORY@sha256:<64 hex digits>")
        if not all(map(is_dns_label, self.protected_namespaces)):
            raise RenderError("a protected namespace is not a namespace's name: use a-z, 0-9 and -")

    @property
    def literals(self) -> Mapping[str, str]:
        """What each placeholder of a policy stands for, as CEL."""
        protected = self.protected_namespaces | {grant.subject(self.portal)["namespace"]}
        return {
            "portal": _cel(self.portal),
            "images": _cel_list(self.images),
            "protected_namespaces": _cel_list(sorted(protected)),
        }


class Policy(NamedTuple):
    """One hand-written policy for one tier: its values filled in, its conditions on one line each."""

    name: str
    constraints: Object
    conditions: list[Object]
    variables: list[Object]
    validations: list[Object]


def render(inputs: Inputs) -> dict[str, str]:
    """Every file of one cluster, by its name: RBAC and each policy with its binding. RenderError says what can't be rendered."""
    wrap = WRAPS.get(inputs.tier)
    if wrap is None:
        raise RenderError(f"there are no policies for {inputs.tier.words} yet: render a flight cluster")
    files = {"rbac.yaml": _text("the portal's rights", rbac(inputs.portal))}
    for name in POLICIES:
        files[f"policy-{name}.yaml"] = _text(f"policies/{name}/policy.yaml", wrap(load(name, inputs)))
    return files


def apply_order(rendered: Mapping[str, str]) -> list[Object]:
    """All objects as Argo CD would apply them: by wave (policies before the rights they hold in check), kind and name."""
    found = [item for text in rendered.values() for item in yaml.safe_load_all(text)]

    def key(item: Object) -> tuple[int, int, str]:
        kind = item["kind"]
        wave = int(item["metadata"]["annotations"][WAVE])
        return wave, _KINDS.index(kind) if kind in _KINDS else len(_KINDS), item["metadata"]["name"]

    return sorted(found, key=key)


# --- policies ---------------------------------------------------------------------------------------------------------


def source(name: str) -> Object:
    """A policy as its author wrote it."""
    text = (resources.files("breakglass") / "policies" / f"{name}.yaml").read_text(encoding="utf-8")
    written: Object = yaml.safe_load(text)
    return written


def load(name: str, inputs: Inputs) -> Policy:
    """A policy for this cluster: placeholders filled in, validations of other tiers left out."""
    written = source(name)

    def named(items: list[Object]) -> list[Object]:
        return [{"name": item["name"], "expression": _filled(item["expression"], inputs)} for item in items]

    return Policy(
        name=written["name"],
        constraints=written["scope"]["matchConstraints"],
        conditions=named(written["scope"]["matchConditions"]),
        variables=named(written["variables"]),
        validations=[
            {"expression": _filled(item["expression"], inputs), "message": item["message"], "reason": "Forbidden"}
            for item in written["validations"]
            if item.get("tier", inputs.tier.value) == inputs.tier.value
        ],
    )


def wrap_native(policy: Policy) -> list[Object]:
    """Flight: a ValidatingAdmissionPolicy and its binding, with the API's defaults spelled out so that what is read equals this.

    Fail: a policy that cannot be evaluated refuses; its scope keeps that to break-glass. Audit: a refusal is in the audit log.
    """
    name = PREFIX + policy.name
    constraints: Object = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, **policy.constraints}
    constraints["resourceRules"] = [rule | {"scope": "*"} for rule in constraints["resourceRules"]]
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": constraints,
        "matchConditions": policy.conditions,
        "variables": policy.variables,
        "validations": policy.validations,
    }
    binding = {"policyName": name, "validationActions": ["Deny", "Audit"]}
    return [
        _object(ADMISSION, "ValidatingAdmissionPolicy", name, WAVE_POLICIES) | {"spec": spec},
        _object(ADMISSION, "ValidatingAdmissionPolicyBinding", name, WAVE_BINDINGS) | {"spec": binding},
    ]


WRAPS: Final[Mapping[Tier, Callable[[Policy], list[Object]]]] = {Tier.FLIGHT: wrap_native}
"""How a policy becomes objects, by tier. A tier without a way is refused."""


# --- rights -----------------------------------------------------------------------------------------------------------


def rbac(portal: str) -> list[Object]:
    """Layer 4: what the portal may do at rest, and the two roles it may bind to itself for a session."""
    who = grant.subject(portal)
    account = _object("v1", "ServiceAccount", who["name"], WAVE_RBAC, namespace=who["namespace"])
    bound = _object(f"{RBAC_GROUP}/v1", "ClusterRoleBinding", "tower-portal", WAVE_RBAC)
    role_ref = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "tower-portal"}
    return [
        _object("v1", "Namespace", who["namespace"], WAVE_RBAC),
        account | {"automountServiceAccountToken": False},
        *_roles(),
        bound | {"roleRef": role_ref, "subjects": [who]},
    ]


def _roles() -> Iterator[Object]:
    rules = {
        "tower-portal": [
            _rule(RBAC_GROUP, "clusterroles", "bind", names=sorted(grant.ROLES.values())),
            _rule(RBAC_GROUP, "rolebindings", "create", "delete", "get", "list"),
            _rule("", "namespaces nodes pods", "get", "list", "watch"),
        ],
        "debug-live": [
            _rule("", "pods/ephemeralcontainers", "patch"),
            _rule("", "pods/attach", "create", "get"),
            _rule("", "pods", "delete", "patch"),
        ],
        "debug-copy": [
            _rule("", "pods", "create", "delete", "patch"),
            _rule("", "pods/attach", "create", "get"),
        ],
    }
    for name, each in rules.items():
        yield _object(f"{RBAC_GROUP}/v1", "ClusterRole", name, WAVE_RBAC) | {"rules": each}


def _rule(group: str, kinds: str, *verbs: str, names: list[str] | None = None) -> Object:
    named = {"resourceNames": names} if names else {}
    return {"apiGroups": [group], "resources": kinds.split(), **named, "verbs": list(verbs)}


# --- text -------------------------------------------------------------------------------------------------------------


def _object(version: str, kind: str, name: str, wave: int, *, namespace: str | None = None) -> Object:
    place = {} if namespace is None else {"namespace": namespace}
    labels = {"app.kubernetes.io/part-of": "tower-breakglass"}
    metadata = {"name": name, **place, "labels": labels, "annotations": {WAVE: str(wave)}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _cel(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.\-_:/@]+", text):
        raise RenderError("a value for a policy has characters that CEL could read as code")
    return f"'{text}'"


def _cel_list(texts: tuple[str, ...] | list[str]) -> str:
    return "[" + ", ".join(map(_cel, texts)) + "]"


def _filled(expression: str, inputs: Inputs) -> str:
    literals = inputs.literals

    def literal(found: re.Match[str]) -> str:
        if found[1] not in literals:
            raise RenderError(f"a policy asks for {found[1]}, which no cluster has: use one of {', '.join(literals)}")
        return literals[found[1]]

    return " ".join(_PLACEHOLDER.sub(literal, expression).split())


class _Folded(str):
    """Text that reads better over several lines."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Block style, lists indented below their key, long text folded."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - PyYAML's own
        """Indent lists below their key."""
        super().increase_indent(flow, False)


_Dumper.add_representer(_Folded, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=">"))


def _text(origin: str, objects: list[Object]) -> str:
    header = f"# Rendered by Tower Break-glass from {origin}: change that and render again.\n"
    folded = [_fold(item) for item in objects]
    return header + yaml.dump_all(folded, Dumper=_Dumper, sort_keys=False, width=110, explicit_start=True, allow_unicode=True)


def _fold(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _fold(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_fold(item) for item in value]
    return _Folded(value) if isinstance(value, str) and len(value) > 90 else value
