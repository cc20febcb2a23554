"""Layer 2 without Backstage: what the catalog says about a person and an app now, put before the built-in policy.

Must never: allow anything the catalog could not be asked about, or remember an answer.
"""

from __future__ import annotations

from breakglass.core.codes import Code
from breakglass.core.facts import AppFacts, Relations
from breakglass.core.model import Actor, Denied, EntityRef
from breakglass.core.permissions import Permission, builtin
from breakglass.ports import Catalog, PortError


class BuiltinPermissions:
    """Permissions over the catalog; `admins` and `auditors` are the groups that site.yaml names."""

    def __init__(self, catalog: Catalog, admins: EntityRef, auditors: EntityRef) -> None:
        self._catalog = catalog
        self._admins = admins
        self._auditors = auditors

    async def decide(self, actor: Actor, permission: Permission, app: EntityRef) -> Denied | None:
        """None when allowed, and only then.

        1. The app is in the catalog now. 2. The actor is, and this is what they are to it. 3. The policy's table decides. A
        catalog that does not answer is a no: `cannot_decide`.
        """
        try:
            facts = await self._catalog.app(app)  # (1)
        except PortError as error:
            return _cannot_decide(error)
        if facts is None:
            return Denied(code=Code.UNKNOWN_APP, sentence=f"The catalog knows no app {app}.", remedy="Look it up: breakglass can")
        found = await relations(self._catalog, actor, facts, self._admins, self._auditors)  # (2)
        return found if isinstance(found, Denied) else builtin(found, permission)  # (3)


async def relations(catalog: Catalog, actor: Actor, app: AppFacts, admins: EntityRef, auditors: EntityRef) -> Relations | Denied:
    """What the actor is to the app now. Owner: the person themselves, or a group they are a direct member of, owns it."""
    try:
        person = await catalog.person(actor.person.ref)
    except PortError as error:
        return _cannot_decide(error)
    if person is None:
        return Denied(
            code=Code.NOT_ENTITLED,
            sentence=f"The catalog does not know {actor.person.ref}.",
            remedy="Ask the catalog's owners to add you.",
        )
    mine = person.groups | {person.person.ref}
    return Relations(
        owner=not mine.isdisjoint(app.owners),
        admin=admins in person.groups,
        auditor=auditors in person.groups,
        locked=person.locked,
    )


def _cannot_decide(error: PortError) -> Denied:
    return Denied(
        code=Code.CANNOT_DECIDE,
        sentence=f"Whether you may do that cannot be decided now: {error}.",
        remedy="Try again when the catalog answers.",
    )
