"""`doctor` looks at one cluster with the portal's credential: is it what the site says, may the portal what it should, no more.

Must never: change the cluster: the one write is a dry run, and it must be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from breakglass.adapters.kubernetes import KubernetesFacts, utc_now
from breakglass.adapters.kubernetes_api import Api, endpoint, path
from breakglass.config import ClusterEntry, Site
from breakglass.core import rules
from breakglass.core.grant import ROLES
from breakglass.core.model import Denied, Environment, Tier
from breakglass.ports import PortError, Trouble

AUTHORIZATION = "/apis/authorization.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICY = "tower-breakglass-rolebinding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line: `ok` True, False (with `fix`), or None for what could not be looked at."""

    name: str
    ok: bool | None
    sentence: str
    fix: str = ""


def green(name: str, sentence: str) -> Check:
    """As it should be."""
    return Check(name=name, ok=True, sentence=sentence)


def red(name: str, sentence: str, fix: str) -> Check:
    """Not as it should be, and what to do."""
    return Check(name=name, ok=False, sentence=sentence, fix=fix)


def unknown(name: str, sentence: str) -> Check:
    """Not looked at, and why; proves nothing."""
    return Check(name=name, ok=None, sentence=sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One thing the portal may do at rest, or must not."""

    may: bool
    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    name: str = ""

    @property
    def words(self) -> str:
        """As kubectl says it."""
        return (
            f"{self.verb} {self.resource}"
            + (f"/{self.subresource}" if self.subresource else "")
            + (f" {self.name}" if self.name else "")
        )


_GROUP = "rbac.authorization.k8s.io"
RIGHTS: tuple[Right, ...] = (
    *(Right(may=True, verb="bind", resource="clusterroles", group=_GROUP, name=role) for role in sorted(ROLES.values())),
    *(Right(may=True, verb=verb, resource="rolebindings", group=_GROUP) for verb in ("create", "delete", "get", "list")),
    *(Right(may=True, verb=verb, resource=what) for what in ("namespaces", "nodes", "pods") for verb in ("get", "list", "watch")),
    Right(may=False, verb="bind", resource="clusterroles", group=_GROUP, name="cluster-admin"),
    Right(may=False, verb="escalate", resource="clusterroles", group=_GROUP, name=min(ROLES.values())),
    Right(may=False, verb="create", resource="clusterrolebindings", group=_GROUP),
    Right(may=False, verb="impersonate", resource="users"),
    Right(may=False, verb="get", resource="secrets"),
    Right(may=False, verb="create", resource="serviceaccounts", subresource="token"),
    Right(may=False, verb="create", resource="pods"),
    Right(may=False, verb="delete", resource="pods"),
    Right(may=False, verb="patch", resource="pods", subresource="ephemeralcontainers"),
    *(Right(may=False, verb=verb, resource="pods", subresource=sub) for sub in ("exec", "attach") for verb in ("create", "get")),
)
"""The portal at rest (layer 4): everything it needs, and the worst of what it must not have."""


async def cluster_checks(site: Site, entry: ClusterEntry, environments: Sequence[Environment]) -> list[Check]:
    """Reach it, compare it with the site, ask what the portal may, try a grant that must be refused, look for the image."""
    name = f"cluster {entry.name}"
    try:
        api = Api(endpoint(entry.name, entry.kubeconfig))
    except PortError as error:
        return [red(name, str(error), f"Mend {entry.kubeconfig}: the portal's credential for this cluster.")]
    checks: list[Check] = []
    try:
        checks = await _facts(name, entry, api)
        if checks[0].ok is False:
            return checks
        checks += [await _rights(name, api)]
        checks += [await _refuses(name, api, environments), await _namespaces(name, site, entry, api, environments)]
        checks += [await _image(name, api, site.debug_images[0])]
    except PortError as error:
        return [*checks, red(name, str(error), "Look at the API server and the portal's credential.")]
    finally:
        await api.close()
    return checks


async def _facts(name: str, entry: ClusterEntry, api: Api) -> list[Check]:
    try:
        facts = await KubernetesFacts(api, Tier(entry.tier), utc_now).cluster()
    except PortError as error:
        fix = (
            "Mend the portal's credential."
            if error.trouble is Trouble.UNAUTHORIZED
            else "Look at the network and the API server."
        )
        return [red(name, str(error), fix)]
    checks = [green(name, f"answers, Kubernetes {facts.version[0]}.{facts.version[1]}")]
    if (old := rules.cluster_version(facts)) is not None:
        checks.append(_denied(f"{name} version", old))
    skew = rules.clock(facts)
    apart = abs((facts.server_time - facts.read_at).total_seconds())
    checks.append(green(f"{name} clock", f"{apart:.1f} s apart") if skew is None else _denied(f"{name} clock", skew))
    label = facts.labelled_tier or "nothing"
    agree = facts.labelled_tier == entry.tier
    said = f"registry says {entry.tier}, the cluster's own label says {label}"
    fix = f"kubectl label namespace kube-system tower.hangar/tier={entry.tier}, if it is; else mend site.yaml."
    checks.append(green(f"{name} tier", said) if agree else red(f"{name} tier", said, fix))
    return checks


def _denied(name: str, denied: Denied) -> Check:
    return red(name, denied.sentence, denied.remedy)


async def _rights(name: str, api: Api) -> Check:
    wrong = [right for right in RIGHTS if await _may(api, right) is not right.may]
    missing, over = [r.words for r in wrong if r.may], [r.words for r in wrong if not r.may]
    fix = "Apply the rights that breakglass render writes for this cluster, and remove every other binding of the portal."
    if over:
        return red(f"{name} rights", f"the portal may too much at rest: {', '.join(over)}", fix)
    if missing:
        return red(f"{name} rights", f"the portal may not: {', '.join(missing)}", fix)
    return green(
        f"{name} rights", f"the portal at rest may what it should and none of {sum(not r.may for r in RIGHTS)} things it must not"
    )


async def _may(api: Api, right: Right) -> bool:
    attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
    attributes |= {"subresource": right.subresource} if right.subresource else {}
    attributes |= {"name": right.name} if right.name else {}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.send("ask what the portal may", "POST", f"{AUTHORIZATION}/selfsubjectaccessreviews", review)
    return bool(answer.get("status", {}).get("allowed"))


async def _refuses(name: str, api: Api, environments: Sequence[Environment]) -> Check:
    """Layer 5, by what it does: a grant without a session must be refused by the policy itself, dry run or not."""
    what = f"{name} policies"
    if not environments:
        return unknown(what, "no app runs here, so there is no namespace to try a grant in")
    namespace = environments[0].namespace
    grant: dict[str, Any] = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tower-breakglass-doctor", "namespace": namespace},
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": min(ROLES.values())},
        "subjects": [{"kind": "Group", "apiGroup": _GROUP, "name": "system:authenticated"}],
    }
    fix = "Apply the policies that breakglass render writes for this cluster, bindings included."
    try:
        await api.send(
            "try a grant that must be refused",
            "POST",
            path("namespaces", namespace, "rolebindings", api=RBAC) + "?dryRun=All",
            grant,
        )
    except PortError as error:
        if error.trouble in {Trouble.FORBIDDEN, Trouble.INVALID} and POLICY in str(error):
            return green(what, f"{POLICY} refused a grant to everybody (dry run)")
        return red(what, f"a grant to everybody was refused, but not by {POLICY}: {error}", fix)
    return red(what, "a grant of the debug role to everybody would have been made (dry run)", fix)


async def _namespaces(name: str, site: Site, entry: ClusterEntry, api: Api, environments: Sequence[Environment]) -> Check:
    facts = KubernetesFacts(api, Tier(entry.tier), utc_now)
    for environment in environments:
        found = await facts.namespace(environment.namespace)
        if (denied := rules.namespace(environment, found, site.protected)) is not None:
            return _denied(f"{name} namespaces", denied)
    return green(f"{name} namespaces", f"each of {len(environments)} says itself whose it is")


async def _image(name: str, api: Api, image: str) -> Check:
    """A node that has the image opens a shell at once; one that has not pulls it first. Nodes list their 50 largest."""
    nodes = await api.every("list the nodes", path("nodes"))
    digest = image.rpartition("@")[2]
    held = [
        node for node in nodes if any(digest in str(each.get("names")) for each in node.get("status", {}).get("images") or [])
    ]
    if len(held) == len(nodes):
        return green(f"{name} image", f"on all {len(nodes)} nodes")
    return unknown(f"{name} image", f"seen on {len(held)} of {len(nodes)} nodes: the first shell on the others waits for a pull")
