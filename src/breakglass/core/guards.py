"""Layer 3. What a session's own facts allow, whoever asks: lifetimes, shells left, and whose yes counts. Pure.

`session.py` asks these inside every step, `rules.py` before it, in the same words. Must never: let a request be approved by
its requester under any alias, a yes count for another request, or a lapsed request, approval or session go on.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from breakglass.core.codes import Code
from breakglass.core.model import SHELLS_MAX, Denied, Person, Session, Shell, State, Tier, no

REQUEST_LIVES = timedelta(minutes=60)
"""How long a request waits for its answer."""
APPROVAL_LIVES = timedelta(minutes=15)
"""How long an approval waits for its first shell."""
SKEW_MAX = timedelta(seconds=5)
"""How far Tower's clock and an API server's may be apart."""


def deadline(session: Session) -> datetime | None:
    """When the clock ends the session as it stands: request, unopened approval or session time; None once it has ended."""
    if session.ended is not None:
        return None
    if session.hard_stop_at is not None:
        return session.hard_stop_at
    if session.state is State.REQUESTED:
        return session.request.asked_at + REQUEST_LIVES
    return session.approved_at + APPROVAL_LIVES if session.approved_at and session.state is State.APPROVED else None


def is_due(session: Session, at: datetime) -> Denied | None:
    """Whether the session's clock has run out: a timer that decided on an older row expires nothing."""
    until = deadline(session)
    if until is not None and at >= until:
        return None
    return no(Code.WRONG_STATE, f"Session {session.sid} has time left.", "Look at the session again.")


def waits(session: Session, at: datetime) -> Denied | None:
    """Whether the request may still be answered."""
    until = session.request.asked_at + REQUEST_LIVES
    if at < until:
        return None
    sentence = f"Nobody answered this request by {clock(until)}, so it has lapsed."
    return no(Code.REQUEST_EXPIRED, sentence, "Its requester can ask again.")


def may_decide(session: Session, approver: Person, request_digest: str, at: datetime) -> Denied | None:
    """Whether this person's yes to this digest can count: the request is this one, not their own, and waits in time."""
    return _is_a_yes(session, approver, request_digest) or waits(session, at)


def needs_nobody(session: Session, at: datetime) -> Denied | None:
    """Whether the request may go on without another person: on Ground only."""
    if session.request.tier is Tier.GROUND:
        return waits(session, at)
    return no(Code.NOT_ENTITLED, f"{session.request.tier.words} needs another person's approval.", _ASK_SOMEBODY)


def may_start(session: Session, at: datetime) -> Denied | None:
    """Whether another shell may be opened: shells and time are left, and on Flight there is a yes that counts."""
    if len(session.shells) >= SHELLS_MAX:
        return no(Code.SHELLS_SPENT, f"All {SHELLS_MAX} shells of session {session.sid} were used.", "Ask for a new session.")
    until = deadline(session)
    if until is not None and at >= until and session.started_at is not None:
        return no(Code.TIME_OVER, f"The time of session {session.sid} was over at {clock(until)}.", "Ask for a new session.")
    if until is not None and at >= until:
        return no(Code.REQUEST_EXPIRED, f"The approval was not used by {clock(until)} and has lapsed.", "Ask again.")
    return _approval_counts(session)


def is_next(session: Session, shell: Shell) -> Denied | None:
    """Whether the shell is the next one by number: no hole, no repeat."""
    following = len(session.shells) + 1
    if shell.number == following:
        return None
    return no(Code.WRONG_STATE, f"The next shell is number {following}, not {shell.number}.", "Look at the session again.")


def is_opening(session: Session, number: int, started_at: datetime, at: datetime) -> Denied | None:
    """Whether shell `number` is the one that is opening; and a start outside its opening would move the hard stop."""
    shell = session.shell
    if shell is None or shell.number != number:
        return no(Code.WRONG_STATE, f"Shell {number} is not the one that is opening.", "Look at the session again.")
    if session.started_at is not None or shell.opening_at - SKEW_MAX <= started_at <= at + SKEW_MAX:
        return None
    sentence = "The API server's clock and Tower's are more than 5 s apart."
    return no(Code.CLOCK_SKEW, sentence, "Platform team: mend the clocks (NTP), then open again.")


def may_account(session: Session, person: Person) -> Denied | None:
    """Whether this person broke the glass: nobody else can account for it."""
    if session.glass is not None and person.same(session.glass.breaker):
        return None
    return no(Code.NOT_ENTITLED, "Only the person who broke the glass can account for it.", "Ask them to write it.")


def may_review(session: Session, person: Person) -> Denied | None:
    """Whether this person neither broke the glass nor asked, under any alias."""
    involved = [session.request.requester, *([session.glass.breaker] if session.glass else [])]
    if not any(person.same(other) for other in involved):
        return None
    sentence = "You broke the glass or asked for it, so another admin must review it."
    return no(Code.SELF_REVIEW, sentence, "Ask another platform admin.")


def clock(at: datetime) -> str:
    """A time of day as sentences say it."""
    return f"{at:%H:%M} UTC"


_ASK_SOMEBODY = "Ask an owner of the app or a platform admin."


def _is_a_yes(session: Session, approver: Person, request_digest: str) -> Denied | None:
    if request_digest != session.request.digest:
        sentence = "This yes is to another request than the one that waits."
        return no(Code.DIGEST_MISMATCH, sentence, "Look at the request again, then decide.")
    if approver.same(session.request.requester):
        sentence = "You asked for this yourself, so another person must approve it."
        return no(Code.SELF_APPROVAL, sentence, "Ask another owner of the app or a platform admin.")
    return None


def _approval_counts(session: Session) -> Denied | None:
    """On Flight: a broken glass, or a yes to this very digest by somebody who is not the requester under any alias."""
    request, approval = session.request, session.approval
    if request.tier is Tier.GROUND or session.glass is not None:
        return None
    if approval is None:
        sentence = f"Nobody else has approved this request, and it is {request.tier.words}."
        return no(Code.NOT_ENTITLED, sentence, _ASK_SOMEBODY)
    return _is_a_yes(session, approval.approver, approval.request_digest)
