"""The one way to change a session's row: load, decide, step, compare-and-swap, with its audit event in the same transaction.

Must never: write a row that `core/session.py` did not make, or keep a decision across a lost race.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from breakglass.core.codes import Code
from breakglass.core.model import Denied, EntityRef, Session, Sid
from breakglass.core.session import Event, step
from breakglass.ports import AuditEvent, OpenElsewhereError, PortError, StaleError, Store

Decide = Callable[[Session], Awaitable[Event | Denied]]

_RACES = 20
"""How often a row may change under us before we give up and say so."""


class Rows:
    """The sole writer of session rows in this process, and the place to wait for their next change."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._changed = asyncio.Event()

    async def create(self, session: Session, name: str, details: Mapping[str, str]) -> Session | Denied:
        """Insert a new session; `session_open_elsewhere` when any of the requester's names holds one already."""
        try:
            await self._store.create(session, self._event(session, name, session.request.requester.ref, None, details))
        except OpenElsewhereError as elsewhere:
            return open_elsewhere(elsewhere.sid)
        except PortError as error:
            return _unavailable(error)
        self.poke()
        return session

    async def change(
        self,
        sid: Sid,
        decide: Decide,
        name: str,
        *,
        actor: EntityRef | None = None,
        details: Mapping[str, str] | None = None,
    ) -> Session | Denied:
        """Change one session by one event.

        1. Load the row as it is now. 2. Let the caller decide on exactly this version (rules, digests, people: its part).
        3. Step the machine, which refuses what is out of order. 4. Compare-and-swap with the audit event; when somebody
        was faster, start again at 1: a decision never outlives the row it was made on.
        """
        try:
            for _ in range(_RACES):
                session = await self._store.load(sid)  # (1)
                if session is None:
                    return Denied(
                        code=Code.NOT_FOUND, sentence=f"There is no session {sid}.", remedy="List yours: breakglass sessions"
                    )
                event = await decide(session)  # (2)
                if isinstance(event, Denied):
                    return event
                changed = step(session, event)  # (3)
                if isinstance(changed, Denied):
                    return changed
                try:
                    await self._store.replace(changed, self._event(changed, name, actor, None, details or {}))  # (4)
                except StaleError:
                    continue
                except OpenElsewhereError as elsewhere:
                    return open_elsewhere(elsewhere.sid)
                self.poke()
                return changed
        except PortError as error:
            return _unavailable(error)
        return Denied(
            code=Code.STORE_UNAVAILABLE,
            sentence=f"Session {sid} keeps changing under this request.",
            remedy="Look at it again, then repeat.",
        )

    def poke(self) -> None:
        """Something about some session is new: whoever waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def next_change(self, seconds: float) -> None:
        """Return at the next change of any session, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _event(
        self, session: Session, name: str, actor: EntityRef | None, code: str | None, details: Mapping[str, str]
    ) -> AuditEvent:
        return AuditEvent(
            name=name,
            at=self._now(),
            actor=actor,
            sid=session.sid,
            app=session.request.app,
            code=code,
            details={"state": session.state.value, **details},
        )


def open_elsewhere(sid: str) -> Denied:
    """One open session each: the other one's id, and what to do with it."""
    return Denied(
        code=Code.SESSION_OPEN_ELSEWHERE,
        sentence=f"You have an open session already: {sid}. One open session each.",
        remedy=f"Go on in it (breakglass shell --resume {sid}) or end it first: breakglass end {sid}",
    )


def _unavailable(error: PortError) -> Denied:
    return Denied(
        code=Code.STORE_UNAVAILABLE,
        sentence=f"Tower cannot write down what it is about to do ({error}), so it does nothing.",
        remedy="Look at Tower's store (breakglass doctor), then repeat.",
    )
