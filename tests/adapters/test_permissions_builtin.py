"""Layer 2 without Backstage: only the catalog's word of this moment allows, and its silence is a no."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakglass.adapters.permissions_builtin import BuiltinPermissions, relations
from breakglass.core.codes import Code
from breakglass.core.facts import Relations
from breakglass.core.model import Actor, EntityRef, Person
from breakglass.core.permissions import Permission
from tests.simulators.catalog import demo_catalog
from tests.simulators.faults import Fault
from tests.simulators.people import CHECKOUT

ADMINS, AUDITORS = EntityRef("group:default/tower-admins"), EntityRef("group:default/auditors")


def actor(name: str) -> Actor:
    return Actor(person=Person(ref=EntityRef(f"user:default/{name}")), proof="a test")


async def decide(name: str, permission: Permission, catalog=None, app: EntityRef = CHECKOUT):
    return await BuiltinPermissions(catalog or demo_catalog(), ADMINS, AUDITORS).decide(actor(name), permission, app)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("ana", {"APPROVE", "REQUEST", "REPLAY", "REVOKE", "SESSION_READ"}),
        ("carla", {"APPROVE", "BREAK", "REPLAY", "REPLAY_INPUT", "REVIEW", "REVOKE", "SESSION_READ"}),
        ("eve", {"REPLAY", "SESSION_READ"}),
        ("oz", set()),
    ],
)
async def test_everybody_has_exactly_the_permissions_of_their_relations(name, allowed):
    answers = {permission.name: await decide(name, permission) for permission in Permission}
    assert {permission for permission, denied in answers.items() if denied is None} == allowed
    assert {denied.code for denied in answers.values() if denied is not None} == {Code.NOT_ENTITLED}


async def test_leaving_the_team_counts_at_the_next_question():
    catalog = demo_catalog()
    assert await decide("ana", Permission.REQUEST, catalog) is None
    catalog.add_person("ana")
    assert (await decide("ana", Permission.REQUEST, catalog)).code is Code.NOT_ENTITLED


async def test_a_person_may_own_an_app_themselves():
    catalog = demo_catalog()
    catalog.add_app("checkout", "user:default/oz")
    assert await decide("oz", Permission.REQUEST, catalog) is None
    assert (await decide("ana", Permission.REQUEST, catalog)).code is Code.NOT_ENTITLED


@pytest.mark.parametrize("permission", Permission)
async def test_a_locked_person_may_do_nothing(permission):
    catalog = demo_catalog()
    for name, group in (("ana", "checkout-team"), ("carla", "tower-admins")):
        catalog.add_person(name, group, locked=True)
        assert (await decide(name, permission, catalog)).code is Code.NOT_ENTITLED


@pytest.mark.parametrize("call", ["app", "person"])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.FAIL_BUT_HAPPENED])
async def test_a_catalog_that_does_not_answer_is_a_no(call, fault):
    catalog = demo_catalog()
    catalog.faults.at(call, fault)
    denied = await decide("ana", Permission.REQUEST, catalog)
    assert denied.code is Code.CANNOT_DECIDE
    assert denied.sentence.startswith(f"Whether you may do that cannot be decided now: {call} ")


async def test_somebody_the_catalog_does_not_know_may_nothing():
    denied = await decide("nobody", Permission.REQUEST)
    assert (denied.code, denied.sentence) == (Code.NOT_ENTITLED, "The catalog does not know user:default/nobody.")


@pytest.mark.parametrize("app", ["component:default/nothing", "component:evil/checkout"])
async def test_an_app_the_catalog_does_not_know_is_no_ones(app):
    assert (await decide("carla", Permission.BREAK, app=EntityRef(app))).code is Code.UNKNOWN_APP


async def test_relations_are_those_of_direct_groups_and_a_group_name_in_an_alias_gives_nothing():
    catalog = demo_catalog()
    catalog.add_person("oz", aliases=frozenset({"group:default/tower-admins", "group:default/checkout-team"}))
    app = await catalog.app(CHECKOUT)
    found = await relations(catalog, actor("oz"), app, ADMINS, AUDITORS)
    assert found == Relations(owner=False, admin=False, auditor=False, locked=False)
    owners = await relations(catalog, actor("ana"), app, ADMINS, AUDITORS)
    assert owners == replace(found, owner=True)
