"""Layer 3. A session's life as one table: whatever changes a session is an event here, and what is not in the table is refused.

Must never: raise, look at a clock, or let anything happen on Flight without another person's yes to this very request, or
a broken glass. Who may send an event is layer 2's and `rules.py`'s to say; each step repeats the guards that must not fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, assert_never

from breakglass.core import guards
from breakglass.core.codes import Code
from breakglass.core.model import (
    Approval,
    Denied,
    Ended,
    EndReason,
    EntityRef,
    Flag,
    GlassBroken,
    Person,
    Request,
    Sealed,
    Session,
    Shell,
    State,
    no,
)

OPEN_STATES = frozenset(
    {State.REQUESTED, State.APPROVED, State.OPENING, State.ACTIVE, State.DISCONNECTED, State.SHELL_CLOSING},
)
"""The states that hold a person's one place. `closing` and `stuck` never do: nobody waits for an undo to ask again."""


def new(request: Request, now: datetime) -> Session:
    """A session at its beginning: requested, version 1."""
    return Session(request=request, state=State.REQUESTED, version=1, changed_at=now)


def is_open(session: Session) -> bool:
    """Whether the session holds its requester's one place."""
    return session.state in OPEN_STATES


def spent(session: Session, now: datetime) -> bool:
    """Whether nothing can be opened any more in an approved session: its shells, its time or its approval are used up."""
    return guards.may_start(session, now) is not None


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """Something that happened, and when, on Tower's clock."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve(_Event):
    """Another person said yes to one request digest."""

    approver: Person
    request_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundApprove(_Event):
    """Ground needs nobody's yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakGlass(_Event):
    """An admin decided alone: marked for good, alarmed, always reviewed."""

    breaker: Person


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny(_Event):
    """Somebody who could have approved said no."""

    by: EntityRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw(_Event):
    """The requester does not need it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire(_Event):
    """Nobody answered, or nobody opened it, in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartShell(_Event):
    """A shell is about to be opened; nothing of it exists in the cluster yet."""

    shell: Shell


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellActive(_Event):
    """The shell answered. `started_at` is its grant's creation on the API server's clock; the first starts the session's time."""

    number: int
    started_at: datetime
    grant_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerLeft(_Event):
    """Nobody is at the shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerBack(_Event):
    """The requester is at the shell again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellLost(_Event):
    """A shell ended that does not take the session along; its cluster side is still to be undone."""

    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellClosed(_Event):
    """Nothing of the lost shell is left in the cluster; what was seen of its end."""

    terminated_at: datetime | None = None
    exit_code: int | None = None
    witness: str = ""
    flags: frozenset[Flag] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class End(_Event):
    """The session ends; `by` is None when the clock or Tower ends it."""

    reason: EndReason
    by: EntityRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSealed(_Event):
    """The cluster side is clean and the record is sealed and locked; what was seen of the last shell's end."""

    sealed: Sealed
    flags: frozenset[Flag] = frozenset()
    terminated_at: datetime | None = None
    exit_code: int | None = None
    witness: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck(_Event):
    """Something could not be undone or locked: an alarm, in words, until it is. `sealed` once the evidence is safe."""

    because: str
    sealed: Sealed | None = None
    flags: frozenset[Flag] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstuck(_Event):
    """What was left open in the cluster is clean now; the record was sealed before."""

    flags: frozenset[Flag] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(_Event):
    """The breaker wrote down why the glass was broken. The text itself is evidence, not part of the row."""

    by: Person


@dataclass(frozen=True, slots=True, kw_only=True)
class Review(_Event):
    """Another admin looked at it."""

    reviewer: Person


Event = (
    Approve | GroundApprove | BreakGlass | Deny | Withdraw | Expire
    | StartShell | ShellActive | ViewerLeft | ViewerBack | ShellLost | ShellClosed
    | End | RecordSealed | Stuck | Unstuck | Account | Review
)  # fmt: skip
"""Everything that can happen to a session; closed."""


# --- the table --------------------------------------------------------------------------------------------------------


class Fork(NamedTuple):
    """A transition that depends on what the session has been through; `when` says it in words."""

    when: str
    test: Callable[[Session], bool]
    then: State
    otherwise: State


_HAD_SHELL = Fork("a shell was opened", lambda session: bool(session.shells), State.CLOSING, State.CLOSED)
_BROKEN = Fork("the glass was broken", lambda session: session.glass is not None, State.ACCOUNT_DUE, State.SEALED)

TRANSITIONS: Mapping[State, Mapping[type[Event], State | Fork]] = {
    State.REQUESTED: {
        Approve: State.APPROVED,
        GroundApprove: State.APPROVED,
        BreakGlass: State.APPROVED,
        Deny: State.CLOSED,
        Withdraw: State.CLOSED,
        Expire: State.CLOSED,
    },
    State.APPROVED: {
        StartShell: State.OPENING,
        End: _HAD_SHELL,
        Withdraw: _HAD_SHELL,
        Expire: _HAD_SHELL,
    },
    State.OPENING: {ShellActive: State.ACTIVE, ShellLost: State.SHELL_CLOSING, End: State.CLOSING},
    State.ACTIVE: {ViewerLeft: State.DISCONNECTED, ShellLost: State.SHELL_CLOSING, End: State.CLOSING},
    State.DISCONNECTED: {ViewerBack: State.ACTIVE, ShellLost: State.SHELL_CLOSING, End: State.CLOSING},
    State.SHELL_CLOSING: {ShellClosed: State.APPROVED, Stuck: State.STUCK, End: State.CLOSING},
    State.CLOSING: {RecordSealed: _BROKEN, Stuck: State.STUCK},
    State.STUCK: {RecordSealed: _BROKEN, Unstuck: _BROKEN, Stuck: State.STUCK},
    State.ACCOUNT_DUE: {Account: State.REVIEW_DUE},
    State.REVIEW_DUE: {Review: State.REVIEWED},
    State.CLOSED: {},
    State.SEALED: {},
    State.REVIEWED: {},
}


def step(session: Session, event: Event) -> Session | Denied:
    """The session after the event, one version on; or why not. Total: never raises, whatever comes in whatever order.

    1. The table knows the event in this state. 2. The guards that must hold whoever asks. 3. Its changes, the next state,
    the next version. That nobody else changed the row meanwhile is the store's to say: compare-and-swap on the version.
    """
    following = TRANSITIONS[session.state].get(type(event))  # (1)
    if following is None:
        return no(
            Code.WRONG_STATE,
            f"Session {session.sid} is {session.state.value.replace('_', ' ')}: {event_word(type(event))} is not possible now.",
            "Look at the session again: breakglass sessions",
        )
    if (denied := _guard(session, event)) is not None:  # (2)
        return denied
    if isinstance(following, Fork):
        following = following.then if following.test(session) else following.otherwise
    return replace(  # (3)
        session,
        state=following,
        version=session.version + 1,
        changed_at=max(event.at, session.changed_at),
        **_changes(session, event),
    )


def allowed(session: Session, event: Event) -> bool:
    """Whether `step` would take this event; to choose a path, never instead of `step`."""
    return not isinstance(step(session, event), Denied)


def event_word(event: type[Event]) -> str:
    """An event's name as people read it: `StartShell` is "start shell"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", event.__name__).lower()


def _guard(session: Session, event: Event) -> Denied | None:
    """Why this event cannot happen to this session although its state allows it."""
    denied: Denied | None = None
    match event:
        case Approve():
            denied = guards.may_decide(session, event.approver, event.request_digest, event.at)
        case GroundApprove():
            denied = guards.needs_nobody(session, event.at)
        case BreakGlass():
            denied = guards.waits(session, event.at)
        case Expire():
            denied = guards.is_due(session, event.at)
        case StartShell():
            denied = guards.may_start(session, event.at) or guards.is_next(session, event.shell)
        case ShellActive():
            denied = guards.is_opening(session, event.number, event.started_at, event.at)
        case Unstuck() if session.sealed is None:
            sentence = f"The record of session {session.sid} is not sealed yet."
            denied = no(Code.WRONG_STATE, sentence, "Look at the vault: breakglass doctor")
        case Account():
            denied = guards.may_account(session, event.by)
        case Review():
            denied = guards.may_review(session, event.reviewer)
        case _:
            pass
    return denied


# --- changes: what an event writes, state, version and time excepted --------------------------------------------------


def _changes(session: Session, event: Event) -> dict[str, Any]:  # noqa: C901, PLR0912 -- one case an event
    match event:
        case Approve():
            approval = Approval(approver=event.approver, request_digest=event.request_digest, at=event.at)
            return {"approval": approval, "approved_at": event.at}
        case GroundApprove():
            return {"approved_at": event.at}
        case BreakGlass():
            return {"glass": GlassBroken(breaker=event.breaker, at=event.at), "approved_at": event.at}
        case Deny():
            return _ending(session, EndReason.DENIED, event.at, event.by)
        case Withdraw():
            return _ending(session, EndReason.WITHDRAWN, event.at, session.request.requester.ref)
        case Expire():
            return _ending(session, EndReason.EXPIRED, event.at, None)
        case End():
            return _ending(session, event.reason, event.at, event.by)
        case StartShell():
            return {"shells": (*session.shells, event.shell)}
        case ShellActive():
            shells = _last(session, grant_uid=event.grant_uid, active_at=event.at)
            return {"shells": shells, "started_at": session.started_at or event.started_at}
        case ViewerLeft():
            return {"viewer_left_at": event.at}
        case ViewerBack():
            return {"viewer_left_at": None}
        case ShellLost():
            return {"shells": _shell_ended(session, event.reason, event.at), "viewer_left_at": None}
        case ShellClosed():
            return {"shells": _seen(session, event), "flags": session.flags | event.flags}
        case RecordSealed():
            flags = session.flags | event.flags
            return {"sealed": event.sealed, "shells": _seen(session, event), "flags": flags, "stuck_because": ""}
        case Stuck():
            return _left(session, event)
        case Unstuck():
            return {"stuck_because": "", "flags": session.flags | event.flags}
        case Account() | Review():
            return {}
        case _:
            assert_never(event)


def _ending(session: Session, reason: EndReason, at: datetime, by: EntityRef | None) -> dict[str, Any]:
    """Why, when and by whom; a shell that still lived ends with its session."""
    ended = Ended(reason=reason, at=at, by=by)
    return {"ended": ended, "shells": _shell_ended(session, reason, at), "viewer_left_at": None}


def _left(session: Session, event: Stuck) -> dict[str, Any]:
    """What is left open; a session that was going on ends here, for the reason its shell did."""
    reason = EndReason.OPEN_FAILED if session.shell is None or session.shell.end is None else session.shell.end
    return {
        "stuck_because": event.because,
        "sealed": event.sealed or session.sealed,
        "flags": session.flags | event.flags,
        "ended": session.ended or Ended(reason=reason, at=event.at),
    }


def _shell_ended(session: Session, reason: EndReason, at: datetime) -> tuple[Shell, ...]:
    """The shells, the last one ended unless it had ended before."""
    shell = session.shell
    return session.shells if shell is None or shell.end is not None else _last(session, end=reason, ended_at=at)


def _seen(session: Session, event: ShellClosed | RecordSealed) -> tuple[Shell, ...]:
    """The shells, the last one with what was seen of its end; what was seen before is not forgotten."""
    shell = session.shell
    if shell is None:
        return session.shells
    return _last(
        session,
        terminated_at=shell.terminated_at or event.terminated_at,
        exit_code=event.exit_code if shell.exit_code is None else shell.exit_code,
        witness=shell.witness or event.witness,
    )


def _last(session: Session, **fields: Any) -> tuple[Shell, ...]:
    return (*session.shells[:-1], replace(session.shells[-1], **fields)) if session.shells else ()
