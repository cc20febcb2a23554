"""A catalog in memory: facts as they are now, changed by assigning, with faults on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from breakglass.core.facts import AppFacts, PersonFacts
from breakglass.core.model import EntityRef, Person
from tests.simulators.faults import Faults, around


@dataclass(slots=True)
class MemoryCatalog:
    """Catalog; fill `apps_by_ref` and `people_by_ref`."""

    faults: Faults = field(default_factory=Faults)
    apps_by_ref: dict[EntityRef, AppFacts] = field(default_factory=dict)
    people_by_ref: dict[EntityRef, PersonFacts] = field(default_factory=dict)

    def add_app(self, name: str, *owners: str, cicd: str | None = None) -> EntityRef:
        """A component `component:default/<name>` owned by these full references."""
        ref = EntityRef(f"component:default/{name}")
        self.apps_by_ref[ref] = AppFacts(app=ref, owners=frozenset(map(EntityRef, owners)), cicd=cicd)
        return ref

    def add_person(self, name: str, *groups: str, aliases: frozenset[str] = frozenset(), locked: bool = False) -> Person:
        """A user `user:default/<name>`, member of these groups by name, also known as `<name>@example.test`."""
        ref = EntityRef(f"user:default/{name}")
        person = Person(ref=ref, aliases=frozenset({f"{name}@example.test"}) | aliases)
        refs = frozenset(EntityRef(f"group:default/{group}") for group in groups)
        self.people_by_ref[ref] = PersonFacts(person=person, groups=refs, locked=locked)
        return person

    async def app(self, ref: EntityRef) -> AppFacts | None:
        """The component."""
        with around(await self.faults.before("app"), "app"):
            return self.apps_by_ref.get(ref)

    async def apps(self) -> Sequence[AppFacts]:
        """All, by reference."""
        with around(await self.faults.before("apps"), "apps"):
            return [facts for _, facts in sorted(self.apps_by_ref.items())]

    async def person(self, ref: EntityRef) -> PersonFacts | None:
        """The person."""
        with around(await self.faults.before("person"), "person"):
            return self.people_by_ref.get(ref)

    async def members(self, group: EntityRef) -> Sequence[Person]:
        """Direct members, one for each human."""
        with around(await self.faults.before("members"), "members"):
            humans: list[Person] = []
            for _, facts in sorted(self.people_by_ref.items()):
                if group in facts.groups and not any(facts.person.same(other) for other in humans):
                    humans.append(facts.person)
            return humans


def demo_catalog() -> MemoryCatalog:
    """Checkout, owned by ana and ben; ledger, owned by nobody; carla and dora are admins, eve an auditor, oz nothing."""
    catalog = MemoryCatalog()
    catalog.add_app("checkout", "group:default/checkout-team")
    catalog.add_app("ledger", "group:default/ledger-team")
    for name, groups in {
        "ana": ["checkout-team"],
        "ben": ["checkout-team"],
        "carla": ["tower-admins"],
        "dora": ["tower-admins"],
        "eve": ["auditors"],
        "oz": [],
    }.items():
        catalog.add_person(name, *groups)
    return catalog
