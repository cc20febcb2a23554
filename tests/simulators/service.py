"""A model of `breakglass.service` small enough to read: one catalog, sessions in a dict, and a shell that echoes.

For the edges' own tests (HTTP, WebSocket, CLI). It decides by the same words and codes as the real one, from three rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from breakglass.core import rules
from breakglass.core.codes import Code
from breakglass.core.facts import AppFacts, PersonFacts, Relations
from breakglass.core.model import (
    Actor,
    AfterProcessAccess,
    Approval,
    Denied,
    Ended,
    EndReason,
    EntityRef,
    Environment,
    GlassBroken,
    Mode,
    Person,
    Request,
    Sealed,
    Session,
    Shell,
    Sid,
    State,
    Tier,
    entity_ref,
    no,
)
from breakglass.core.permissions import Action, Capability
from breakglass.core.session import OPEN_STATES
from breakglass.core.words import ended_sentence, process_access_sentence
from breakglass.judging import AppCapabilities, EnvironmentCapabilities
from breakglass.live import Ended as EndedFrame
from breakglass.live import Input, Live, Resize, Told, Viewer
from breakglass.looking import Health, RecordListing, Seen
from breakglass.ports import AuditEvent, Stored
from breakglass.service import Ask

APP = EntityRef("component:default/checkout")
ANA, BEN, CARLA, OZ = (EntityRef(f"user:default/{name}") for name in ("ana", "ben", "carla", "oz"))
OWNERS, ADMINS = frozenset({ANA, BEN}), frozenset({CARLA})
CAST = b'{"version":3,"term":{"cols":80,"rows":24}}\n[0.1,"o","hello\\r\\n"]\n'
LONG_POLL_SECONDS = 5.0
ASK = {"app": "checkout", "environment": "prod", "reason": "checkout answers 500 since the deploy"}
"""A request as the HTTP API takes it."""


class SimulatedIdentity:
    """`token-ana` is ana. Every other credential is nobody's."""

    async def actor(self, credential: str) -> Actor | Denied:
        name = credential.removeprefix("token-")
        if credential != f"token-{name}" or name not in {"ana", "ben", "carla", "oz"}:
            return Denied(
                code=Code.NOT_SIGNED_IN, sentence="This token is not one of Tower's.", remedy="Get one: breakglass dev token"
            )
        return Actor(person=Person(ref=EntityRef(f"user:default/{name}")), proof="simulated")


class SimulatedService:
    """The verbs of `breakglass.service.Service`. What was typed and which sizes were asked for is kept for tests to look at."""

    def __init__(self) -> None:
        self.rows: dict[Sid, Session] = {}
        self.lives: dict[Sid, Live] = {}
        self.typed = bytearray()
        self.sizes: list[tuple[int, int]] = []
        self.objects: dict[str, bytes] = {"00000.cast": CAST}
        self.progress = ""
        self.reading = asyncio.Event()
        self.reading.set()
        self.failing: Exception | None = None
        self._tickets: dict[str, tuple[EntityRef, Sid, str, str]] = {}
        self._changed = asyncio.Event()
        self._shells: set[asyncio.Task[None]] = set()

    # --- see ----------------------------------------------------------------------------------------------------------

    async def whoami(self, actor: Actor) -> PersonFacts | Denied:
        return PersonFacts(person=actor.person, groups=frozenset({EntityRef("group:default/shop")}))

    async def apps(self, actor: Actor) -> Sequence[AppFacts] | Denied:
        return [_APP]

    async def can(self, actor: Actor, app: str) -> AppCapabilities | Denied:
        if entity_ref(app) != APP:
            return _unknown(app)
        yes = actor.person.ref in OWNERS
        denied = None if yes else _not_entitled("ask for a session")
        request = Capability(
            action=Action.REQUEST,
            allowed=yes,
            code=denied.code if denied else None,
            sentence=denied.sentence if denied else "You may ask for a session.",
            remedy=denied.remedy if denied else "",
            who_could=("owners of the app",),
        )
        return AppCapabilities(
            app=_APP,
            relations=Relations(owner=yes, admin=actor.person.ref in ADMINS, auditor=False),
            environments=(EnvironmentCapabilities(name="prod", environment=_PROD, capabilities=(request,)),),
            open_session=self._open_one(actor),
        )

    async def sessions(self, actor: Actor, *, app: str | None, open_only: bool) -> Sequence[Session] | Denied:
        if actor.person.ref == OZ:
            return []
        return [row for row in reversed(self.rows.values()) if not open_only or row.state in OPEN_STATES]

    async def session(self, actor: Actor, sid: str, *, newer_than: int | None = None) -> Seen | Denied:
        row = self._readable(actor, sid)
        if isinstance(row, Denied):
            return row
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONG_POLL_SECONDS):
                while newer_than is not None and self.rows[row.sid].version <= newer_than:
                    await self._changed.wait()
        row = self.rows[row.sid]
        return Seen(
            session=row,
            progress=self.progress,
            waiting_on=tuple(sorted((OWNERS | ADMINS) - {row.request.requester.ref})) if row.state is State.REQUESTED else (),
            process_access_sentence=process_access_sentence(row.request),
            on_call="call the platform's on-call line: 555 0100",
            entitled=row.request.requester.same(actor.person),
        )

    async def audit(self, actor: Actor, sid: str) -> Sequence[AuditEvent] | Denied:
        row = self._readable(actor, sid)
        if isinstance(row, Denied):
            return row
        return [
            AuditEvent(name="session.requested", at=row.request.asked_at, actor=row.request.requester.ref, sid=row.sid, app=APP)
        ]

    async def record(self, actor: Actor, sid: str) -> RecordListing | Denied:
        row = self._readable(actor, sid)
        if isinstance(row, Denied):
            return row
        objects = [
            Stored(key=key, version="", sha256=hashlib.sha256(data).hexdigest(), size=len(data))
            for key, data in sorted(self.objects.items())
        ]
        return RecordListing(sid=row.sid, objects=tuple(objects))

    async def record_object(self, actor: Actor, sid: str, name: str) -> bytes | Denied:
        row = self._readable(actor, sid)
        if isinstance(row, Denied):
            return row
        return self.objects.get(name) or no(Code.NOT_FOUND, f"The record of {sid} has no object {name!r}.", "List it first.")

    async def health(self) -> Health:
        return Health(ready=self.failing is None, checks=(("store", self.failing is None, "the store answers"),))

    # --- change -------------------------------------------------------------------------------------------------------

    async def request(self, actor: Actor, ask: Ask, *, break_glass: bool = False) -> Session | Denied:
        if self.failing is not None:
            raise self.failing
        if (denied := rules.ask(reason=ask.reason, minutes=ask.minutes, container=ask.container, mode=ask.mode)) is not None:
            return denied
        if entity_ref(ask.app) != APP:
            return _unknown(ask.app)
        if actor.person.ref not in (ADMINS if break_glass else OWNERS):
            return _not_entitled("ask for a session")
        if ask.environment != "prod":
            return no(Code.UNKNOWN_ENVIRONMENT, f"{APP} has no environment {ask.environment!r}.", "Its environments: prod.")
        if (sid := self._open_one(actor)) is not None:
            return no(
                Code.SESSION_OPEN_ELSEWHERE,
                f"You have an open session already: {sid}. One open session each.",
                f"breakglass end {sid}",
            )
        now = datetime.now(tz=UTC)
        row = Session(request=_request(actor.person, ask, now), state=State.REQUESTED, version=1, changed_at=now)
        self.rows[row.sid] = row
        return await self.break_glass(actor, row.sid) if break_glass else row

    async def approve(self, actor: Actor, sid: str, request_digest: str) -> Session | Denied:
        row = self._waiting(actor, sid)
        if isinstance(row, Denied):
            return row
        if row.request.requester.same(actor.person):
            return no(Code.SELF_APPROVAL, "You asked for this; somebody else must approve it.", "Ask: ben, carla.")
        if request_digest != row.request.digest:
            return no(Code.DIGEST_MISMATCH, "This is not the request that waits.", "Look at it again.")
        approval = Approval(approver=actor.person, request_digest=request_digest, at=_now())
        return self._write(row, state=State.APPROVED, approval=approval, approved_at=_now())

    async def deny(self, actor: Actor, sid: str) -> Session | Denied:
        row = self._waiting(actor, sid)
        return row if isinstance(row, Denied) else self._end(row, EndReason.DENIED, actor.person.ref, State.CLOSED)

    async def withdraw(self, actor: Actor, sid: str) -> Session | Denied:
        row = self._waiting(actor, sid)
        return row if isinstance(row, Denied) else self._end(row, EndReason.WITHDRAWN, actor.person.ref, State.CLOSED)

    async def break_glass(self, actor: Actor, sid: str) -> Session | Denied:
        row = self._waiting(actor, sid)
        if isinstance(row, Denied):
            return row
        if actor.person.ref not in ADMINS:
            return _not_entitled("break the glass")
        return self._write(row, state=State.APPROVED, glass=GlassBroken(breaker=actor.person, at=_now()), approved_at=_now())

    async def open(self, actor: Actor, sid: str, *, pod: str | None, cols: int, rows: int) -> Session | Denied:
        row = self._own(actor, sid)
        if isinstance(row, Denied):
            return row
        if row.state is not State.APPROVED:
            return no(Code.WRONG_STATE, f"Session {row.sid} is {row.state.value}.", "Look at it.")
        number = len(row.shells) + 1
        shell = Shell(
            number=number,
            pod=pod or f"checkout-{number}",
            pod_uid=f"uid-{number}",
            container=f"debug-{row.sid}-{number}",
            opening_at=_now(),
            active_at=_now(),
        )
        live = self.lives.setdefault(row.sid, Live(row.sid, cols, rows))
        live.begin_shell()
        changed = self._write(row, state=State.ACTIVE, shells=(*row.shells, shell), started_at=row.started_at or _now())
        task = asyncio.create_task(self._shell(row.sid, live))
        self._shells.add(task)
        task.add_done_callback(self._shells.discard)
        return changed

    async def end(self, actor: Actor, sid: str) -> Session | Denied:
        row = self._readable(actor, sid)
        if isinstance(row, Denied):
            return row
        if row.state not in OPEN_STATES:
            return no(Code.WRONG_STATE, f"Session {row.sid} is over.", "Nothing is left to end.")
        own = row.request.requester.same(actor.person)
        return self.finish(row.sid, EndReason.ENDED_BY_REQUESTER if own else EndReason.ENDED_BY_OTHER, actor.person.ref)

    # --- look and type ------------------------------------------------------------------------------------------------

    async def ticket(self, actor: Actor, sid: str, *, role: str, origin: str) -> str | Denied:
        row = self._own(actor, sid) if role == "drive" else self._readable(actor, sid)
        if isinstance(row, Denied):
            return row
        if row.state not in {State.ACTIVE, State.DISCONNECTED}:
            return no(Code.WRONG_STATE, f"Session {row.sid} has no shell.", "Open one.")
        ticket = secrets.token_hex(16)
        self._tickets[ticket] = (actor.person.ref, row.sid, role, origin)
        return ticket

    async def join(self, ticket: str, sid: str, *, origin: str) -> Viewer | Denied:
        person, of, role, bound = self._tickets.pop(ticket, ("", "", "", ""))
        if not person or of != sid or bound != origin:
            return no(Code.TICKET_INVALID, "This ticket is not valid here, or was used already.", "Get a new one; it lives 30 s.")
        return self.lives[Sid(of)].join(role)

    async def seen_by(self, viewer: Viewer) -> Session | Denied:
        return self.rows[viewer.sid]

    # --- the shell ----------------------------------------------------------------------------------------------------

    async def _shell(self, sid: Sid, live: Live) -> None:
        """Echoes what is typed. Lines that mean something: `exit`, `podgone`, `flood`, `warn`."""
        live.show(b"$ ")
        line = bytearray()
        while True:
            await self.reading.wait()
            command = await live.commands.get()
            if isinstance(command, Resize):
                self.sizes.append((command.cols, command.rows))
            elif isinstance(command, Input):
                self.typed += command.data
                for byte in command.data:
                    if byte == 4:
                        line[:] = b"exit"
                    elif byte not in b"\r\n":
                        line.append(byte)
                        continue
                    live.show(b"\r\n" + bytes(line) + b"\r\n$ ")
                    if not await self._said(sid, live, bytes(line)):
                        return
                    line.clear()

    async def _said(self, sid: Sid, live: Live, line: bytes) -> bool:
        if line == b"exit":
            self.finish(sid, EndReason.SHELL_EXITED, None)
            return False
        if line == b"podgone":
            self.lose(sid)
            return False
        if line == b"warn":
            live.tell(Told(kind="time", sentence="Ten minutes are left."))
        if line.startswith(b"flood "):
            for number in range(int(line[6:])):
                live.show(f"{number:08d}".encode() * 8192)
                await live.room()
        return True

    def lose(self, sid: Sid) -> None:
        """The pod is gone; the session has time left."""
        row = self._write(self.rows[sid], state=State.APPROVED)
        self.lives[sid].finish(EndedFrame(reason="pod_gone", sentence=ended_sentence(EndReason.POD_GONE), session_open=True))
        assert row.started_at is not None

    def finish(self, sid: Sid, reason: EndReason, by: EntityRef | None) -> Session:
        """The session is over."""
        row = self._end(self.rows[sid], reason, by, State.SEALED)
        row = self._write(row, sealed=Sealed(segments=1, chain="00" * 32, output_bytes=0, cut=False))
        if sid in self.lives:
            self.lives[sid].finish(EndedFrame(reason=reason.value, sentence=ended_sentence(reason), session_open=False))
        return row

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _open_one(self, actor: Actor) -> Sid | None:
        return next(
            (row.sid for row in self.rows.values() if row.request.requester.same(actor.person) and row.state in OPEN_STATES), None
        )

    def _find(self, sid: str) -> Session | Denied:
        found = [row for row in self.rows.values() if row.sid.startswith(sid)]
        return (
            found[0] if len(found) == 1 else no(Code.NOT_FOUND, f"There is no session {sid}.", "List yours: breakglass sessions")
        )

    def _readable(self, actor: Actor, sid: str) -> Session | Denied:
        return _not_entitled("see sessions") if actor.person.ref == OZ else self._find(sid)

    def _own(self, actor: Actor, sid: str) -> Session | Denied:
        row = self._find(sid)
        return (
            row
            if isinstance(row, Denied) or row.request.requester.same(actor.person)
            else _not_entitled("type in somebody's shell")
        )

    def _waiting(self, actor: Actor, sid: str) -> Session | Denied:
        row = self._readable(actor, sid)
        if isinstance(row, Denied) or row.state is State.REQUESTED:
            return row
        return no(Code.ALREADY_DECIDED, f"Session {row.sid} is {row.state.value}.", "Nothing is left to decide.")

    def _end(self, row: Session, reason: EndReason, by: EntityRef | None, state: State) -> Session:
        return self._write(row, state=state, ended=Ended(reason=reason, at=_now(), by=by))

    def _write(self, row: Session, **changes: object) -> Session:
        changed = replace(row, version=row.version + 1, changed_at=_now(), **changes)  # type: ignore[arg-type]
        self.rows[row.sid] = changed
        self._changed.set()
        self._changed = asyncio.Event()
        return changed


def _now() -> datetime:
    return datetime.now(tz=UTC)


def _unknown(app: str) -> Denied:
    return no(Code.UNKNOWN_APP, f"The catalog knows no app {app[:80]!r}.", "Look it up: breakglass can")


def _not_entitled(verb: str) -> Denied:
    return no(Code.NOT_ENTITLED, f"Only owners of the app may {verb}.", "Ask one of them.")


def _request(person: Person, ask: Ask, now: datetime) -> Request:
    return Request(
        sid=Sid("".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(10))),
        app=APP,
        environment="prod",
        container=ask.container,
        mode=Mode(ask.mode),
        minutes=ask.minutes,
        process_access=ask.process_access,
        reason=ask.reason.strip(),
        requester=person,
        cluster="flight-1",
        namespace="checkout",
        tier=Tier.FLIGHT,
        commit="0" * 40,
        after_process_access=AfterProcessAccess.RECYCLE,
        asked_at=now,
    )


_APP = AppFacts(app=APP, owners=OWNERS, title="Checkout")
_PROD = Environment(
    app=APP,
    name="prod",
    cluster="flight-1",
    namespace="checkout",
    tier=Tier.FLIGHT,
    commit="0" * 40,
    read_at=datetime(2026, 1, 1, tzinfo=UTC),
)
