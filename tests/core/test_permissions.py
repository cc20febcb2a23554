"""Layer 2: anyone but owners, approvers, admins. The built-in policy, cell by cell, and the words people get."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakglass.core.codes import Code
from breakglass.core.facts import Relations
from breakglass.core.model import Denied, Session, Sid, State, no
from breakglass.core.permissions import Action, Capability, Permission, Situation, builtin, capabilities
from tests.core.builders import ANA, ASKED, BEN, BROKEN, CARLA, EVERY, NOW, at, person

NOTHING = Relations(owner=False, admin=False, auditor=False)
OWNER, ADMIN, AUDITOR = (replace(NOTHING, **{who: True}) for who in ("owner", "admin", "auditor"))

MAY: dict[Permission, str] = {
    Permission.REQUEST: "owner",
    Permission.APPROVE: "owner admin",
    Permission.BREAK: "admin",
    Permission.SESSION_READ: "owner admin auditor",
    Permission.REPLAY: "owner admin auditor",
    Permission.REPLAY_INPUT: "admin",
    Permission.REVOKE: "owner admin",
    Permission.REVIEW: "admin",
}
"""DESIGN section 4, written a second time by hand."""


@pytest.mark.parametrize("permission", Permission)
@pytest.mark.parametrize("relation", ["owner", "admin", "auditor", "nothing"])
def test_the_built_in_policy_is_the_designs_table(permission: Permission, relation: str):
    relations = NOTHING if relation == "nothing" else replace(NOTHING, **{relation: True})
    denied = builtin(relations, permission)
    if relation in MAY[permission].split():
        assert denied is None
    else:
        assert denied is not None
        assert denied.code is Code.NOT_ENTITLED
        assert denied.sentence.startswith("Only ")
        assert denied.remedy


@pytest.mark.parametrize("permission", Permission)
def test_a_locked_person_may_do_nothing_whatever_they_are(permission: Permission):
    everything = Relations(owner=True, admin=True, auditor=True, locked=True)
    denied = builtin(everything, permission)
    assert denied is not None
    assert "locked" in denied.sentence


@given(owner=st.booleans(), admin=st.booleans(), auditor=st.booleans(), permission=st.sampled_from(Permission))
def test_being_more_never_takes_a_right_away(owner: bool, admin: bool, auditor: bool, permission: Permission):
    relations = Relations(owner=owner, admin=admin, auditor=auditor)
    held = {name for name in ("owner", "admin", "auditor") if getattr(relations, name)}
    assert (builtin(relations, permission) is None) == bool(held & set(MAY[permission].split()))


def test_a_permission_without_a_row_is_nobodys():
    for permission in Permission:
        denied = builtin(Relations(owner=True, admin=True, auditor=True), permission, {})
        assert denied is not None
        assert denied.sentence == "Nobody may do that."


def test_an_admin_who_owns_nothing_is_told_to_break_the_glass():
    denied = builtin(ADMIN, Permission.REQUEST)
    assert denied is not None
    assert denied.sentence == "Only owners of the app may ask for a session."
    assert "--break-glass" in denied.remedy


def test_an_outsider_is_not_told_to_break_what_only_admins_may_break():
    for relations in (NOTHING, AUDITOR):
        denied = builtin(relations, Permission.REQUEST)
        assert denied is not None
        assert denied.remedy == "Ask one of them. Who owns the app stands in the catalog."


def test_permissions_stay_in_alphabetical_order():
    names = [permission.name for permission in Permission]
    assert names == sorted(names)


# --- what may I do? ---------------------------------------------------------------------------------------------------

DAN = person("dan")


def situation(relations: Relations = OWNER, **fields: Any) -> Situation:
    defaults: dict[str, Any] = {
        "actor": BEN,
        "permitted": {permission: builtin(relations, permission) for permission in Permission},
        "environment": None,
        "open_session": None,
        "admins": (CARLA, DAN),
        "owed": (),
        "now": NOW,
    }
    return Situation(**defaults | fields)


def able(found: Situation) -> dict[Action, Capability]:
    return {capability.action: capability for capability in capabilities(found)}


def allowed(found: Situation) -> set[str]:
    return {capability.action.value for capability in capabilities(found) if capability.allowed}


def test_every_action_is_answered_in_words():
    for relations, session in product((NOTHING, OWNER, ADMIN, AUDITOR), (None, *EVERY.values())):
        found = capabilities(situation(relations, session=session))
        assert [capability.action for capability in found] == list(Action)
        for capability in found:
            assert capability.sentence.endswith(".")
            assert capability.who_could
            assert capability.allowed == (capability.code is None)
            assert capability.allowed or capability.remedy


@pytest.mark.parametrize(
    ("relations", "expected"),
    [
        (OWNER, {"request", "approve", "end", "watch", "replay"}),
        (ADMIN, {"break", "approve", "end", "watch", "replay", "replay_input", "review"}),
        (AUDITOR, {"watch", "replay"}),
        (NOTHING, set()),
    ],
)
def test_without_a_session_each_may_what_the_table_says(relations: Relations, expected: set[str]):
    assert allowed(situation(relations)) == expected


def test_no_answer_from_layer_2_is_a_no_to_everything():
    for session in (None, *EVERY.values()):
        assert allowed(situation(permitted={}, session=session)) == set()


def test_an_empty_rule_set_refuses():
    found = capabilities(situation(Relations(owner=True, admin=True, auditor=True)), {})
    assert {capability.code for capability in found} == {Code.CANNOT_DECIDE}


@pytest.mark.parametrize(
    ("fields", "action", "code"),
    [
        ({"environment": no(Code.TIER_CONFLICT, "In doubt.", "Correct it.")}, Action.REQUEST, Code.TIER_CONFLICT),
        ({"environment": no(Code.TIER_CONFLICT, "In doubt.", "Correct it.")}, Action.BREAK, Code.TIER_CONFLICT),
        ({"open_session": Sid("zzzzzzzzzz")}, Action.REQUEST, Code.SESSION_OPEN_ELSEWHERE),
        ({"open_session": Sid("zzzzzzzzzz")}, Action.BREAK, Code.SESSION_OPEN_ELSEWHERE),
        ({"admins": (BEN,)}, Action.BREAK, Code.TOO_FEW_ADMINS),
        ({"owed": (Sid("zzzzzzzzzz"),)}, Action.BREAK, Code.ACCOUNT_OWED),
        ({}, Action.OPEN, Code.NOT_FOUND),
        ({"session": ASKED, "actor": ANA}, Action.APPROVE, Code.SELF_APPROVAL),
        ({"session": ASKED, "actor": ANA}, Action.OPEN, Code.WRONG_STATE),
        ({"session": EVERY[State.APPROVED]}, Action.APPROVE, Code.ALREADY_DECIDED),
        ({"session": EVERY[State.APPROVED]}, Action.BREAK, Code.WRONG_STATE),
        ({"session": EVERY[State.APPROVED]}, Action.OPEN, Code.NOT_ENTITLED),
        ({"session": EVERY[State.SEALED]}, Action.END, Code.WRONG_STATE),
        ({"session": ASKED, "now": at(60)}, Action.APPROVE, Code.REQUEST_EXPIRED),
        ({"session": EVERY[State.REVIEW_DUE], "actor": CARLA}, Action.REVIEW, Code.SELF_REVIEW),
        ({"session": EVERY[State.ACCOUNT_DUE], "actor": DAN}, Action.REVIEW, Code.WRONG_STATE),
    ],
)
def test_a_capability_says_the_rule_that_is_against_it(fields: dict[str, Any], action: Action, code: Code):
    everything = Relations(owner=True, admin=True, auditor=True)
    capability = able(situation(everything, **fields))[action]
    assert (capability.allowed, capability.code) == (False, code)


@pytest.mark.parametrize(
    ("relations", "session", "opens"),
    [
        (OWNER, EVERY[State.APPROVED], True),
        (NOTHING, EVERY[State.APPROVED], False),
        (ADMIN, EVERY[State.APPROVED], False),
        (ADMIN, BROKEN, True),
        (OWNER, BROKEN, False),
    ],
)
def test_a_requester_who_is_not_entitled_any_more_does_not_open(relations: Relations, session: Session, opens: bool):
    assert able(situation(relations, session=session, actor=ANA))[Action.OPEN].allowed is opens


def test_ones_own_session_can_be_ended_even_after_the_ownership_is_lost():
    assert able(situation(NOTHING, session=EVERY[State.ACTIVE], actor=ANA))[Action.END].allowed
    assert not able(situation(NOTHING, session=EVERY[State.ACTIVE], actor=BEN))[Action.END].allowed


def test_who_could_is_named_beside_every_no():
    found = able(situation(NOTHING, session=EVERY[State.ACTIVE]))
    assert found[Action.APPROVE].who_could == ("owners of the app", "platform admins")
    assert found[Action.END].who_could == ("its requester", "owners of the app", "platform admins")
    assert found[Action.OPEN].who_could == ("its requester",)


def test_a_refusal_of_layer_2_is_passed_on_word_for_word():
    denied = Denied(code=Code.CANNOT_DECIDE, sentence="Backstage does not answer.", remedy="Repeat.")
    found = able(situation(permitted=dict.fromkeys(Permission, denied)))
    assert (found[Action.REQUEST].code, found[Action.REQUEST].sentence) == (Code.CANNOT_DECIDE, denied.sentence)
