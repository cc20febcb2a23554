"""Layer 3: wrong words, wrong tier, wrong namespace, wrong person. One field changed from what is accepted, a case each."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakglass.core import rules
from breakglass.core import session as machine
from breakglass.core.codes import Code
from breakglass.core.facts import ClusterFacts, NamespaceFacts
from breakglass.core.model import Denied, Environment, Person, Session, Sid, State, Tier
from tests.core.builders import (
    ANA,
    ANA_AGAIN,
    ASKED,
    BEN,
    BROKEN,
    CARLA,
    CLOSED,
    CLUSTER,
    ENVIRONMENT,
    EVERY,
    GROUND,
    NAMESPACE,
    NOW,
    OZ,
    REQUEST,
    after,
    at,
    person,
)


def code(denied: object) -> Code | None:
    """The refusal's code; every refusal is a sentence with a remedy."""
    if denied is None or denied in set(Tier):
        return None
    assert isinstance(denied, Denied)
    assert denied.sentence.endswith("."), denied
    assert denied.remedy, denied
    return denied.code


# --- the request's own words ------------------------------------------------------------------------------------------

ASK: dict[str, Any] = {"reason": "checkout answers 502", "minutes": 30, "container": None, "mode": "live"}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("reason", "checkout answers 502", None),
        ("reason", "12345", None),
        ("reason", "x" * 500, None),
        ("reason", " " + "x" * 500 + "\n", None),
        ("reason", "שרת התשלומים נפל", None),
        ("reason", "سرور پرداخت نمی‌شود", None),
        ("reason", "all down 👩‍🚒🔥", None),
        ("reason", "", Code.REASON_MISSING),
        ("reason", "1234", Code.REASON_MISSING),
        ("reason", "   a   b   ", Code.REASON_MISSING),
        ("reason", "\u200b\u200b\u200b\u200b\u200b\u2060", Code.REASON_MISSING),
        ("reason", "x" * 501, Code.BAD_REQUEST),
        ("reason", "x" * 1_000_000, Code.BAD_REQUEST),
        ("reason", "fine\nApproved by: ben", Code.BAD_REQUEST),
        ("reason", "clear \x1b[2J screen", Code.BAD_REQUEST),
        ("reason", "null \x00 byte", Code.BAD_REQUEST),
        ("reason", "c1 \x9b31m control", Code.BAD_REQUEST),
        ("reason", "half a \ud83d surrogate", Code.BAD_REQUEST),
        ("reason", "line\u2028separator", Code.BAD_REQUEST),
        ("reason", "paragraph\u2029separator", Code.BAD_REQUEST),
        *[("reason", f"bidi {char} control", Code.BAD_REQUEST) for char in "\u061c\u200e\u200f\u202a\u202e\u2066\u2069"],
        ("minutes", 10, None),
        ("minutes", 60, None),
        ("minutes", 9, Code.BAD_REQUEST),
        ("minutes", 61, Code.BAD_REQUEST),
        ("minutes", -30, Code.BAD_REQUEST),
        ("container", "web", None),
        ("container", "", Code.BAD_REQUEST),
        ("container", "Web", Code.BAD_REQUEST),
        ("container", "web\n", Code.BAD_REQUEST),
        ("container", "../web", Code.BAD_REQUEST),
        ("container", "x" * 64, Code.BAD_REQUEST),
        ("mode", "copy", Code.MODE_UNAVAILABLE),
        ("mode", "Live", Code.BAD_REQUEST),
        ("mode", "root", Code.BAD_REQUEST),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_words(field: str, value: object, expected: Code | None):
    assert code(rules.ask(**ASK | {field: value})) is expected


@given(reason=st.text(st.characters(), max_size=600), minutes=st.integers(), container=st.none() | st.text(), mode=st.text())
def test_no_field_of_a_request_can_make_the_rules_fail_or_put_a_control_into_a_sentence(
    reason: str, minutes: int, container: str | None, mode: str
):
    denied = rules.ask(reason=reason, minutes=minutes, container=container, mode=mode)
    if denied is not None:
        assert denied.sentence.isprintable()
    else:
        reason.encode()
        assert reason.strip().splitlines() == [reason.strip()]


# --- where ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "cluster", "expected"),
    [
        ({}, {}, None),
        ({"tier": Tier.GROUND}, {"registered_tier": Tier.GROUND, "labelled_tier": "ground"}, None),
        ({}, {"labelled_tier": None}, Code.TIER_UNKNOWN),
        ({}, {"labelled_tier": ""}, Code.TIER_UNKNOWN),
        ({}, {"labelled_tier": "Flight"}, Code.TIER_UNKNOWN),
        ({}, {"labelled_tier": "staging"}, Code.TIER_UNKNOWN),
        ({}, {"labelled_tier": "ground"}, Code.TIER_CONFLICT),
        ({}, {"registered_tier": Tier.GROUND}, Code.TIER_CONFLICT),
        ({"tier": Tier.GROUND}, {}, Code.TIER_CONFLICT),
        ({"tier": Tier.GROUND}, {"registered_tier": Tier.GROUND}, Code.TIER_CONFLICT),
        ({"tier": Tier.GROUND}, {"labelled_tier": "ground"}, Code.TIER_CONFLICT),
        ({"cluster": "ground-1"}, {}, Code.CANNOT_DECIDE),
    ],
)
def test_a_production_cluster_never_passes_for_ground(
    environment: dict[str, Any], cluster: dict[str, Any], expected: Code | None
):
    found = rules.tier(replace(ENVIRONMENT, **environment), replace(CLUSTER, **cluster))
    assert code(found) is expected


@pytest.mark.parametrize(("label", "words"), [(None, "says no tier."), ("staging", "says a tier there is not (staging).")])
def test_a_cluster_without_a_tier_is_told_from_one_with_a_wrong_word(label: str | None, words: str):
    denied = rules.tier(ENVIRONMENT, replace(CLUSTER, labelled_tier=label))
    assert isinstance(denied, Denied)
    assert denied.sentence.endswith(words)
    assert denied.remedy.endswith("tower.hangar/tier=flight")


def test_a_tier_conflict_names_all_three_sources():
    denied = rules.tier(replace(ENVIRONMENT, tier=Tier.GROUND), CLUSTER)
    assert isinstance(denied, Denied)
    assert denied.sentence == (
        "The tier of production is in doubt: cicd.yaml says ground, Tower's registry says flight for cluster flight-1, "
        "and the cluster's own label says flight."
    )


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, None), (5, None), (-5, None), (5.1, Code.CLOCK_SKEW), (-6, Code.CLOCK_SKEW)]
)
def test_clocks_more_than_five_seconds_apart_are_refused(seconds: float, expected: Code | None):
    facts: ClusterFacts = replace(CLUSTER, server_time=NOW + timedelta(seconds=seconds))
    assert code(rules.clock(facts)) is expected


@pytest.mark.parametrize(
    ("version", "expected"), [((1, 35), None), ((1, 37), None), ((2, 0), None), ((1, 34), Code.CLUSTER_TOO_OLD)]
)
def test_a_cluster_whose_attach_needs_only_get_is_refused(version: tuple[int, int], expected: Code | None):
    assert code(rules.cluster_version(replace(CLUSTER, version=version))) is expected


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("checkout", NAMESPACE, None),
        ("checkout", None, Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, app_label=None), Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, entity=None), Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, app_label="Checkout"), Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, app_label="payments"), Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, entity="component:other/checkout"), Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, entity="component:default/checkout "), Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, entity="checkout"), Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, terminating=True), Code.NAMESPACE_NOT_APPS),
        ("checkout", replace(NAMESPACE, name="payments"), Code.NAMESPACE_NOT_APPS),
        ("kube-system", replace(NAMESPACE, name="kube-system"), Code.PROTECTED_NAMESPACE),
        ("kube-anything", replace(NAMESPACE, name="kube-anything"), Code.PROTECTED_NAMESPACE),
        ("kyverno", replace(NAMESPACE, name="kyverno"), Code.PROTECTED_NAMESPACE),
        ("argocd", replace(NAMESPACE, name="argocd"), Code.PROTECTED_NAMESPACE),
        ("tower", replace(NAMESPACE, name="tower"), Code.PROTECTED_NAMESPACE),
        ("vault", replace(NAMESPACE, name="vault"), Code.PROTECTED_NAMESPACE),
    ],
)
def test_a_catalog_twin_or_a_mislabelled_namespace_gets_no_session(
    name: str, facts: NamespaceFacts | None, expected: Code | None
):
    environment: Environment = replace(ENVIRONMENT, namespace=name)
    assert code(rules.namespace(environment, facts, frozenset({"vault"}))) is expected


def test_a_wrong_namespace_label_is_quoted_with_its_cure():
    denied = rules.namespace(ENVIRONMENT, replace(NAMESPACE, app_label="chekout"))
    assert isinstance(denied, Denied)
    assert "tower.hangar/app is chekout" in denied.sentence
    assert "tower.hangar/app=checkout" in denied.remedy


# --- who --------------------------------------------------------------------------------------------------------------

YES = REQUEST.digest


@pytest.mark.parametrize(
    ("session", "who", "digest", "minutes", "expected"),
    [
        (ASKED, BEN, YES, 0, None),
        (ASKED, BEN, YES, 59, None),
        (ASKED, BEN, YES, 60, Code.REQUEST_EXPIRED),
        (ASKED, BEN, "sha256:" + "0" * 64, 0, Code.DIGEST_MISMATCH),
        (ASKED, BEN, YES.upper(), 0, Code.DIGEST_MISMATCH),
        (ASKED, BEN, "", 0, Code.DIGEST_MISMATCH),
        (ASKED, ANA, YES, 0, Code.SELF_APPROVAL),
        (ASKED, ANA_AGAIN, YES, 0, Code.SELF_APPROVAL),
        *[(EVERY[state], BEN, YES, 0, Code.ALREADY_DECIDED) for state in State if state is not State.REQUESTED],
    ],
)
def test_a_yes_counts_once_in_time_for_this_request_and_from_somebody_else(
    session: Session, who: Person, digest: str, minutes: int, expected: Code | None
):
    assert code(rules.may_approve(session, who, digest, at(minutes))) is expected


@given(state=st.sampled_from(State), who=st.sampled_from([ANA, ANA_AGAIN, BEN, CARLA, OZ]), digest=st.sampled_from([YES, ""]))
def test_what_the_rule_allows_the_machine_takes_and_nothing_more(state: State, who: Person, digest: str):
    event = machine.Approve(at=NOW, approver=who, request_digest=digest)
    allowed = rules.may_approve(EVERY[state], who, digest, NOW) is None
    assert allowed == machine.allowed(EVERY[state], event)


def test_ones_own_approval_is_refused_with_the_names_of_those_who_could():
    denied = rules.may_approve(ASKED, ANA, YES, NOW, could=(BEN.ref, CARLA.ref))
    assert isinstance(denied, Denied)
    assert denied.sentence == (
        "You asked for this yourself, so another person must approve it: user:default/ben or user:default/carla."
    )


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (EVERY[State.ACTIVE], "user:default/ben approved this at 03:00 UTC."),
        (BROKEN, "user:default/carla broke the glass for this at 03:00 UTC."),
        (EVERY[State.CLOSED], "This request is closed (withdrawn) since 03:00 UTC."),
        (GROUND, "This request does not wait any more: it is approved."),
    ],
)
def test_the_second_answer_is_told_of_the_first(session: Session, words: str):
    denied = rules.may_approve(session, BEN, session.request.digest, NOW)
    assert isinstance(denied, Denied)
    assert denied.sentence == words


DAN = person("dan")
DAN_AGAIN = person("dan2", "user:default/dan")


@pytest.mark.parametrize(
    ("breaker", "requester", "admins", "owed", "expected"),
    [
        (CARLA, CARLA, [CARLA, DAN], [], None),
        (CARLA, ANA, [CARLA, DAN], [], None),
        (CARLA, CARLA, [], [], Code.TOO_FEW_ADMINS),
        (CARLA, CARLA, [CARLA], [], Code.TOO_FEW_ADMINS),
        (CARLA, DAN, [CARLA, DAN], [], Code.TOO_FEW_ADMINS),
        (DAN, DAN, [DAN, DAN_AGAIN], [], Code.TOO_FEW_ADMINS),
        (CARLA, CARLA, [CARLA, DAN], [Sid("aaaaaaaaaa")], Code.ACCOUNT_OWED),
    ],
)
def test_a_glass_that_nobody_could_review_stays_whole(
    breaker: Person, requester: Person, admins: list[Person], owed: list[Sid], expected: Code | None
):
    assert code(rules.may_break(breaker, requester, admins, owed)) is expected


AGAIN = after(EVERY[State.SHELL_CLOSING], CLOSED)


@pytest.mark.parametrize(
    ("session", "who", "minutes", "expected"),
    [
        (EVERY[State.APPROVED], ANA, 0, None),
        (EVERY[State.APPROVED], ANA_AGAIN, 0, None),
        (BROKEN, ANA, 0, None),
        (GROUND, ANA, 0, None),
        (AGAIN, ANA, 29, None),
        (EVERY[State.APPROVED], BEN, 0, Code.NOT_ENTITLED),
        (BROKEN, CARLA, 0, Code.NOT_ENTITLED),
        (EVERY[State.APPROVED], ANA, 15, Code.REQUEST_EXPIRED),
        (AGAIN, ANA, 30, Code.TIME_OVER),
        (replace(EVERY[State.APPROVED], approval=None), ANA, 0, Code.NOT_ENTITLED),
        (replace(AGAIN, shells=AGAIN.shells * 9), ANA, 0, Code.SHELLS_SPENT),
        *[(EVERY[state], ANA, 0, Code.WRONG_STATE) for state in State if state is not State.APPROVED],
    ],
)
def test_only_the_requester_opens_and_only_what_was_approved(session: Session, who: Person, minutes: int, expected: Code | None):
    assert code(rules.may_open(session, who, at(minutes))) is expected


def test_a_second_session_is_refused_with_the_firsts_name():
    assert rules.one_open(None) is None
    denied = rules.one_open("abcdefghij")
    assert code(denied) is Code.SESSION_OPEN_ELSEWHERE
    assert denied is not None
    assert "abcdefghij" in denied.sentence
    assert "breakglass end abcdefghij" in denied.remedy
