"""A whole Tower on simulators, in virtual time: real service, running, opening, stream, closing, sealing, reaper and recorder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyrage

from breakglass.core.facts import AppFacts, PersonFacts
from breakglass.core.model import Actor, Denied, EntityRef, Environment, Person, Session, State, Tier
from breakglass.core.permissions import Permission
from breakglass.core.record_read import Reader
from breakglass.judging import Judge
from breakglass.live import Ended, Output, Told, Viewer
from breakglass.notices import Notices
from breakglass.ports import Notice, PortError, Trouble
from breakglass.reaper import Reaper
from breakglass.rows import Rows
from breakglass.running import Running
from breakglass.service import Ask, Service
from breakglass.spool import Limits
from breakglass.tower import Clock, Settings, Tower
from tests.simulators.cluster import SimCluster
from tests.simulators.store import MemoryStore
from tests.simulators.vault import MemoryVault
from tests.virtual_time import VirtualLoop, until

APP = EntityRef("component:default/checkout")
TEAM, ADMINS, AUDITORS = (EntityRef(f"group:default/{name}") for name in ("checkout-team", "tower-admins", "auditors"))
REVIEWERS = tuple(pyrage.x25519.Identity.generate() for _ in range(2))
IMAGE = "registry.example.test/tower/debug@sha256:" + "a" * 64


@dataclass
class World:
    """The catalog, cicd.yaml and who hears what: what a test may change while Tower runs."""

    groups: dict[str, frozenset[EntityRef]] = field(
        default_factory=lambda: {
            "ana": frozenset({TEAM}),
            "ben": frozenset({TEAM}),
            "carla": frozenset({ADMINS}),
            "dora": frozenset({ADMINS}),
            "eve": frozenset({AUDITORS}),
            "oz": frozenset(),
        }
    )
    aliases: dict[str, frozenset[str]] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)
    down: bool = False
    tier: Tier = Tier.FLIGHT
    namespace: str = "checkout"
    cluster: str = "demo"
    notices: list[Notice] = field(default_factory=list)

    def person(self, name: str) -> Person:
        return Person(ref=EntityRef(f"user:default/{name}"), aliases=self.aliases.get(name, frozenset()))


class SimCatalog:
    """`ports.Catalog` over a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _up(self) -> None:
        if self._world.down:
            raise PortError(Trouble.TRANSIENT, "the catalog does not answer")

    async def app(self, ref: EntityRef) -> AppFacts | None:
        self._up()
        return AppFacts(app=APP, owners=frozenset({TEAM})) if ref == APP else None

    async def apps(self) -> Sequence[AppFacts]:
        self._up()
        return [AppFacts(app=APP, owners=frozenset({TEAM}))]

    async def person(self, ref: EntityRef) -> PersonFacts | None:
        self._up()
        name = ref.rpartition("/")[2]
        if name not in self._world.groups:
            return None
        return PersonFacts(person=self._world.person(name), groups=self._world.groups[name], locked=name in self._world.locked)

    async def members(self, group: EntityRef) -> Sequence[Person]:
        self._up()
        return [self._world.person(name) for name, groups in self._world.groups.items() if group in groups]


class _Everything:
    """Layer 2 says yes to all: these tests are about what stands behind it."""

    async def decide(self, actor: Actor, permission: Permission, app: EntityRef) -> Denied | None:
        return None


class _Deployments:
    def __init__(self, world: World, clock: Clock) -> None:
        self._world, self._clock = world, clock

    async def environments(self, app: AppFacts) -> Sequence[Environment]:
        w = self._world
        return [
            Environment(
                app=app.app,
                name="production",
                cluster=w.cluster,
                namespace=w.namespace,
                tier=w.tier,
                commit="c" * 40,
                read_at=self._clock.now(),
            )
        ]


class _Notifier:
    def __init__(self, world: World) -> None:
        self._world = world

    async def notify(self, notice: Notice) -> None:
        self._world.notices.append(notice)


class _Nobody:
    async def actor(self, credential: str) -> Actor | Denied:
        raise AssertionError("these tests act through the service")


class Life:
    """One Tower process over a world; `reborn` is the next process after this one died."""

    def __init__(self, directory: Path, *, before: Life | None = None, **limits: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop, self.directory = loop, directory
        self.clock = Clock(now=loop.now, monotonic=loop.time)
        self.world = before.world if before else World()
        self.cluster = before.cluster if before else _cluster(loop)
        self.store = before.store if before else MemoryStore()
        self.vault = before.vault if before else MemoryVault()
        self.tower = Tower(
            settings=Settings(
                state_dir=directory,
                portal="system:serviceaccount:tower:portal",
                admins=ADMINS,
                auditors=AUDITORS,
                images=(IMAGE,),
                recipients=tuple(str(identity.to_public()) for identity in REVIEWERS),
                on_call="+1 555 0100",
                protected_namespaces=frozenset(),
                limits=Limits(**{"reserve_bytes": 1 << 20, **limits}),  # type: ignore[arg-type]
            ),
            clusters={"demo": self.cluster.ports},
            store=self.store,
            audit=self.store,
            tickets=self.store,
            vault=self.vault,
            identity=_Nobody(),
            permissions=_Everything(),
            catalog=SimCatalog(self.world),
            deployments=_Deployments(self.world, self.clock),
            notifier=_Notifier(self.world),
            clock=self.clock,
        )
        self.rows = Rows(self.store, self.clock.now)
        judge = Judge(self.tower)
        self.notices = Notices(self.tower, judge)
        self.running = Running(self.tower, self.rows, self.notices)
        self.service = Service(self.tower, self.rows, self.running, judge, self.notices)
        self.reaper = Reaper(self.tower, self.rows, self.running, self.notices)
        self._reaping = loop.create_task(self.reaper.run())

    def actor(self, name: str) -> Actor:
        return Actor(person=self.world.person(name), proof="a test")

    async def die(self) -> None:
        """Kill -9: every task of the process is gone between two steps, its sockets with it, its memory too."""
        me = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not me:
                task.cancel()
        self.running.shell_over = _dead  # type: ignore[method-assign]
        self.running.close = _dead  # type: ignore[method-assign,assignment]
        for held in self.running._held.values():  # the kernel would take the files away, and the thread with them
            disk = held.recorder._disk
            disk.stopped = True
            disk.calls.put(None)
            disk.join()

    def reborn(self) -> Life:
        """The next process: the same world, store, vault and disk, an empty memory."""
        return Life(self.directory, before=self)

    # --- what people do -----------------------------------------------------------------------------------------------

    async def approved(self, requester: str = "ana", approver: str = "ben", **ask: object) -> Session:
        """Somebody asked, another person said yes."""
        asked = await self.service.request(self.actor(requester), an_ask(**ask))
        assert isinstance(asked, Session), asked
        done = await self.service.approve(self.actor(approver), asked.sid, asked.request.digest)
        assert isinstance(done, Session), done
        return done

    async def opened(self, session: Session, who: str = "ana") -> Seat:
        """The requester opened a shell and sits at it."""
        opened = await self.service.open(self.actor(who), session.sid, pod=None, cols=80, rows=24)
        assert isinstance(opened, Session), opened
        return await self.seat(session, who)

    async def seat(self, session: Session, who: str = "ana", role: str = "drive", offset: int | None = None) -> Seat:
        ticket = await self.service.ticket(self.actor(who), session.sid, role=role, origin="")
        assert isinstance(ticket, str), ticket
        viewer = await self.service.join(ticket, session.sid, origin="")
        assert isinstance(viewer, Viewer), viewer
        viewer.resume(offset)
        return Seat(viewer)

    async def now(self, session: Session) -> Session:
        found = self.store.sessions[session.sid]
        await asyncio.sleep(0)
        return found

    async def reaches(self, session: Session, *states: State, seconds: float = 7200) -> Session:
        """Wait until the session is in one of these states."""
        await until(lambda: self.store.sessions[session.sid].state in states, seconds)
        return self.store.sessions[session.sid]

    def recorded(self, session: Session) -> bytes:
        """Every output byte of the locked record, read strictly, with its end."""
        reader, found, number = Reader(), b"", 1
        prefix = f"sessions/{session.sid}/seg-"
        while f"{prefix}{number:06d}.cast" in self.vault.objects:
            out, inp = (self.vault.objects[f"{prefix}{number:06d}.{lane}"] for lane in ("cast", "in"))
            found += b"".join(event.data for event in reader.segment(out, inp).events)
            number += 1
        reader.finish()
        return found

    def audit(self, session: Session) -> list[str]:
        return [event.name for event in self.store.events if event.sid == session.sid]


class Seat:
    """Somebody at a shell: what they saw, what they were told, why it ended."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.saw = bytearray()
        self.told: list[Told] = []
        self.ended: Ended | None = None
        self._task = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        async for frame in self.viewer.frames():
            match frame:
                case Output():
                    self.saw += frame.data
                    self.viewer.acknowledge(frame.offset + len(frame.data))
                case Told():
                    self.told.append(frame)
                case Ended():
                    self.ended = frame

    async def types(self, text: str, sees: bytes) -> None:
        """Type, and wait for what must appear."""
        await self.viewer.input(text.encode())
        await until(lambda: sees in self.saw)

    async def leaves(self) -> None:
        await self.viewer.leave()

    async def is_over(self) -> Ended:
        await until(lambda: self.ended is not None)
        assert self.ended is not None
        return self.ended


def an_ask(**changes: object) -> Ask:
    """What ana usually asks for."""
    fields: dict[str, object] = {"app": "checkout", "environment": "production", "reason": "checkout answers 502"}
    return Ask(**(fields | changes))  # type: ignore[arg-type]


def _cluster(loop: VirtualLoop) -> SimCluster:
    cluster = SimCluster(now=loop.now)
    cluster.add_namespace("checkout", app="checkout", entity=APP)
    cluster.add_pod("checkout", "checkout-1")
    cluster.add_pod("checkout", "checkout-2", created_at=loop.now() + timedelta(seconds=1))
    cluster.rbac_lag = 2
    cluster.start_seconds = 0.3
    return cluster


async def _dead(*args: object, **kwargs: object) -> State:
    await asyncio.Event().wait()
    raise AssertionError
