"""The contract of Catalog, on the simulator and on the demo's `catalog-info.yaml`: both describe the same people."""

from __future__ import annotations

import pytest

from breakglass.core.facts import AppFacts, PersonFacts
from breakglass.core.model import EntityRef, Person


async def test_an_app_has_its_owners(catalog):
    found = await catalog.app(EntityRef("component:default/checkout"))
    assert found == AppFacts(app="component:default/checkout", owners=frozenset({"group:default/checkout-team"}))


@pytest.mark.parametrize("ref", ["component:default/nothing", "component:other/checkout", "group:default/checkout-team", ""])
async def test_what_is_not_an_app_is_none(catalog, ref):
    assert await catalog.app(EntityRef(ref)) is None


async def test_apps_come_by_reference(catalog):
    assert [one.app for one in await catalog.apps()] == ["component:default/checkout", "component:default/ledger"]


async def test_a_person_has_aliases_and_direct_groups(catalog):
    assert await catalog.person(EntityRef("user:default/ana")) == PersonFacts(
        person=Person(ref=EntityRef("user:default/ana"), aliases=frozenset({"ana@example.test"})),
        groups=frozenset({EntityRef("group:default/checkout-team")}),
    )


@pytest.mark.parametrize("ref", ["user:default/nobody", "user:other/ana", "group:default/checkout-team", "ana"])
async def test_somebody_the_catalog_does_not_know_is_none(catalog, ref):
    assert await catalog.person(EntityRef(ref)) is None


async def test_an_outsider_is_known_and_in_no_group(catalog):
    assert (await catalog.person(EntityRef("user:default/oz"))).groups == frozenset()


async def test_members_are_the_direct_ones(catalog):
    assert [one.ref for one in await catalog.members(EntityRef("group:default/tower-admins"))] == [
        "user:default/carla",
        "user:default/dora",
    ]


async def test_a_group_without_people_and_an_unknown_one_have_no_members(catalog):
    assert list(await catalog.members(EntityRef("group:default/ledger-team"))) == []
    assert list(await catalog.members(EntityRef("group:default/nothing"))) == []
