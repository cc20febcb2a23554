"""Layer 6: a shell that outlives its reason. Every limit, at its edge, on clocks that are handed in."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakglass.core import expiry
from breakglass.core import session as machine
from breakglass.core.expiry import IDLE, TEN_MINUTES, TWO_MINUTES, ShellTimes, Warn, check, next_check
from breakglass.core.model import EndReason, Session, State
from tests.core.builders import ASKED, CLOSED, EVERY, LOST, NOW, REQUEST, START, after, at, shell

LIVE = EVERY[State.ACTIVE]
CLOSED_SHELL = after(EVERY[State.SHELL_CLOSING], CLOSED)
SPENT = EVERY[State.APPROVED]
for number in range(1, 10):
    SPENT = after(SPENT, replace(START, shell=shell(number)), LOST, CLOSED)


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "minutes", "what"),
    [
        (ASKED, 60, machine.Expire(at=at(60))),
        (EVERY[State.APPROVED], 15, machine.Expire(at=at(15))),
        (CLOSED_SHELL, 30, machine.End(at=at(30), reason=EndReason.HARD_STOP)),
        (LIVE, 30, machine.End(at=at(30), reason=EndReason.HARD_STOP)),
        (EVERY[State.DISCONNECTED], 30, machine.End(at=at(30), reason=EndReason.HARD_STOP)),
        (EVERY[State.SHELL_CLOSING], 30, machine.End(at=at(30), reason=EndReason.HARD_STOP)),
    ],
    ids=["requested", "unopened", "between two shells", "active", "disconnected", "shell closing"],
)
def test_no_session_outlives_its_limit_by_a_microsecond(session: Session, minutes: int, what: machine.Event):
    assert expiry.due(session, at(minutes) - timedelta(microseconds=1)) is None
    assert expiry.due(session, at(minutes)) == what
    assert machine.allowed(session, what)


def test_a_session_whose_nine_shells_are_used_ends_at_once():
    assert expiry.due(SPENT, NOW) == machine.End(at=NOW, reason=EndReason.SHELLS_SPENT)


@pytest.mark.parametrize("state", [state for state in State if not machine.is_open(EVERY[state])])
def test_nothing_is_due_once_a_session_closes(state: State):
    assert expiry.due(EVERY[state], at(10_000)) is None


def test_the_first_opening_has_its_own_patience_and_not_the_approvals():
    assert expiry.due(EVERY[State.OPENING], at(20)) is None


@given(state=st.sampled_from(State), minutes=st.floats(-10, 10_000, allow_nan=False))
def test_whatever_is_due_is_an_event_the_machine_takes(state: State, minutes: float):
    event = expiry.due(EVERY[state], at(minutes))
    assert event is None or machine.allowed(EVERY[state], event)


# --- what is left -----------------------------------------------------------------------------------------------------


@given(minutes=st.integers(10, 60), passed=st.floats(-120, 4000, allow_nan=False), started=st.booleans())
def test_the_grants_ttl_always_passes_the_admission_policy_and_outlives_the_time_left(minutes: int, passed: float, started: bool):
    session = replace(LIVE, request=replace(REQUEST, minutes=minutes), started_at=NOW if started else None)
    now = NOW + timedelta(seconds=passed)
    ttl = expiry.ttl_minutes(session, now)
    assert re.fullmatch(r"[1-9][0-9]m", f"{ttl}m")
    assert 15 <= ttl <= 75
    left = expiry.remaining(session, now)
    assert timedelta(0) <= left <= timedelta(minutes=minutes)
    assert timedelta(minutes=ttl) >= left + timedelta(minutes=15)
    assert left.total_seconds() + 60 <= expiry.max_seconds(session, now) <= expiry.MAX_SECONDS


@pytest.mark.parametrize(
    ("minute", "ttl", "seconds"),
    [
        (0, 45, 1860),
        (29.5, 16, 90),
        (30, 15, 60),
        (99, 15, 60),
        (-1, 45, 1860),
    ],
)
def test_ttl_and_kernel_timer_follow_what_is_left(minute: float, ttl: int, seconds: int):
    assert (expiry.ttl_minutes(LIVE, at(minute)), expiry.max_seconds(LIVE, at(minute))) == (ttl, seconds)


def test_before_its_first_shell_all_of_the_time_is_left():
    assert expiry.remaining(EVERY[State.APPROVED], at(14)) == timedelta(minutes=30)


# --- a live shell -----------------------------------------------------------------------------------------------------

TIMES = ShellTimes(hard_stop=1800.0, last_input=0.0)
"""Thirty minutes, from 0 s on the monotonic clock, its requester there."""


@pytest.mark.parametrize(
    ("times", "now", "what"),
    [
        (TIMES, 539.9, None),
        (TIMES, 540.0, IDLE),
        (TIMES, 600.0, EndReason.IDLE),
        (replace(TIMES, last_input=1100.0), 1199.9, None),
        (replace(TIMES, last_input=1100.0), 1200.0, TEN_MINUTES),
        (replace(TIMES, last_input=1600.0), 1680.0, TWO_MINUTES),
        (replace(TIMES, last_input=1799.0), 1800.0, EndReason.HARD_STOP),
        (replace(TIMES, viewer_left=100.0), 219.9, None),
        (replace(TIMES, viewer_left=100.0), 220.0, EndReason.NO_VIEWER),
        (replace(TIMES, viewer_left=0.0), 9999.0, EndReason.HARD_STOP),
    ],
)
def test_every_limit_of_a_shell_is_due_at_its_second(times: ShellTimes, now: float, what: object):
    assert check(times, now) == what


def test_input_and_nothing_else_keeps_a_shell_awake():
    warned = expiry.said(TIMES, IDLE)
    assert check(warned, 599.0) is None
    awake = expiry.typed(warned, 599.0)
    assert check(awake, 1138.0) is None
    assert check(awake, 1139.0) == IDLE


def test_input_that_is_counted_late_does_not_turn_the_clock_back():
    assert expiry.typed(replace(TIMES, last_input=50.0), 40.0).last_input == 50.0


def test_input_does_not_move_the_hard_stop_nor_silence_its_warnings():
    times = expiry.typed(expiry.said(TIMES, TEN_MINUTES), 1790.0)
    assert check(times, 1799.0) == TWO_MINUTES
    assert check(times, 1800.0) is EndReason.HARD_STOP


def test_leaving_again_and_again_does_not_start_the_two_minutes_anew():
    times = expiry.viewed(expiry.viewed(TIMES, there=False, now=10.0), there=False, now=100.0)
    assert check(times, 130.0) is EndReason.NO_VIEWER
    assert check(expiry.viewed(times, there=True, now=129.0), 130.0) is None


def test_a_warning_is_said_once_and_two_minutes_silences_ten():
    late = expiry.said(replace(TIMES, last_input=1700.0), TWO_MINUTES)
    assert check(late, 1700.0) is None
    assert late.warned == {Warn.TWO_MINUTES, Warn.TEN_MINUTES}


@pytest.mark.parametrize(
    ("minute", "warned"), [(0, frozenset()), (19.9, frozenset()), (20, {Warn.TEN_MINUTES}), (29, {Warn.TEN_MINUTES})]
)
def test_a_shell_that_opens_late_is_not_told_of_ten_minutes_it_never_had(minute: float, warned: frozenset[Warn]):
    times = expiry.shell_times(LIVE, now=at(minute), monotonic=5000.0, viewer=True)
    assert times.hard_stop == pytest.approx(5000.0 + 60 * (30 - minute))
    assert (times.last_input, times.viewer_left, times.warned) == (5000.0, None, warned)


def test_a_shell_that_nobody_looks_at_when_it_opens_has_two_minutes():
    times = expiry.shell_times(LIVE, now=NOW, monotonic=5.0, viewer=False)
    assert check(times, 125.0) is EndReason.NO_VIEWER


SECONDS = st.floats(0, 5000, allow_nan=False)
A_SHELL = st.builds(
    ShellTimes,
    hard_stop=SECONDS,
    last_input=SECONDS,
    viewer_left=st.none() | SECONDS,
    warned=st.frozensets(st.sampled_from(Warn)),
)


@given(times=A_SHELL, before=st.floats(0.001, 5000))
def test_a_loop_that_sleeps_until_next_check_misses_nothing_and_never_spins(times: ShellTimes, before: float):
    when = next_check(times)
    assert check(times, when) is not None
    assert check(times, when - before) is None


@given(times=A_SHELL, now=SECONDS)
def test_saying_a_warning_always_leads_on_to_an_end(times: ShellTimes, now: float):
    for _ in range(4):
        what = check(times, now)
        if not isinstance(what, expiry.Warned):
            break
        times = expiry.said(times, what)
    assert not isinstance(check(times, now), expiry.Warned)
    assert isinstance(check(times, times.hard_stop), EndReason)
