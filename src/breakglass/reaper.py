"""Layer 6, Tower's own timer: nothing waits for a human. Expires, reminds, and resumes every close, also after a crash.

Must never: make a grant, decide who may, or do anything that `running.close` does not do the same way in daylight.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine

import structlog

from breakglass.core import expiry
from breakglass.core import session as machine
from breakglass.core.codes import Code
from breakglass.core.model import Denied, Session, Sid, State, is_sid
from breakglass.notices import Notices
from breakglass.ports import AuditEvent, Cluster, PortError
from breakglass.rows import Rows
from breakglass.running import Running
from breakglass.tower import Tower

log = structlog.get_logger()

TICK_SECONDS = 2.0
SWEEP_TICKS = 15
STUCK_SECONDS = 30.0
LIVED_HERE = frozenset({State.OPENING, State.ACTIVE, State.DISCONNECTED, State.SHELL_CLOSING})
UNFINISHED = frozenset({State.CLOSING, State.STUCK})
WAITING = frozenset({State.REQUESTED, State.APPROVED})
LOCKED = frozenset({State.SEALED, State.ACCOUNT_DUE, State.REVIEW_DUE, State.REVIEWED})


class Reaper:
    """The loop. One a process."""

    def __init__(self, tower: Tower, rows: Rows, running: Running, notices: Notices) -> None:
        self._tower = tower
        self._rows = rows
        self._running = running
        self._notices = notices
        self._reminded: set[str] = set()
        self._next_try: dict[str, float] = {}
        self._tasks: set[asyncio.Task[State]] = set()
        self._ticks = 0

    async def run(self) -> None:
        """Tick until cancelled; a tick that fails is logged and the next one comes all the same."""
        while True:
            try:
                await self.tick()
            except PortError as error:
                log.error("reaper", error=str(error))
            await asyncio.sleep(TICK_SECONDS)

    async def tick(self) -> None:
        """1. Sessions whose process died, or whose end could not be written down: end them. 2. Unfinished closes: go on.
        3. Time is up: expire. 4. Unanswered: remind. 5. A grant that no running session accounts for is deleted, and said.
        6. The local copy of a record that is locked is deleted; a crash right behind the seal left it.

        Each session is closed in a task of its own: a cluster that does not answer holds up nobody else's close.
        """
        sessions = await self._tower.store.find(states=LIVED_HERE | UNFINISHED | WAITING, limit=10_000)
        for session in sessions:
            if self._running.lives(session):
                await self._expire(session)  # between two shells; a live shell has its own timers
            elif session.state in LIVED_HERE or (session.state is State.APPROVED and session.shells):
                self._once(session, self._running.shell_over(session.sid, self._running.last_end(session.sid)))  # (1)
            elif session.state in UNFINISHED:
                self._once(session, self._running.close(session.sid))  # (2)
            else:
                await self._expire(session)  # (3)
                await self._remind(session)  # (4)
        if self._ticks % SWEEP_TICKS == 0:
            for cluster in self._tower.clusters.values():
                await self._sweep(cluster)  # (5)
            await self._let_go()  # (6)
        self._ticks += 1

    def _once(self, session: Session, work: Coroutine[None, None, State]) -> None:
        """Close in the background, one at a time a session; a stuck one is tried again every 30 s."""
        now = self._tower.clock.monotonic()
        if now < self._next_try.get(session.sid, 0.0):
            work.close()
            return
        self._next_try[session.sid] = float("inf")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._closed(session, done))

    def _closed(self, session: Session, task: asyncio.Task[State]) -> None:
        self._tasks.discard(task)
        self._next_try[session.sid] = self._tower.clock.monotonic() + STUCK_SECONDS
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("close failed, will be tried again", sid=session.sid, error=type(error).__name__)

    async def _sweep(self, cluster: Cluster) -> None:
        """A grant that no session being opened, used or closed accounts for: a late create, or a thief's. Delete and say so."""
        try:
            grants = await cluster.grants.all()
        except PortError as error:
            log.warning("grants cannot be listed", cluster=cluster.name, error=str(error))
            return
        for grant in grants:
            session = await self._tower.store.load(grant.sid) if is_sid(grant.sid) else None
            if session is not None and session.state in LIVED_HERE | UNFINISHED:
                continue
            log.error("a grant without a session", cluster=cluster.name, namespace=grant.namespace, sid=grant.sid)
            now = self._tower.clock.now()
            details = {"cluster": cluster.name, "namespace": grant.namespace, "grant": grant.sid, "uid": grant.uid}
            await self._tower.audit.append(
                AuditEvent(name="grant.without_session", at=now, actor=None, sid=Sid(grant.sid), app=None, details=details)
            )
            try:
                await cluster.grants.delete(grant.namespace, Sid(grant.sid))
            except PortError as error:
                log.error("it could not be deleted", sid=grant.sid, error=str(error))

    async def _let_go(self) -> None:
        spool = self._tower.settings.spool
        there = await asyncio.to_thread(lambda: [path.name for path in spool.iterdir()] if spool.is_dir() else [])
        for sid in filter(is_sid, there):
            session = await self._tower.store.load(sid)
            if session is not None and session.sealed is not None and session.state in LOCKED:
                await asyncio.to_thread(shutil.rmtree, spool / sid, ignore_errors=True)

    async def _expire(self, session: Session) -> None:
        now = self._tower.clock.now()
        event = expiry.due(session, now)
        if event is None or session.state not in WAITING:
            return

        async def still(current: Session) -> machine.Event | Denied:
            return expiry.due(current, now) or Denied(code=Code.WRONG_STATE, sentence="It is not due any more.")

        changed = await self._rows.change(session.sid, still, "session.expired")
        if isinstance(changed, Session) and changed.state is State.CLOSING:
            await self._running.close(changed.sid)

    async def _remind(self, session: Session) -> None:
        waited = self._tower.clock.now() - session.request.asked_at
        if session.state is State.REQUESTED and waited >= expiry.ASK_AGAIN and session.sid not in self._reminded:
            self._reminded.add(session.sid)
            await self._notices.unanswered(session)
