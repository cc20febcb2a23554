"""Layer 3's eyes: every fact a rule needs, read now from the catalog, cicd.yaml and the cluster; unreadable means no.

Must never: cache a fact, or read one from a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from breakglass.core import rules, targets
from breakglass.core import session as machine
from breakglass.core.codes import Code
from breakglass.core.facts import AppFacts, ClusterFacts, PersonFacts, Relations
from breakglass.core.model import Actor, Denied, EntityRef, Environment, Person, Request, Sid, State, entity_ref
from breakglass.core.permissions import Capability, Permission, Situation, builtin, capabilities
from breakglass.core.targets import Target
from breakglass.ports import Cluster, PortError
from breakglass.tower import Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An actor before an app, as the catalog has both at this moment."""

    app: AppFacts
    person: PersonFacts
    relations: Relations


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentCapabilities:
    """One environment as an actor may use it now; `environment` is a refusal where it is itself in doubt."""

    name: str
    environment: Environment | Denied
    capabilities: tuple[Capability, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCapabilities:
    """An app before an actor: every action, allowed or not and why, in every environment."""

    app: AppFacts
    relations: Relations
    environments: tuple[EnvironmentCapabilities, ...]
    open_session: Sid | None


_OWING = frozenset({State.ACCOUNT_DUE})


class Judge:
    """Gathers facts and puts them before the rules. Every method answers with a value or a `Denied`, never an exception."""

    def __init__(self, tower: Tower) -> None:
        self._tower = tower

    async def app(self, actor: Actor, app: str, permission: Permission) -> Judged | Denied:
        """1. The app exists. 2. Layer 2 allows the permission. 3. The catalog's relations, for layer 3's own look."""
        seen = await self.relations(actor, app)  # (1) (3)
        if isinstance(seen, Denied):
            return seen
        try:
            denied = await self._tower.permissions.decide(actor, permission, seen.app.app)  # (2)
        except PortError as error:
            return cannot_decide("the permission", error)
        return denied or builtin(seen.relations, permission) or seen

    async def relations(self, actor: Actor, app: str) -> Judged | Denied:
        """What the actor is to the app right now, without asking for any permission."""
        ref = entity_ref(app)
        try:
            facts = await self._tower.catalog.app(ref) if ref else None
            if ref is None or facts is None:
                return Denied(
                    code=Code.UNKNOWN_APP, sentence=f"The catalog knows no app {app[:80]!r}.", remedy="Look it up: breakglass can"
                )
            person = await self._tower.catalog.person(actor.person.ref)
        except PortError as error:
            return cannot_decide("who owns this app", error)
        if person is None:
            return Denied(
                code=Code.NOT_ENTITLED,
                sentence=f"The catalog does not know {actor.person.ref}.",
                remedy="Ask the catalog's owners to add you.",
            )
        mine = frozenset({person.person.ref}) | person.groups
        relations = Relations(
            owner=not mine.isdisjoint(facts.owners),
            admin=self._tower.settings.admins in mine,
            auditor=self._tower.settings.auditors in mine,
            locked=person.locked,
        )
        return Judged(app=facts, person=person, relations=relations)

    async def may_break(self, actor: Actor, requester: Person | None = None) -> Denied | None:
        """Somebody else is there to review a broken glass, and no account is owed by this admin."""
        try:
            admins = await self._tower.catalog.members(self._tower.settings.admins)
            owed = await self._owed(actor)
        except PortError as error:
            return cannot_decide("whether a broken glass can be reviewed", error)
        return rules.may_break(actor.person, requester or actor.person, admins, owed)

    async def _owed(self, actor: Actor) -> list[Sid]:
        """The broken glasses this person has not accounted for yet."""
        owing = await self._tower.store.find(states=_OWING)
        return [session.sid for session in owing if session.glass is not None and session.glass.breaker.same(actor.person)]

    async def environment(self, judged: Judged, name: str) -> Environment | Denied:
        """The environment as cicd.yaml has it, after tier, cluster and namespace have agreed to it."""
        try:
            environments = await self._tower.deployments.environments(judged.app)
        except PortError as error:
            return cannot_decide("where this app runs", error)
        found = next((e for e in environments if e.name == name), None)
        if found is None:
            names = ", ".join(sorted(e.name for e in environments)) or "none"
            return Denied(
                code=Code.UNKNOWN_ENVIRONMENT,
                sentence=f"{judged.app.app} has no environment {name[:80]!r}.",
                remedy=f"Its environments: {names}.",
            )
        return await self.cluster_agrees(found) or found

    async def cluster_agrees(self, environment: Environment) -> Denied | None:
        """Version, clock and tier of the cluster, and whose the namespace is."""
        cluster = self._tower.clusters.get(environment.cluster)
        if cluster is None:
            return Denied(
                code=Code.TIER_UNKNOWN,
                sentence=f"Tower does not know the cluster {environment.cluster!r} that cicd.yaml names.",
                remedy="Ask the platform team to register it in site.yaml.",
            )
        try:
            facts = await cluster.facts.cluster()
            namespace = await cluster.facts.namespace(environment.namespace)
        except PortError as error:
            return unreachable(cluster, error)
        tier = rules.tier(environment, facts)
        return (
            rules.cluster_version(facts)
            or rules.clock(facts)
            or (tier if isinstance(tier, Denied) else None)
            or rules.namespace(environment, namespace, self._tower.settings.protected_namespaces)
        )

    async def target(self, request: Request, *, wanted: str | None = None, last_uid: str | None = None) -> Target | Denied:
        """The pod a shell would open on now: `wanted`, or that of the session's last shell, or the one the page is about."""
        cluster = self._tower.clusters[request.cluster]
        try:
            pods = await cluster.facts.pods(request.namespace)
        except PortError as error:
            return unreachable(cluster, error)
        try:
            others = await self._tower.store.find(states=targets.IN_A_POD)
        except PortError as error:
            return cannot_decide("who else is in this app's pods", error)
        return targets.choose(pods, request, wanted=wanted, last_uid=last_uid, others=others)

    async def evidence(self, request: Request) -> Mapping[str, Any] | Denied:
        """What goes into the case file about the cluster: its own label, version, clock against ours."""
        cluster = self._tower.clusters[request.cluster]
        try:
            facts: ClusterFacts = await cluster.facts.cluster()
        except PortError as error:
            return unreachable(cluster, error)
        return {
            "tier": {"cicd": request.tier.value, "registry": facts.registered_tier.value, "cluster_label": facts.labelled_tier},
            "cluster_version": f"{facts.version[0]}.{facts.version[1]}",
            "clocks": {"api_server": facts.server_time.isoformat(), "tower": facts.read_at.isoformat()},
        }

    async def capabilities(self, judged: Judged) -> AppCapabilities | Denied:
        """Per environment what may be done and why not; layers 2 and 3 as they stand now, decided again by every route."""
        actor = Actor(person=judged.person.person, proof="")
        try:
            permitted = {
                permission: await self._tower.permissions.decide(actor, permission, judged.app.app)
                or builtin(judged.relations, permission)
                for permission in Permission
            }
            environments = await self._tower.deployments.environments(judged.app)
            admins = await self._tower.catalog.members(self._tower.settings.admins)
            mine = [s for s in await self._tower.store.find(states=machine.OPEN_STATES) if s.request.requester.same(actor.person)]
            owed = await self._owed(actor)
        except PortError as error:
            return cannot_decide("what you may do", error)
        own = mine[0] if mine else None
        found = []
        for environment in environments:
            here = own if own and (own.request.app, own.request.environment) == (judged.app.app, environment.name) else None
            situation = Situation(
                actor=actor.person,
                permitted=permitted,
                environment=await self.cluster_agrees(environment),
                open_session=own.sid if own else None,
                admins=tuple(admins),
                owed=tuple(owed),
                now=self._tower.clock.now(),
                session=here,
            )
            found.append(
                EnvironmentCapabilities(name=environment.name, environment=environment, capabilities=capabilities(situation))
            )
        return AppCapabilities(
            app=judged.app, relations=judged.relations, environments=tuple(found), open_session=own.sid if own else None
        )

    async def answerers(self, judged_app: AppFacts, requester_names: frozenset[str]) -> tuple[EntityRef, ...]:
        """Who could say yes now: owners and admins, never the requester. Empty when the catalog cannot say."""
        found: dict[EntityRef, None] = {}
        try:
            for ref in [*sorted(judged_app.owners), self._tower.settings.admins]:
                people = (
                    [p.person for p in [await self._tower.catalog.person(ref)] if p]
                    if ref.startswith("user:")
                    else await self._tower.catalog.members(ref)
                )
                found |= {p.ref: None for p in people if p.names.isdisjoint(requester_names)}
        except PortError:
            return ()
        return tuple(found)


def as_approved(request: Request, environment: Environment) -> Denied | None:
    """Whether cicd.yaml still says what was approved: another cluster, namespace or tier is another request."""
    now = (environment.cluster, environment.namespace, environment.tier, environment.after_process_access)
    if now == (request.cluster, request.namespace, request.tier, request.after_process_access):
        return None
    return Denied(
        code=Code.DIGEST_MISMATCH,
        sentence=f"cicd.yaml has changed where {request.environment} runs since this was approved.",
        remedy="Ask again: the approval was for what it said then.",
    )


def cannot_decide(what: str, error: PortError) -> Denied:
    """Doubt is a no, said as what it is."""
    return Denied(
        code=Code.CANNOT_DECIDE,
        sentence=f"Tower cannot find out {what}: {error}.",
        remedy="Repeat once it can be reached; the on-call line is below.",
    )


def unreachable(cluster: Cluster, error: PortError) -> Denied:
    """The cluster does not answer Tower."""
    return Denied(
        code=Code.CLUSTER_UNREACHABLE,
        sentence=f"Cluster {cluster.name} does not answer Tower: {error}.",
        remedy="Operators with kubectl are not affected; see docs/operate.md.",
    )
