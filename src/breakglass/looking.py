"""Layers 2 and 3 at the reading doors: who may see, join and replay a session; every look at a record leaves a trace.

Must never: change a session's row, or hand out a ticket to somebody who could not use it now.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from breakglass.core import session as machine
from breakglass.core.codes import Code
from breakglass.core.evidence import prefix
from breakglass.core.facts import AppFacts, PersonFacts
from breakglass.core.model import Actor, Denied, EntityRef, Session, Sid, State, entity_ref, is_sid
from breakglass.core.permissions import Permission
from breakglass.core.words import process_access_sentence
from breakglass.judging import AppCapabilities, Judge, Judged, cannot_decide
from breakglass.live import Told, Viewer
from breakglass.notices import Notices
from breakglass.ports import AuditEvent, PortError, Stored, Ticket, Trouble
from breakglass.rows import Rows
from breakglass.running import Running
from breakglass.tower import Tower

TICKET_SECONDS = 30
LONG_POLL_SECONDS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A session as its reader may see it, with what it waits for and who could answer."""

    session: Session
    progress: str
    waiting_on: tuple[EntityRef, ...]
    process_access_sentence: str
    on_call: str
    entitled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordListing:
    """What the vault holds of a session; keys are relative to it."""

    sid: Sid
    objects: tuple[Stored, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether sessions can open now, check by check: name, good, in words."""

    ready: bool
    checks: tuple[tuple[str, bool, str], ...]


class Looking:
    """The verbs that change nothing, and what every verb needs: find the session, judge the actor, write down a refusal."""

    def __init__(self, tower: Tower, rows: Rows, running: Running, judge: Judge, notices: Notices) -> None:
        self._tower = tower
        self._rows = rows
        self._running = running
        self._judge = judge
        self._notices = notices

    # --- see ----------------------------------------------------------------------------------------------------------

    async def session(self, actor: Actor, sid: str, *, newer_than: int | None = None) -> Seen | Denied:
        """One session; with `newer_than`, as soon as its version is higher or its progress changed, at most 25 s later."""
        session = await self._readable(actor, sid)
        if isinstance(session, Denied):
            return session
        if newer_than is not None and session.version <= newer_than:
            until = self._tower.clock.monotonic() + LONG_POLL_SECONDS
            before = self._running.progress(session.sid)
            while (left := until - self._tower.clock.monotonic()) > 0:
                await self._rows.next_change(left)
                fresh = await self._find(session.sid)
                if isinstance(fresh, Denied):
                    return fresh
                session = fresh
                if session.version > newer_than or self._running.progress(session.sid) != before:
                    break
        waiting = await self._notices.answerers(session) if session.state is State.REQUESTED else ()
        return Seen(
            session=session,
            progress=self._running.progress(session.sid),
            waiting_on=waiting,
            process_access_sentence=process_access_sentence(session.request),
            on_call=self._tower.settings.on_call,
            entitled=actor.person.same(session.request.requester),
        )

    async def sessions(self, actor: Actor, *, app: str | None, open_only: bool) -> Sequence[Session] | Denied:
        """Sessions the actor may see, newest first: their own, and those of apps they may read."""
        ref = entity_ref(app) if app else None
        if app and ref is None:
            return Denied(
                code=Code.UNKNOWN_APP, sentence=f"The catalog knows no app {app[:80]!r}.", remedy="Look it up: breakglass can"
            )
        try:
            found = await self._tower.store.find(states=machine.OPEN_STATES if open_only else None, app=ref)
        except PortError as error:
            return unreadable(error)
        readable: dict[EntityRef, bool] = {}
        for of in {session.request.app for session in found}:
            readable[of] = not isinstance(await self._judge.app(actor, of, Permission.SESSION_READ), Denied)
        return [s for s in found if readable[s.request.app] or actor.person.same(s.request.requester)]

    async def whoami(self, actor: Actor) -> PersonFacts | Denied:
        """The person behind a credential, as the catalog has them."""
        try:
            person = await self._tower.catalog.person(actor.person.ref)
        except PortError as error:
            return cannot_decide("who you are", error)
        return person or Denied(
            code=Code.NOT_ENTITLED,
            sentence=f"The catalog does not know {actor.person.ref}.",
            remedy="Ask the catalog's owners to add you.",
        )

    async def apps(self, actor: Actor) -> Sequence[AppFacts] | Denied:
        """Every app of the catalog; knowing a name is no right."""
        del actor
        try:
            return await self._tower.catalog.apps()
        except PortError as error:
            return cannot_decide("which apps there are", error)

    async def can(self, actor: Actor, app: str) -> AppCapabilities | Denied:
        """What the actor may do to an app in each environment, and why not: the same decisions that every route takes again."""
        judged = await self._judge.relations(actor, app)
        if isinstance(judged, Denied):
            return judged
        return await self._judge.capabilities(judged)

    async def audit(self, actor: Actor, sid: str) -> Sequence[AuditEvent] | Denied:
        """Everything that happened to a session."""
        session = await self._readable(actor, sid)
        if isinstance(session, Denied):
            return session
        try:
            return await self._tower.audit.of(session.sid)
        except PortError as error:
            return unreadable(error)

    # --- look and type ------------------------------------------------------------------------------------------------

    async def ticket(self, actor: Actor, sid: str, *, role: str, origin: str) -> str | Denied:
        """A right to one WebSocket: 128 random bits, stored hashed, 30 s, once; for the person, session, role and Origin.

        `drive` is the requester's alone and needs them to be entitled now; not being able to decide is a no here too.
        """
        found: tuple[Session, object] | Session | Denied
        if role == "drive":
            found = await self._own(actor, sid)
            if isinstance(found, Session):
                permission = self._entitling(found)
                judged = await self._judge.app(actor, found.request.app, permission)
                found = judged if isinstance(judged, Denied) else found
        else:
            found = await self._readable(actor, sid)
        if isinstance(found, Denied):
            return await self._refused(actor, found, sid=Sid(sid) if is_sid(sid) else None)
        clear = self._tower.clock.random(16).hex()
        ticket = Ticket(
            person=actor.person.ref,
            sid=found.sid,
            role=role,
            origin=origin,
            expires_at=self._now() + timedelta(seconds=TICKET_SECONDS),
        )
        try:
            await self._tower.tickets.put(_hash(clear), ticket)
        except PortError as error:
            return unreadable(error)
        return clear

    async def join(self, ticket: str, sid: str, *, origin: str) -> Viewer | Denied:
        """Turn a ticket into a viewer. 1. Take it: once. 2. Time, session and Origin fit. 3. The session's shell runs here."""
        try:
            taken = await self._tower.tickets.take(_hash(ticket))  # (1)
        except PortError as error:
            return unreadable(error)
        if taken is None or taken.expires_at <= self._now() or taken.sid != sid or taken.origin != origin:  # (2)
            return Denied(
                code=Code.TICKET_INVALID,
                sentence="This ticket is not valid here, or was used already.",
                remedy="Get a new one; it lives 30 s.",
            )
        live = self._running.live(taken.sid)  # (3)
        if live is None:
            return Denied(
                code=Code.WRONG_STATE,
                sentence=f"Session {sid} has no shell that could be joined.",
                remedy="Open one: breakglass shell",
            )
        if taken.role != "drive":
            event = AuditEvent(name="session.watched", at=self._now(), actor=taken.person, sid=taken.sid, app=None)
            await self._tower.audit.append(event)
            live.tell(Told(kind="watcher", sentence=f"{taken.person} is watching"))
        return live.join(taken.role)

    async def seen_by(self, viewer: Viewer) -> Session | Denied:
        """The session a viewer has joined: its ticket was the right to see it."""
        return await self._find(viewer.sid)

    async def record(self, actor: Actor, sid: str) -> RecordListing | Denied:
        """What the vault holds of a session: from the manifest once it is sealed. Looking is an audit event."""
        found = await self._for(actor, sid, Permission.REPLAY)
        if isinstance(found, Denied):
            return found
        session = found[0]
        try:
            objects = await self._objects(session.sid)
            event = AuditEvent(
                name="record.listed", at=self._now(), actor=actor.person.ref, sid=session.sid, app=session.request.app
            )
            await self._tower.audit.append(event)
        except PortError as error:
            return unreadable(error)
        return RecordListing(sid=session.sid, objects=tuple(objects))

    async def _objects(self, sid: Sid) -> list[Stored]:
        objects = []
        for key in await self._tower.vault.keys(prefix(sid)):
            data = await self._tower.vault.get(key)
            digest = hashlib.sha256(data).hexdigest()
            objects.append(Stored(key=key.removeprefix(prefix(sid)), version="", sha256=digest, size=len(data)))
        return objects

    async def record_object(self, actor: Actor, sid: str, name: str) -> bytes | Denied:
        """One object. The input lane (`*.in`) is ciphertext to Tower, and still only for those who may replay input."""
        permission = Permission.REPLAY_INPUT if name.endswith(".in") else Permission.REPLAY
        found = await self._for(actor, sid, permission)
        if isinstance(found, Denied):
            return found
        session = found[0]
        try:
            data = await self._tower.vault.get(prefix(session.sid) + name)
            event = AuditEvent(
                name="record.read",
                at=self._now(),
                actor=actor.person.ref,
                sid=session.sid,
                app=session.request.app,
                details={"object": name},
            )
            await self._tower.audit.append(event)
        except PortError as error:
            if error.trouble is Trouble.NOT_FOUND:
                return Denied(
                    code=Code.NOT_FOUND, sentence=f"The record of {sid} has no object {name[:80]!r}.", remedy="List it first."
                )
            return unreadable(error)
        return data

    async def health(self) -> Health:
        """What a session needs, each looked at now. Only names and sentences: nothing here needs a right to be read."""
        checks = [await self._store_health(), await self._vault_health()]
        checks += await asyncio.gather(*(self._cluster_health(name) for name in sorted(self._tower.clusters)))
        return Health(ready=all(good for _, good, _ in checks), checks=tuple(checks))

    async def _store_health(self) -> tuple[str, bool, str]:
        try:
            await self._tower.store.find(limit=1)
        except PortError as error:
            return "store", False, str(error)
        return "store", True, "the store answers"

    async def _vault_health(self) -> tuple[str, bool, str]:
        probe = await self._tower.vault.probe()
        return "vault", probe.usable, probe.sentence

    async def _cluster_health(self, name: str) -> tuple[str, bool, str]:
        try:
            facts = await self._tower.clusters[name].facts.cluster()
        except PortError as error:
            return f"cluster {name}", False, str(error)
        return f"cluster {name}", True, f"Kubernetes {facts.version[0]}.{facts.version[1]}"

    # --- small things -------------------------------------------------------------------------------------------------

    async def _find(self, sid: str) -> Session | Denied:
        try:
            session = await self._tower.store.load(sid)
        except PortError as error:
            return unreadable(error)
        return session or Denied(
            code=Code.NOT_FOUND, sentence=f"There is no session {sid[:12]!r}.", remedy="List yours: breakglass sessions"
        )

    async def _for(self, actor: Actor, sid: str, permission: Permission) -> tuple[Session, Judged] | Denied:
        """The session and the actor before its app, when layers 2 and 3 allow the permission now. Refusals are audited."""
        session = await self._find(sid)
        if isinstance(session, Denied):
            return session
        judged = await self._judge.app(actor, session.request.app, permission)
        if isinstance(judged, Denied):
            return await self._refused(actor, judged, session.request.app, session.sid)
        return session, judged

    async def _own(self, actor: Actor, sid: str) -> Session | Denied:
        session = await self._find(sid)
        if isinstance(session, Denied) or actor.person.same(session.request.requester):
            return session
        denied = Denied(
            code=Code.NOT_ENTITLED,
            sentence=f"Session {session.sid} is {session.request.requester.ref}'s; only they type in it.",
            remedy="Watch it instead, or ask for your own.",
        )
        return await self._refused(actor, denied, session.request.app, session.sid)

    async def _readable(self, actor: Actor, sid: str) -> Session | Denied:
        session = await self._find(sid)
        if isinstance(session, Denied) or actor.person.same(session.request.requester):
            return session
        found = await self._for(actor, session.sid, Permission.SESSION_READ)
        return found if isinstance(found, Denied) else found[0]

    async def _refused(self, actor: Actor, denied: Denied, app: str | None = None, sid: Sid | None = None) -> Denied:
        """A refusal is an audit event too. If even that cannot be written the answer is still no."""
        event = AuditEvent(
            name="refused",
            at=self._now(),
            actor=actor.person.ref,
            sid=sid,
            app=entity_ref(app) if app else None,
            code=denied.code.value,
        )
        with contextlib.suppress(PortError):
            await self._tower.audit.append(event)
        return denied

    def _entitling(self, session: Session) -> Permission:
        """The permission a session's requester must still hold: an admin who broke the glass holds break, not request."""
        broke = session.glass is not None and session.glass.breaker.same(session.request.requester)
        return Permission.BREAK if broke else Permission.REQUEST

    def _now(self) -> datetime:
        return self._tower.clock.now()


def unreadable(error: PortError) -> Denied:
    """The store or the vault does not answer."""
    return Denied(
        code=Code.STORE_UNAVAILABLE,
        sentence=f"Tower cannot read its own state: {error}.",
        remedy="breakglass doctor says what is wrong.",
    )


def _hash(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
