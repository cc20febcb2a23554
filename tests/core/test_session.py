"""Layer 3: attacks on a session's life. What must hold under every order of events, and under every race."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from breakglass.core import guards
from breakglass.core import session as machine
from breakglass.core.codes import Code
from breakglass.core.expiry import due
from breakglass.core.model import Denied, EndReason, Flag, Person, Session, Sid, State, Tier
from tests.core.builders import (
    ACCOUNT,
    ACTIVE,
    ANA,
    ANA_AGAIN,
    APPROVE,
    ASKED,
    BEN,
    BREAK,
    BROKEN,
    CARLA,
    CLOSED,
    END,
    EVERY,
    GROUND,
    LEFT,
    LOST,
    NOW,
    OZ,
    REQUEST,
    REVIEW,
    SEAL,
    SEALED,
    START,
    STUCK,
    after,
    at,
    shell,
)

EVENTS: dict[type, machine.Event] = {
    type(event): event
    for event in (
        *(APPROVE, BREAK, START, ACTIVE, LEFT, LOST, CLOSED, END, SEAL, STUCK, ACCOUNT, REVIEW),
        machine.GroundApprove(at=NOW),
        machine.Deny(at=NOW, by=BEN.ref),
        machine.Withdraw(at=NOW),
        machine.Expire(at=NOW),
        machine.ViewerBack(at=NOW),
        machine.Unstuck(at=NOW),
    )
}
FINAL = (State.SEALED, State.CLOSED, State.REVIEWED)


def refused(session: Session, event: machine.Event) -> Code:
    denied = machine.step(session, event)
    assert isinstance(denied, Denied), denied
    assert denied.sentence.endswith("."), denied
    assert denied.remedy, denied
    return denied.code


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_knows_every_state_and_every_event():
    assert set(machine.TRANSITIONS) == set(State)
    known = {event for events in machine.TRANSITIONS.values() for event in events}
    assert known == set(get_args(machine.Event)) == set(EVENTS)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS, ids=machine.event_word)
def test_an_event_out_of_order_is_refused_in_both_words_and_never_raises(state: State, event: type[machine.Event]):
    session, happening = EVERY[state], EVENTS[event]
    outcome = machine.step(session, happening)
    if event in machine.TRANSITIONS[state]:
        guarded = event in {machine.Unstuck, machine.Expire}  # not sealed yet; not due yet
        assert not isinstance(outcome, Denied) or outcome.code is not Code.WRONG_STATE or guarded
        return
    assert isinstance(outcome, Denied)
    assert outcome.code is Code.WRONG_STATE
    assert state.value.replace("_", " ") in outcome.sentence
    assert machine.event_word(event) in outcome.sentence


@pytest.mark.parametrize("state", State)
def test_a_damaged_row_never_makes_a_step_raise(state: State):
    for event in EVENTS.values():
        bare = Session(request=REQUEST, state=state, version=7, changed_at=NOW)
        outcome = machine.step(bare, event)
        assert isinstance(outcome, Denied) or outcome.version == 8
        assert machine.allowed(bare, event) is not isinstance(outcome, Denied)


@pytest.mark.parametrize("state", FINAL)
def test_nothing_leads_out_of_a_sealed_record(state: State):
    assert machine.TRANSITIONS[state] == {}


@pytest.mark.parametrize("state", State)
def test_a_closing_session_never_holds_its_persons_place(state: State):
    held = {State.REQUESTED, State.APPROVED, State.OPENING, State.ACTIVE, State.DISCONNECTED, State.SHELL_CLOSING}
    assert machine.is_open(EVERY[state]) == (state in held)


@pytest.mark.parametrize("state", State)
def test_a_session_that_is_over_says_why_and_an_open_one_does_not(state: State):
    assert (EVERY[state].ended is None) == machine.is_open(EVERY[state])


def test_a_clock_that_jumps_back_does_not_make_a_session_younger():
    session = after(ASKED, replace(APPROVE, at=at(5)), replace(START, at=at(4)))
    assert session.changed_at == at(5)
    assert session.version == 3


# --- whose yes counts -------------------------------------------------------------------------------------------------


def test_a_yes_to_another_digest_approves_nothing():
    other = replace(REQUEST, minutes=60).digest
    assert refused(ASKED, replace(APPROVE, request_digest=other)) is Code.DIGEST_MISMATCH


@pytest.mark.parametrize("approver", [ANA, ANA_AGAIN])
def test_the_requester_cannot_approve_under_any_alias(approver: Person):
    assert refused(ASKED, replace(APPROVE, approver=approver)) is Code.SELF_APPROVAL


@pytest.mark.parametrize("event", [APPROVE, BREAK])
def test_a_request_of_an_hour_ago_is_answered_too_late(event: machine.Approve | machine.BreakGlass):
    assert refused(ASKED, replace(event, at=at(60))) is Code.REQUEST_EXPIRED
    assert after(ASKED, replace(event, at=at(59.9))).state is State.APPROVED


def test_flight_cannot_be_approved_as_if_it_were_ground():
    assert refused(ASKED, machine.GroundApprove(at=NOW)) is Code.NOT_ENTITLED
    assert GROUND.state is State.APPROVED
    assert GROUND.approval is None


@pytest.mark.parametrize(
    ("forged", "code"),
    [
        (replace(EVERY[State.APPROVED], approval=None), Code.NOT_ENTITLED),
        (replace(EVERY[State.APPROVED], request=replace(REQUEST, minutes=60)), Code.DIGEST_MISMATCH),
        (replace(EVERY[State.APPROVED], request=replace(REQUEST, process_access=True)), Code.DIGEST_MISMATCH),
        (replace(BROKEN, glass=None), Code.NOT_ENTITLED),
        (replace(GROUND, request=REQUEST), Code.NOT_ENTITLED),
    ],
)
def test_a_forged_row_opens_nothing_on_flight(forged: Session, code: Code):
    assert refused(forged, START) is code


def test_an_approval_that_turns_out_to_be_ones_own_opens_nothing():
    approved = EVERY[State.APPROVED]
    assert approved.approval is not None
    own = replace(approved, approval=replace(approved.approval, approver=ANA_AGAIN))
    assert refused(own, START) is Code.SELF_APPROVAL


def test_a_broken_glass_and_ground_need_nobody_else():
    assert after(BROKEN, START).state is State.OPENING
    assert after(GROUND, START).state is State.OPENING


# --- shells -----------------------------------------------------------------------------------------------------------


def test_an_approval_lapses_unopened_after_a_quarter_of_an_hour():
    approved = EVERY[State.APPROVED]
    assert refused(approved, replace(START, at=at(15))) is Code.REQUEST_EXPIRED
    assert after(approved, replace(START, at=at(14.9))).state is State.OPENING


def test_a_shell_reopens_under_the_same_approval_and_the_same_time():
    again = after(EVERY[State.SHELL_CLOSING], replace(CLOSED, at=at(20)))
    assert again.state is State.APPROVED
    second = after(again, replace(START, at=at(20), shell=shell(2, opening_at=at(20))))
    live = after(second, machine.ShellActive(at=at(20), number=2, started_at=at(20), grant_uid="grant-2"))
    assert live.started_at == NOW
    assert live.hard_stop_at == at(30)
    assert [each.grant_uid for each in live.shells] == ["grant-1", "grant-2"]


def test_no_shell_opens_after_the_sessions_time():
    again = after(EVERY[State.SHELL_CLOSING], CLOSED)
    assert refused(again, replace(START, at=at(30), shell=shell(2))) is Code.TIME_OVER
    assert machine.spent(again, at(30))
    assert not machine.spent(again, at(29.9))


def test_a_tenth_shell_is_refused():
    session = EVERY[State.APPROVED]
    for number in range(1, 10):
        session = after(session, replace(START, shell=shell(number)), LOST, CLOSED)
    assert len(session.shells) == 9
    assert refused(session, replace(START, shell=shell(10))) is Code.SHELLS_SPENT
    assert machine.spent(session, NOW)


@pytest.mark.parametrize("number", [0, 2, 9])
def test_shells_are_numbered_without_a_hole(number: int):
    assert refused(EVERY[State.APPROVED], replace(START, shell=shell(number))) is Code.WRONG_STATE


@pytest.mark.parametrize("minutes", [-1, -0.1, 0.1, 1])
def test_a_start_outside_the_opening_would_move_the_hard_stop_and_is_refused(minutes: float):
    assert refused(EVERY[State.OPENING], replace(ACTIVE, started_at=at(minutes))) is Code.CLOCK_SKEW


@pytest.mark.parametrize("seconds", [-5, 5])
def test_a_clock_five_seconds_off_is_still_good(seconds: int):
    live = after(EVERY[State.OPENING], replace(ACTIVE, started_at=at(seconds / 60)))
    assert live.started_at == at(seconds / 60)


def test_another_shells_answer_activates_nothing():
    assert refused(EVERY[State.OPENING], replace(ACTIVE, number=2)) is Code.WRONG_STATE


def test_what_was_seen_of_a_shells_end_is_not_forgotten_at_the_seal():
    lost = after(EVERY[State.SHELL_CLOSING], replace(CLOSED, flags=frozenset({Flag.TAINTED})), END, SEAL)
    assert lost.shells[0].end is EndReason.POD_GONE
    assert (lost.shells[0].exit_code, lost.shells[0].witness, lost.shells[0].terminated_at) == (137, "w", NOW)
    assert lost.flags == {Flag.TAINTED}
    assert lost.ended is not None
    assert lost.ended.reason is EndReason.ENDED_BY_REQUESTER


def test_the_end_of_a_session_is_the_end_of_its_shell():
    assert EVERY[State.CLOSING].shells[0].end is EndReason.ENDED_BY_REQUESTER


def test_a_viewer_who_left_and_came_back_is_there():
    assert EVERY[State.DISCONNECTED].viewer_left_at == NOW
    assert after(EVERY[State.DISCONNECTED], machine.ViewerBack(at=NOW)).viewer_left_at is None


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_timer_that_is_early_expires_nothing():
    assert refused(ASKED, machine.Expire(at=at(59.9))) is Code.WRONG_STATE
    assert after(ASKED, machine.Expire(at=at(60))).state is State.CLOSED


@pytest.mark.parametrize("event", [END, machine.Withdraw(at=NOW), machine.Expire(at=at(30))])
def test_a_session_that_had_a_shell_is_sealed_and_not_just_closed(event: machine.Event):
    assert after(EVERY[State.APPROVED], event).state is State.CLOSED
    assert after(EVERY[State.SHELL_CLOSING], CLOSED, event).state is State.CLOSING


def test_a_broken_glass_is_never_just_sealed():
    stuck = after(BROKEN, START, ACTIVE, END, replace(STUCK, sealed=SEALED))
    assert after(stuck, machine.Unstuck(at=NOW)).state is State.ACCOUNT_DUE
    assert after(stuck, SEAL).state is State.ACCOUNT_DUE


def test_stuck_keeps_its_words_and_its_evidence_until_it_is_clean():
    stuck = after(EVERY[State.CLOSING], replace(STUCK, sealed=SEALED), replace(STUCK, because="the node is gone"))
    assert (stuck.stuck_because, stuck.sealed) == ("the node is gone", SEALED)
    clean = after(stuck, machine.Unstuck(at=NOW, flags=frozenset({Flag.NOT_TERMINATED})))
    assert (clean.state, clean.stuck_because, clean.flags) == (State.SEALED, "", {Flag.NOT_TERMINATED})


def test_a_session_without_a_sealed_record_does_not_become_sealed_by_being_unstuck():
    assert refused(EVERY[State.STUCK], machine.Unstuck(at=NOW)) is Code.WRONG_STATE
    assert after(EVERY[State.STUCK], SEAL).state is State.SEALED


def test_a_shell_that_cannot_be_undone_ends_its_session_and_frees_the_person():
    stuck = after(EVERY[State.SHELL_CLOSING], STUCK)
    assert not machine.is_open(stuck)
    assert stuck.ended is not None
    assert stuck.ended.reason is EndReason.POD_GONE


@pytest.mark.parametrize("person", [ANA, BEN, ANA_AGAIN])
def test_only_the_breaker_accounts_for_a_broken_glass(person: Person):
    assert refused(EVERY[State.ACCOUNT_DUE], replace(ACCOUNT, by=person)) is Code.NOT_ENTITLED


@pytest.mark.parametrize("person", [CARLA, ANA, ANA_AGAIN])
def test_neither_breaker_nor_requester_reviews_under_any_alias(person: Person):
    assert refused(EVERY[State.REVIEW_DUE], replace(REVIEW, reviewer=person)) is Code.SELF_REVIEW


# --- races ------------------------------------------------------------------------------------------------------------


class Stale(Exception):  # noqa: N818
    """The row was changed first by somebody else."""


class Store:
    """A store as `ports.py` has it, in memory: compare-and-swap on the version, one open row for each of a person's names."""

    def __init__(self) -> None:
        self.rows: dict[Sid, Session] = {}

    def holder(self, person: Person) -> Sid | None:
        return next((s.sid for s in self.rows.values() if machine.is_open(s) and s.request.requester.same(person)), None)

    def create(self, session: Session) -> bool:
        if self.holder(session.request.requester) is not None:
            return False
        self.rows[session.sid] = session
        return True

    def replace(self, session: Session) -> None:
        if self.rows[session.sid].version != session.version - 1:
            raise Stale
        self.rows[session.sid] = session


def race(first: machine.Event, second: machine.Event) -> tuple[Session, list[str]]:
    """Both decide on the same row, then write one after the other; the loser looks again, as `rows.py` does."""
    store = Store()
    store.create(ASKED)
    results = []
    drafts = [machine.step(ASKED, event) for event in (first, second)]
    for event, draft in zip((first, second), drafts, strict=True):
        assert isinstance(draft, Session)
        try:
            store.replace(draft)
            results.append("won")
        except Stale:
            again = machine.step(store.rows[ASKED.sid], event)
            results.append(again.code.value if isinstance(again, Denied) else "won")
    return store.rows[ASKED.sid], results


RACERS: list[machine.Event] = [
    APPROVE,
    replace(APPROVE, approver=CARLA),
    BREAK,
    machine.Deny(at=NOW, by=BEN.ref),
]


@pytest.mark.parametrize("first", RACERS)
@pytest.mark.parametrize("second", RACERS)
def test_of_two_answers_at_once_exactly_one_wins(first: machine.Event, second: machine.Event):
    row, results = race(first, second)
    assert results == ["won", "wrong_state"]
    assert row == machine.step(ASKED, first)


@pytest.mark.parametrize("answer", RACERS)
def test_of_an_answer_and_the_clock_exactly_one_wins(answer: machine.Event):
    expire = machine.Expire(at=at(60))
    answer = replace(answer, at=at(59.9))
    row, results = race(answer, expire)
    assert results == ["won", "wrong_state"]
    assert row == machine.step(ASKED, answer)
    row, results = race(expire, answer)
    assert results == ["won", "wrong_state"]
    assert row.approval is None
    assert row.state is State.CLOSED


# --- everything at once -----------------------------------------------------------------------------------------------

PEOPLE = [ANA, ANA_AGAIN, BEN, CARLA, OZ]


class Life(RuleBasedStateMachine):
    """Many sessions, people with aliases, stale readers and a clock, in any order hypothesis can think of."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.now = NOW
        self.count = 0
        self.final: dict[Sid, Session] = {}

    sids = Bundle("sids")
    readings = Bundle("readings")

    @rule(target=sids, person=st.sampled_from(PEOPLE), tier=st.sampled_from(Tier), minutes=st.integers(10, 60))
    def ask(self, person: Person, tier: Tier, minutes: int) -> Sid:
        self.count += 1
        sid = Sid(f"{'a' * 8}{chr(97 + self.count // 26 % 26)}{chr(97 + self.count % 26)}")
        request = replace(REQUEST, sid=sid, requester=person, tier=tier, minutes=minutes, asked_at=self.now)
        taken = self.store.holder(person)
        assert self.store.create(machine.new(request, self.now)) == (taken is None)
        return sid if taken is None else taken

    @rule(minutes=st.sampled_from([0.05, 1, 14, 15, 31, 61]))
    def time_passes(self, minutes: float) -> None:
        self.now += at(minutes) - NOW

    @rule(target=readings, sid=sids)
    def read(self, sid: Sid) -> Session:
        """Somebody reads a row and decides later, on what may be stale by then."""
        return self.store.rows[sid]

    def write(self, seen: Session, event: machine.Event) -> None:
        now = self.store.rows[seen.sid]
        changed = machine.step(seen, event)
        if isinstance(changed, Denied):
            assert changed.sentence
            return
        assert changed.version == seen.version + 1
        try:
            self.store.replace(changed)
        except Stale:
            assert seen.version != now.version
            assert self.store.rows[seen.sid] == now
        else:
            assert seen == now

    @rule(seen=readings, person=st.sampled_from(PEOPLE), digest=st.sampled_from([None, "sha256:" + "0" * 64]))
    def approve(self, seen: Session, person: Person, digest: str | None) -> None:
        self.write(seen, machine.Approve(at=self.now, approver=person, request_digest=digest or seen.request.digest))

    @rule(seen=readings)
    def shell(self, seen: Session) -> None:
        number = len(seen.shells) + 1
        self.write(seen, machine.StartShell(at=self.now, shell=shell(number, opening_at=self.now)))

    @rule(seen=readings)
    def active(self, seen: Session) -> None:
        self.write(seen, machine.ShellActive(at=self.now, number=len(seen.shells), started_at=self.now, grant_uid="g"))

    @rule(seen=readings, person=st.sampled_from(PEOPLE))
    def broken(self, seen: Session, person: Person) -> None:
        self.write(seen, machine.BreakGlass(at=self.now, breaker=person))

    @rule(seen=readings, event=st.sampled_from(list(EVENTS.values())), person=st.sampled_from(PEOPLE))
    def anything(self, seen: Session, event: machine.Event, person: Person) -> None:
        event = replace(event, at=self.now)
        match event:
            case machine.Account():
                event = replace(event, by=person)
            case machine.Review():
                event = replace(event, reviewer=person)
            case _:
                pass
        self.write(seen, event)

    @rule(seen=consumes(readings))
    def reaper(self, seen: Session) -> None:
        event = due(seen, self.now)
        if event is not None:
            self.write(seen, event)

    @precondition(lambda self: self.store.rows)
    @invariant()
    def never_open_on_flight_without_anothers_yes_to_this_very_request_or_a_broken_glass(self) -> None:
        for row in self.store.rows.values():
            if not row.shells or row.request.tier is Tier.GROUND or row.glass is not None:
                continue
            assert row.approval is not None
            assert row.approval.request_digest == row.request.digest
            assert not row.approval.approver.same(row.request.requester)

    @invariant()
    def one_open_session_for_a_person_under_all_aliases(self) -> None:
        holders = [row.request.requester for row in self.store.rows.values() if machine.is_open(row)]
        for index, person in enumerate(holders):
            assert not any(person.same(other) for other in holders[:index])

    @invariant()
    def nothing_changes_a_sealed_record(self) -> None:
        for sid, row in self.final.items():
            assert self.store.rows[sid] == row
        self.final |= {sid: row for sid, row in self.store.rows.items() if row.state in FINAL}

    @invariant()
    def every_row_is_consistent(self) -> None:
        for row in self.store.rows.values():
            assert (row.ended is None) == machine.is_open(row)
            assert [each.number for each in row.shells] == list(range(1, len(row.shells) + 1))
            assert len(row.shells) <= 9
            assert (row.sealed is not None) or row.state not in {State.SEALED, State.ACCOUNT_DUE, State.REVIEWED}
            if row.started_at is not None and machine.is_open(row):
                assert guards.deadline(row) == row.hard_stop_at


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(state=st.sampled_from(State), events=st.lists(st.sampled_from(list(EVENTS.values())), max_size=12))
def test_step_is_total_and_counts_every_change(state: State, events: list[machine.Event]):
    session = EVERY[state]
    for event in events:
        following = machine.step(session, event)
        if isinstance(following, Denied):
            continue
        assert following.version == session.version + 1
        assert following.request == session.request
        session = following
