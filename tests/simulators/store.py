"""A store in memory: compare-and-swap, one open session a name, audit in the same step, tickets taken once; faults on demand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from breakglass.core.model import EntityRef, Session, Sid, State
from breakglass.core.session import is_open
from breakglass.ports import AuditEvent, OpenElsewhereError, PortError, StaleError, Ticket, Trouble
from tests.simulators.faults import Faults, around


@dataclass(slots=True)
class MemoryStore:
    """Store, Audit and Tickets; a write is one step of the event loop, so it is atomic."""

    faults: Faults = field(default_factory=Faults)
    sessions: dict[Sid, Session] = field(default_factory=dict)
    events: list[AuditEvent] = field(default_factory=list)
    tickets: dict[str, Ticket] = field(default_factory=dict)

    async def create(self, session: Session, audit: AuditEvent) -> None:
        """Insert, or say whose place it is."""
        with around(await self.faults.before("create"), "create"):
            self._claim(session)
            if session.sid in self.sessions:
                raise PortError(Trouble.CONFLICT, f"there is a session {session.sid} already; ask again")
            self.sessions[session.sid] = session
            self.events.append(audit)

    async def replace(self, session: Session, audit: AuditEvent) -> None:
        """Swap version n-1 for n."""
        with around(await self.faults.before("replace"), "replace"):
            current = self.sessions.get(session.sid)
            if current is None or current.version != session.version - 1:
                raise StaleError
            if current.request.digest != session.request.digest:
                raise PortError(Trouble.INVALID, f"the request of session {session.sid} cannot change; ask for a new session")
            self._claim(session)
            self.sessions[session.sid] = session
            self.events.append(audit)

    def _claim(self, session: Session) -> None:
        if not is_open(session):
            return
        for other in self.sessions.values():
            if other.sid != session.sid and is_open(other) and other.request.requester.same(session.request.requester):
                raise OpenElsewhereError(other.sid)

    async def load(self, sid_prefix: str) -> Session | None:
        """By id or by the only id that begins so."""
        with around(await self.faults.before("load"), "load"):
            if not re.fullmatch(r"[a-z2-7]{4,10}", sid_prefix):
                return None
            found = [session for sid, session in self.sessions.items() if sid.startswith(sid_prefix)]
            return found[0] if len(found) == 1 else None

    async def find(
        self, *, states: frozenset[State] | None = None, app: EntityRef | None = None, limit: int = 200
    ) -> Sequence[Session]:
        """Newest first."""
        with around(await self.faults.before("find"), "find"):
            found = [
                session
                for session in self.sessions.values()
                if (states is None or session.state in states) and (app is None or session.request.app == app)
            ]
            return sorted(sorted(found, key=lambda one: one.sid), key=lambda one: one.request.asked_at, reverse=True)[:limit]

    async def append(self, event: AuditEvent) -> None:
        """Append one event."""
        with around(await self.faults.before("append"), "append"):
            self.events.append(event)

    async def of(self, sid: Sid) -> Sequence[AuditEvent]:
        """A session's events, oldest first."""
        with around(await self.faults.before("of"), "of"):
            return [event for event in self.events if event.sid == sid]

    async def put(self, ticket_hash: str, ticket: Ticket) -> None:
        """Keep a ticket."""
        with around(await self.faults.before("put"), "put"):
            if ticket_hash in self.tickets:
                raise PortError(Trouble.CONFLICT, "this ticket was given out already; ask for another")
            self.tickets[ticket_hash] = ticket

    async def take(self, ticket_hash: str) -> Ticket | None:
        """Take a ticket, once."""
        with around(await self.faults.before("take"), "take"):
            return self.tickets.pop(ticket_hash, None)
