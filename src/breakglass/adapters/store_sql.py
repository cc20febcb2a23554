"""Sessions, audit trail and tickets in SQL: a change and its audit event are there together, durably, or not at all.

Outside the layers, behind the ports Store, Audit and Tickets; what layer 3 promises about races rests on it. Must never:
decide anything, block the event loop, or hold a ticket in clear.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError
from sqlalchemy import Connection, Engine, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from breakglass.adapters.store_sql_engine import ALIAS, AUDIT, SESSION, TICKET, failures, open_sqlite, transaction
from breakglass.core.model import EntityRef, Session, Sid, State
from breakglass.core.session import is_open
from breakglass.ports import AuditEvent, OpenElsewhereError, PortError, StaleError, Ticket, Trouble

T = TypeVar("T")

READERS: Final = 2
TICKETS_KEPT: Final = timedelta(minutes=10)
"""How long a ticket nobody took outlives its expiry before the next one sweeps it away."""

_PREFIX = re.compile(r"[a-z2-7]{4,10}")
_DOCUMENT: Final = TypeAdapter(Session)


def write_document(session: Session) -> str:
    """The session as JSON; `invalid` when a text in it is not Unicode."""
    try:
        return _DOCUMENT.dump_json(session).decode()
    except PydanticSerializationError as error:
        raise PortError(Trouble.INVALID, f"session {session.sid} holds text that is not Unicode; ask again without it") from error


def read_document(sid: str, document: str) -> Session:
    """The session that was written, nothing added and nothing dropped; `fatal` when it is not readable as that."""
    try:
        session = _DOCUMENT.validate_json(document, strict=True)
        if not _holds(json.loads(_DOCUMENT.dump_json(session)), json.loads(document)):
            raise PortError(Trouble.FATAL, f"session {sid} was written by a newer Tower; run that one")
    except (ValidationError, ValueError) as error:
        raise PortError(Trouble.FATAL, f"session {sid} in the store is not readable; restore the store from a backup") from error
    return session


def _holds(ours: Any, theirs: Any) -> bool:
    """Whether every field of `theirs` is one of `ours`: an unknown field would be lost at the next change."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(key in ours and _holds(ours[key], value) for key, value in theirs.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return all(_holds(one, other) for one, other in zip(ours, theirs, strict=True))
    return True


class StoreSql:
    """Store, Audit and Tickets over one SQLite database, on threads of its own: one that writes, two that read.

    A call that is cancelled may have happened: the thread finishes what it began.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = f"the store {name}"
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-write")
        self._readers = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="store-read")

    @classmethod
    async def open(cls, path: Path) -> StoreSql:
        """Open, check and migrate the database at `path`, or make it. `fatal` when it is damaged, foreign or newer than we."""
        return cls(await asyncio.to_thread(open_sqlite, path), str(path))

    async def close(self) -> None:
        """Wait for what is being written, then let go of the file. A second time is harmless."""
        await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        self._engine.dispose()

    # --- Store --------------------------------------------------------------------------------------------------------

    async def create(self, session: Session, audit: AuditEvent) -> None:
        """Row, names and audit event in one transaction; `OpenElsewhereError` when the index on open names objects."""
        document = write_document(session)
        names = sorted(session.request.requester.names)

        def work(connection: Connection) -> None:
            connection.execute(insert(SESSION).values(_columns(session, document)))
            rows = [{"sid": session.sid, "alias": name, "open": int(is_open(session))} for name in names]
            connection.execute(insert(ALIAS), rows)
            connection.execute(insert(AUDIT).values(_event_columns(audit)))

        await self._claim(session, work)

    async def replace(self, session: Session, audit: AuditEvent) -> None:
        """Version n over n-1 with its audit event. The request never changes: `invalid` when it would."""
        document = write_document(session)
        place = int(is_open(session))

        def work(connection: Connection) -> None:
            query = select(SESSION.c.version, SESSION.c.request_digest).where(SESSION.c.sid == session.sid)
            row = connection.execute(query).one_or_none()
            if row is None or row.version != session.version - 1:
                raise StaleError
            if row.request_digest != session.request.digest:
                raise PortError(Trouble.INVALID, f"the request of session {session.sid} cannot change; ask for a new session")
            at_this_version = (SESSION.c.sid == session.sid) & (SESSION.c.version == session.version - 1)
            if connection.execute(update(SESSION).where(at_this_version).values(_columns(session, document))).rowcount != 1:
                raise StaleError
            connection.execute(update(ALIAS).where(ALIAS.c.sid == session.sid, ALIAS.c.open != place).values(open=place))
            connection.execute(insert(AUDIT).values(_event_columns(audit)))

        await self._claim(session, work)

    async def load(self, sid_prefix: str) -> Session | None:
        """The one session whose id is or begins with this; None when none or several do."""
        if not _PREFIX.fullmatch(sid_prefix):
            return None
        query = select(SESSION.c.sid, SESSION.c.document).where(SESSION.c.sid.like(f"{sid_prefix}%")).limit(2)
        rows = await self._read(lambda connection: connection.execute(query).all())
        return read_document(rows[0].sid, rows[0].document) if len(rows) == 1 else None

    async def find(
        self, *, states: frozenset[State] | None = None, app: EntityRef | None = None, limit: int = 200
    ) -> Sequence[Session]:
        """Sessions newest first."""
        query = select(SESSION.c.sid, SESSION.c.document).order_by(SESSION.c.asked_at.desc(), SESSION.c.sid).limit(limit)
        if states is not None:
            query = query.where(SESSION.c.state.in_(sorted(states)))
        if app is not None:
            query = query.where(SESSION.c.app == app)
        return await self._read(lambda connection: [read_document(row.sid, row.document) for row in connection.execute(query)])

    # --- Audit --------------------------------------------------------------------------------------------------------

    async def append(self, event: AuditEvent) -> None:
        """One event, durable on return."""
        values = _event_columns(event)
        await self._write(lambda connection: connection.execute(insert(AUDIT).values(values)))

    async def of(self, sid: Sid) -> Sequence[AuditEvent]:
        """A session's events in the order they were written."""
        query = select(AUDIT).where(AUDIT.c.sid == sid).order_by(AUDIT.c.seq)
        return await self._read(lambda connection: [_event(row) for row in connection.execute(query)])

    # --- Tickets ------------------------------------------------------------------------------------------------------

    async def put(self, ticket_hash: str, ticket: Ticket) -> None:
        """Keep a ticket under its hash; long-expired ones go. `conflict` when the hash is there already."""
        row = {
            "hash": ticket_hash,
            "person": ticket.person,
            "sid": ticket.sid,
            "role": ticket.role,
            "origin": ticket.origin,
            "expires_at": _time(ticket.expires_at),
        }

        def work(connection: Connection) -> None:
            connection.execute(delete(TICKET).where(TICKET.c.expires_at < _time(ticket.expires_at - TICKETS_KEPT)))
            connection.execute(insert(TICKET).values(row))

        try:
            await self._write(work)
        except IntegrityError as error:
            raise PortError(Trouble.CONFLICT, "this ticket was given out already; ask for another") from error

    async def take(self, ticket_hash: str) -> Ticket | None:
        """The ticket, once: deleting is taking, and a row is deleted by one."""
        statement = delete(TICKET).where(TICKET.c.hash == ticket_hash).returning(TICKET)
        row = await self._write(lambda connection: connection.execute(statement).one_or_none())
        if row is None:
            return None
        expires_at = datetime.fromisoformat(row.expires_at)
        return Ticket(person=EntityRef(row.person), sid=Sid(row.sid), role=row.role, origin=row.origin, expires_at=expires_at)

    # --- threads ------------------------------------------------------------------------------------------------------

    async def _claim(self, session: Session, work: Callable[[Connection], None]) -> None:
        """Write, and when a unique index objects say whose place it is: the index judges, this only reads its reason."""
        try:
            await self._write(work)
        except IntegrityError as error:
            holder, exists = await self._read(lambda connection: _holder(connection, session))
            if holder is not None:
                raise OpenElsewhereError(holder) from error
            if exists and session.version == 1:
                raise PortError(Trouble.CONFLICT, f"there is a session {session.sid} already; ask again") from error
            raise PortError(Trouble.TRANSIENT, "another session of this person just ended; try again") from error

    async def _write(self, work: Callable[[Connection], T]) -> T:
        return await self._run(self._writer, work, write=True)

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._run(self._readers, work, write=False)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[Connection], T], *, write: bool) -> T:
        def run() -> T:
            with failures(self._name, write=write), transaction(self._engine, write=write) as connection:
                return work(connection)

        try:
            done = asyncio.get_running_loop().run_in_executor(threads, run)
        except RuntimeError as error:  # the pool's word for "shut"
            raise PortError(Trouble.FATAL, f"{self._name} is closed; start Tower again") from error
        return await done


def _holder(connection: Connection, session: Session) -> tuple[str | None, bool]:
    names = sorted(session.request.requester.names)
    query = select(ALIAS.c.sid).where(ALIAS.c.open == 1, ALIAS.c.alias.in_(names), ALIAS.c.sid != session.sid).limit(1)
    exists = connection.execute(select(SESSION.c.sid).where(SESSION.c.sid == session.sid)).scalar()
    return connection.execute(query).scalar(), exists is not None


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _columns(session: Session, document: str) -> Mapping[str, Any]:
    return {
        "sid": session.sid,
        "version": session.version,
        "state": session.state.value,
        "app": session.request.app,
        "requester": session.request.requester.ref,
        "request_digest": session.request.digest,
        "asked_at": _time(session.request.asked_at),
        "changed_at": _time(session.changed_at),
        "document": document,
    }


def _event_columns(event: AuditEvent) -> Mapping[str, Any]:
    return {
        "name": event.name,
        "at": _time(event.at),
        "actor": event.actor,
        "sid": event.sid,
        "app": event.app,
        "code": event.code,
        "details": json.dumps(dict(event.details), sort_keys=True),
    }


def _event(row: Row[Any]) -> AuditEvent:
    return AuditEvent(
        name=row.name,
        at=datetime.fromisoformat(row.at),
        actor=row.actor,
        sid=row.sid,
        app=row.app,
        code=row.code,
        details=json.loads(row.details),
    )
