"""Layer 6. Every time limit, and what is due now: pure arithmetic on clocks that are handed in.

Must never: let output count as activity, give a session more than its minutes, or answer "not yet" when a limit is reached.
The lifetimes of a request and an approval stand in `guards.py`; the kernel timers are `image/`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil

from breakglass.core.guards import deadline
from breakglass.core.model import SHELLS_MAX, EndReason, Session, State
from breakglass.core.session import End, Expire

ASK_AGAIN = timedelta(minutes=5)
"""When approvers and the pager hear of an unanswered request a second time."""
OPEN_WITHIN_SECONDS = 120
"""When Tower gives up on a debug container that does not start; also the supervisor's patience without START."""
RECHECK_SECONDS = 60
"""How often the requester's entitlement is read again while a shell lives."""
RETENTION = timedelta(days=366)
"""How long a record is locked beyond the session's hard end."""

IDLE_SECONDS = 600
VIEWER_SECONDS = 120
MAX_SECONDS = 3660
"""The longest the supervisor's kernel timer may be armed for: 60 minutes, and one more for Tower to end it first."""
TTL_SLACK, TTL_MIN, TTL_MAX = 15, 15, 75
"""Minutes. The grant's TTL label is what is left plus the slack, always within the bounds the admission policy enforces."""


# --- a session --------------------------------------------------------------------------------------------------------


def due(session: Session, now: datetime) -> End | Expire | None:
    """What the clock does to this session now, None when nothing; an event for `session.step`.

    For sessions without a live shell, and behind the live shell's own timers (`check`). Opening's 120 s are not here.
    """
    if session.state is State.APPROVED and len(session.shells) >= SHELLS_MAX:
        return End(at=now, reason=EndReason.SHELLS_SPENT)
    until = deadline(session)
    if until is None or now < until:
        return None
    return Expire(at=now) if session.started_at is None else End(at=now, reason=EndReason.HARD_STOP)


def remaining(session: Session, now: datetime) -> timedelta:
    """What is left of the session's time: all of it before its first shell, never negative, never more than its minutes."""
    whole = timedelta(minutes=session.request.minutes)
    if session.hard_stop_at is None:
        return whole
    return min(whole, max(timedelta(0), session.hard_stop_at - now))


def ttl_minutes(session: Session, now: datetime) -> int:
    """The grant's `cleanup.kyverno.io/ttl` in minutes: what is left, rounded up, plus 15; always 15–75."""
    left = ceil(remaining(session, now) / timedelta(minutes=1))
    return min(TTL_MAX, max(TTL_MIN, left + TTL_SLACK))


def max_seconds(session: Session, now: datetime) -> int:
    """The supervisor's `--max-seconds`: what is left, rounded up, plus 60, at most 3660."""
    return min(MAX_SECONDS, ceil(remaining(session, now).total_seconds()) + 60)


# --- a live shell, in monotonic seconds -------------------------------------------------------------------------------


class Warn(StrEnum):
    """What a person is warned of while a shell lives."""

    TEN_MINUTES = "ten_minutes"
    TWO_MINUTES = "two_minutes"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A warning that is due and has not been said: pass it to `said` once it has."""

    kind: Warn
    sentence: str


TEN_MINUTES = Warned(
    kind=Warn.TEN_MINUTES, sentence="Ten minutes left. There is no extension; you can ask for a session that follows."
)
TWO_MINUTES = Warned(kind=Warn.TWO_MINUTES, sentence="Two minutes left, then this shell ends.")
IDLE = Warned(
    kind=Warn.IDLE, sentence="Nine minutes without a keystroke: in one minute this session ends. Press any key to stay."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellTimes:
    """A live shell's clocks, all on one monotonic clock. `viewer_left` is None while its requester is there."""

    hard_stop: float
    last_input: float
    viewer_left: float | None = None
    warned: frozenset[Warn] = frozenset()


def shell_times(session: Session, *, now: datetime, monotonic: float, viewer: bool) -> ShellTimes:
    """The clocks of a shell that becomes active now. It opened with ten minutes or less: that warning would say nothing new."""
    left = remaining(session, now).total_seconds()
    return ShellTimes(
        hard_stop=monotonic + left,
        last_input=monotonic,
        viewer_left=None if viewer else monotonic,
        warned=frozenset({Warn.TEN_MINUTES}) if left <= 600 else frozenset(),
    )


def check(times: ShellTimes, now: float) -> EndReason | Warned | None:
    """What is due: an end, else a warning nobody has heard yet, else None."""
    return next((what for at, what in _limits(times) if now >= at), None)


def next_check(times: ShellTimes) -> float:
    """The first moment at which `check` will not be None; look again when input comes or the viewer goes or returns."""
    return min(at for at, _ in _limits(times))


def typed(times: ShellTimes, now: float) -> ShellTimes:
    """Input came: the idle clock starts anew, and so does its warning. Nothing else counts as activity."""
    return replace(times, last_input=max(times.last_input, now), warned=times.warned - {Warn.IDLE})


def viewed(times: ShellTimes, *, there: bool, now: float) -> ShellTimes:
    """The viewer returned or left; leaving twice doesn't start the two minutes anew."""
    if there:
        return replace(times, viewer_left=None)
    return times if times.viewer_left is not None else replace(times, viewer_left=now)


def said(times: ShellTimes, warned: Warned) -> ShellTimes:
    """The warning was given; after "two minutes" nobody needs "ten"."""
    more = {warned.kind, Warn.TEN_MINUTES} if warned.kind is Warn.TWO_MINUTES else {warned.kind}
    return replace(times, warned=times.warned | more)


def _limits(times: ShellTimes) -> list[tuple[float, EndReason | Warned]]:
    """Every limit that still lies ahead or is due, the weightiest first."""
    ends: list[tuple[float, EndReason | Warned]] = [(times.hard_stop, EndReason.HARD_STOP)]
    if times.viewer_left is not None:
        ends.append((times.viewer_left + VIEWER_SECONDS, EndReason.NO_VIEWER))
    ends.append((times.last_input + IDLE_SECONDS, EndReason.IDLE))
    warnings = [
        (times.hard_stop - 120, TWO_MINUTES),
        (times.hard_stop - 600, TEN_MINUTES),
        (times.last_input + IDLE_SECONDS - 60, IDLE),
    ]
    return ends + [(at, warned) for at, warned in warnings if warned.kind not in times.warned]
