"""The contract of Store, Audit and Tickets, on the simulator and on SQLite."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from breakglass.core.model import Approval, Person, Session, Sid, State
from breakglass.core.session import OPEN_STATES
from breakglass.ports import OpenElsewhereError, PortError, StaleError, Ticket, Trouble
from tests.simulators.people import ANA, BEN, CARLA, CHECKOUT, NOW, a_session, an_event

OTHER = "zzzzzzzzzz"
ANA_ELSEWHERE = Person(ref="user:default/ana-admin", aliases=frozenset({"ANA@example.test"}))


def next_version(session: Session, **changes) -> Session:
    return replace(session, version=session.version + 1, **changes)


async def test_a_session_is_read_back_as_it_was_written(store):
    session = a_session()
    await store.create(session, an_event())
    assert await store.load(session.sid) == session
    assert await store.of(session.sid) == [an_event()]


async def test_an_unknown_session_is_none(store):
    assert await store.load("aaaaaaaaaa") is None


async def test_a_second_open_session_of_the_same_person_is_refused_with_the_first_ones_id(store):
    await store.create(a_session(), an_event())
    with pytest.raises(OpenElsewhereError) as refused:
        await store.create(a_session(OTHER), an_event(sid=OTHER))
    assert refused.value.sid == "abcdefghij"
    assert await store.load(OTHER) is None
    assert await store.of(Sid(OTHER)) == []


async def test_the_same_person_under_another_alias_and_case_cannot_open_a_second_session(store):
    await store.create(a_session(), an_event())
    with pytest.raises(OpenElsewhereError):
        await store.create(a_session(OTHER, requester=ANA_ELSEWHERE), an_event(sid=OTHER))


async def test_another_person_may_have_a_session_at_the_same_time(store):
    await store.create(a_session(), an_event())
    await store.create(a_session(OTHER, requester=BEN), an_event(sid=OTHER))
    assert {one.sid for one in await store.find()} == {"abcdefghij", OTHER}


@pytest.mark.parametrize("state", sorted(set(State) - OPEN_STATES))
async def test_a_session_that_is_not_open_any_more_blocks_nobody(store, state):
    first = a_session()
    await store.create(first, an_event())
    await store.replace(next_version(first, state=state), an_event("session.changed"))
    await store.create(a_session(OTHER), an_event(sid=OTHER))


@pytest.mark.parametrize("state", sorted(OPEN_STATES))
async def test_every_open_state_holds_the_place(store, state):
    first = a_session()
    await store.create(first, an_event())
    await store.replace(next_version(first, state=state), an_event("session.changed"))
    with pytest.raises(OpenElsewhereError):
        await store.create(a_session(OTHER), an_event(sid=OTHER))


async def test_a_session_cannot_be_taken_back_to_open_while_its_requester_has_another(store):
    first = a_session()
    await store.create(first, an_event())
    closed = next_version(first, state=State.CLOSED)
    await store.replace(closed, an_event("session.closed"))
    await store.create(a_session(OTHER), an_event(sid=OTHER))
    with pytest.raises(OpenElsewhereError) as refused:
        await store.replace(next_version(closed, state=State.ACTIVE), an_event("session.active"))
    assert refused.value.sid == OTHER
    assert await store.load(first.sid) == closed


async def test_a_change_against_an_old_version_is_stale_and_leaves_no_audit_event(store):
    first = a_session()
    await store.create(first, an_event())
    second = next_version(first, state=State.APPROVED)
    await store.replace(second, an_event("session.approved"))
    with pytest.raises(StaleError):
        await store.replace(next_version(first, state=State.CLOSED), an_event("session.denied"))
    assert await store.load(first.sid) == second
    assert [event.name for event in await store.of(first.sid)] == ["session.requested", "session.approved"]


@pytest.mark.parametrize("version", [0, 1, 3, 7])
async def test_only_the_very_next_version_is_taken(store, version):
    await store.create(a_session(), an_event())
    with pytest.raises(StaleError):
        await store.replace(a_session(version=version), an_event())


async def test_a_change_to_a_session_that_never_was_is_stale(store):
    with pytest.raises(StaleError):
        await store.replace(a_session(version=2), an_event())


async def test_a_request_cannot_be_rewritten_after_it_was_approved(store):
    await store.create(a_session(), an_event())
    with pytest.raises(PortError, match=r"^the request of session abcdefghij cannot change; ask for a new session$") as refused:
        await store.replace(a_session(version=2, process_access=True), an_event())
    assert refused.value.trouble is Trouble.INVALID
    assert (await store.load("abcdefghij")).request.process_access is False


async def test_two_approvals_race_and_one_wins_every_time(store):
    for round_number in range(40):
        sid = f"race{'abcdefghijklmnopqrstuvwxyz234567'[round_number % 32]}{'aaaaa' if round_number < 32 else 'bbbbb'}"
        person = Person(ref=f"user:default/p{round_number}")
        session = a_session(sid, requester=person)
        await store.create(session, an_event(sid=sid))
        answers = [
            next_version(
                session,
                state=State.APPROVED,
                approval=Approval(approver=approver, request_digest=session.request.digest, at=NOW),
            )
            for approver in (BEN, CARLA)
        ]
        done = await asyncio.gather(
            *(store.replace(answer, an_event(f"by.{answer.approval.approver.ref}", sid=sid)) for answer in answers),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in done) == ["NoneType", "StaleError"]
        winner = answers[done.index(None)]
        assert await store.load(sid) == winner
        assert [one.name for one in await store.of(Sid(sid))] == ["session.requested", f"by.{winner.approval.approver.ref}"]


async def test_ten_requests_of_one_person_race_and_one_wins(store):
    sids = [f"{letter * 10}" for letter in "abcdefghij"]
    done = await asyncio.gather(*(store.create(a_session(sid), an_event(sid=sid)) for sid in sids), return_exceptions=True)
    assert done.count(None) == 1
    winner = sids[done.index(None)]
    assert {one.sid for one in done if isinstance(one, OpenElsewhereError)} == {winner}
    assert sum(isinstance(one, OpenElsewhereError) for one in done) == 9
    assert [one.sid for one in await store.find()] == [winner]


async def test_an_id_that_is_taken_is_a_conflict_and_nothing_is_written(store):
    await store.create(a_session(), an_event())
    with pytest.raises(PortError) as refused:
        await store.create(a_session(requester=BEN), an_event("again"))
    assert refused.value.trouble is Trouble.CONFLICT
    assert (await store.load("abcdefghij")).request.requester == ANA
    assert len(await store.of(Sid("abcdefghij"))) == 1


@pytest.mark.parametrize("prefix", ["abcd", "abcdef", "abcdefghij"])
async def test_an_unambiguous_prefix_of_four_or_more_is_enough(store, prefix):
    await store.create(a_session(), an_event())
    assert (await store.load(prefix)).sid == "abcdefghij"


@pytest.mark.parametrize(
    "prefix", ["", "abc", "%", "a%%%%%%%%%", "____", "abcd_fghij", "abcd%", "ABCDEFGHIJ", "abcdefghijk", "abcd\n", "abcd' OR 1"]
)
async def test_a_prefix_that_is_short_or_not_of_an_ids_letters_finds_nothing(store, prefix):
    await store.create(a_session(), an_event())
    assert await store.load(prefix) is None


async def test_an_ambiguous_prefix_finds_nothing(store):
    await store.create(a_session("abcdefghij"), an_event())
    await store.create(a_session("abcdzzzzzz", requester=BEN), an_event(sid="abcdzzzzzz"))
    assert await store.load("abcd") is None
    assert (await store.load("abcdz")).sid == "abcdzzzzzz"


async def test_sessions_are_found_by_state_and_app_newest_first_and_bounded(store):
    for number, sid in enumerate(["aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"]):
        person = Person(ref=f"user:default/p{number}")
        at = NOW + timedelta(minutes=number)
        await store.create(a_session(sid, requester=person, asked_at=at), an_event(sid=sid))
    other = a_session("dddddddddd", requester=BEN, app="component:default/ledger")
    await store.create(other, an_event(sid="dddddddddd"))
    await store.replace(next_version(other, state=State.CLOSED), an_event(sid="dddddddddd"))
    assert [one.sid for one in await store.find(app=CHECKOUT)] == ["cccccccccc", "bbbbbbbbbb", "aaaaaaaaaa"]
    assert [one.sid for one in await store.find(states=frozenset({State.CLOSED}))] == ["dddddddddd"]
    assert [one.sid for one in await store.find(limit=1)] == ["cccccccccc"]
    assert await store.find(states=frozenset()) == []


async def test_events_keep_their_order_their_code_and_their_details(store):
    refusal = an_event("session.refused", code="self_approval", details={"by": "user:default/ana", "words": "ä\u2028"})
    nobody = an_event("sign_in.refused", actor=None, app=None)
    for event in (an_event(), refusal, nobody):
        await store.append(event)
    assert list(await store.of(Sid("abcdefghij"))) == [an_event(), refusal, nobody]
    assert await store.of(Sid("zzzzzzzzzz")) == []


def a_ticket(**changes) -> Ticket:
    usual = Ticket(person=ANA.ref, sid=Sid("abcdefghij"), role="drive", origin="", expires_at=NOW + timedelta(seconds=30))
    return replace(usual, **changes)


async def test_a_ticket_is_taken_once(store):
    await store.put("a" * 64, a_ticket())
    assert await store.take("a" * 64) == a_ticket()
    assert await store.take("a" * 64) is None


async def test_two_takers_race_for_one_ticket_and_one_gets_none(store):
    for number in range(40):
        await store.put(f"{number:064}", a_ticket())
        taken = await asyncio.gather(*(store.take(f"{number:064}") for _ in range(4)))
        assert sorted(one is not None for one in taken) == [False, False, False, True]


async def test_a_ticket_that_was_never_given_is_none(store):
    assert await store.take("b" * 64) is None


async def test_a_hash_given_out_twice_is_a_conflict(store):
    await store.put("a" * 64, a_ticket())
    with pytest.raises(PortError) as refused:
        await store.put("a" * 64, a_ticket(role="watch"))
    assert refused.value.trouble is Trouble.CONFLICT
