"""One session's life in this process: shells one after another under one record, then the seal. One task a shell.

Must never: decide who may (that is `service.py`), or leave a session whose task died: whatever goes wrong ends in close.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

from breakglass import opening
from breakglass.closing import Undone, close_shell
from breakglass.core import expiry, workload
from breakglass.core import session as machine
from breakglass.core.codes import Code
from breakglass.core.model import Denied, EndReason, EntityRef, Sealed, Session, Shell, Sid, State
from breakglass.core.targets import Target
from breakglass.core.words import ended_sentence
from breakglass.live import Ended, Live
from breakglass.notices import Notices
from breakglass.ports import Cluster, Manifest, PortError
from breakglass.rows import Rows
from breakglass.sealing import seal, upload
from breakglass.spool import Recorder, RecorderFailed
from breakglass.stream import ShellEnd, Stream
from breakglass.tower import Tower

log = structlog.get_logger()

Recheck = Callable[[], Awaitable[str | None]]
Choose = Callable[[], Awaitable[Target | Denied]]

SHELL_ONLY = frozenset({EndReason.POD_GONE, EndReason.ATTACH_LOST, EndReason.OPEN_FAILED})
"""What costs a shell and not the approval: the session's time goes on."""


@dataclass(slots=True, kw_only=True)
class Held:
    """What this process holds of a session between its first shell and its seal."""

    live: Live
    recorder: Recorder
    directory: Path
    uploading: asyncio.Task[None]
    progress: str = ""
    shell: asyncio.Task[None] | None = None
    end: ShellEnd | None = None


class Running:
    """Every session this process runs. `reaper.py` closes what an earlier process left."""

    def __init__(self, tower: Tower, rows: Rows, notices: Notices) -> None:
        self._tower = tower
        self._rows = rows
        self._notices = notices
        self._held: dict[Sid, Held] = {}
        self._choosing = asyncio.Lock()
        self._stopping = False
        self._closers: dict[Sid, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def live(self, sid: Sid) -> Live | None:
        """The session's memory, None when no shell of it ever ran here."""
        held = self._held.get(sid)
        return held.live if held else None

    def progress(self, sid: Sid) -> str:
        """What the session waits for right now, in words; empty when it waits for nothing."""
        held = self._held.get(sid)
        return held.progress if held else ""

    def lives(self, session: Session) -> bool:
        """Whether this process has the session in hand: a shell's task runs, or it waits between two shells."""
        held = self._held.get(session.sid)
        if held is None:
            return False
        return session.state is State.APPROVED or (held.shell is not None and not held.shell.done())

    def last_end(self, sid: Sid) -> ShellEnd:
        """Why the session's last shell ended, as far as this process knows; else an earlier process died with it."""
        held = self._held.get(sid)
        return (held.end if held else None) or ShellEnd(reason=EndReason.TOWER_DIED)

    # --- open ---------------------------------------------------------------------------------------------------------

    async def open(
        self, session: Session, *, choose: Choose, evidence: Manifest, recheck: Recheck, size: tuple[int, int]
    ) -> Session | Denied:
        """Open the session's next shell; returns when it answers, or why not with everything undone.

        The pod is chosen and the row becomes `opening` under one lock: two sessions never both find a pod free that only one
        of them may have. The row says so before anything exists in the cluster, so that a crash at any later point is a row
        the reaper finds. The recorder runs before the grant: no record, no session.
        """
        async with self._choosing:
            if self._stopping:
                return Denied(
                    code=Code.TOWER_STOPPING, sentence="Tower is stopping.", remedy="Open again in a minute, when it is back."
                )
            target = await choose()
            if isinstance(target, Denied):
                return target
            number = len(session.shells) + 1
            shell = Shell(
                number=number,
                pod=target.pod,
                pod_uid=target.pod_uid,
                container=workload.container_name(session.sid, number),
                opening_at=self._now(),
            )
            begun = await self._change(
                session.sid, machine.StartShell(at=self._now(), shell=shell), "session.opening", pod=target.pod
            )
        if isinstance(begun, Denied):
            return begun
        try:
            held = await self._hold(begun, size)
        except (RecorderFailed, OSError) as error:
            await self._finish(begun, EndReason.RECORDER_FAILED, None)
            return Denied(
                code=Code.NO_RECORD,
                sentence=f"The record cannot be written ({error}), so there is no session.",
                remedy="Look at Tower's spool: breakglass doctor",
            )
        opened: asyncio.Future[Session | Denied] = asyncio.get_running_loop().create_future()
        held.shell = self._spawn(self._shell(begun, shell, target, evidence, recheck, held, opened))
        return await asyncio.shield(opened)

    async def _hold(self, session: Session, size: tuple[int, int]) -> Held:
        if (held := self._held.get(session.sid)) is not None:
            held.live.size = size
            return held
        directory = self._tower.settings.spool / session.sid
        recorder = await Recorder.start(
            directory,
            sid=session.sid,
            request_digest=session.request.digest,
            size=size,
            started_at=self._now(),
            recipients=self._tower.settings.recipients,
            limits=self._tower.settings.limits,
        )
        live = Live(session.sid, *size)
        uploading = self._spawn(self._upload(session, live, recorder))
        held = Held(live=live, recorder=recorder, directory=directory, uploading=uploading)
        self._held[session.sid] = held
        return held

    # --- one shell ----------------------------------------------------------------------------------------------------

    async def _shell(
        self,
        session: Session,
        shell: Shell,
        target: Target,
        evidence: Manifest,
        recheck: Recheck,
        held: Held,
        opened: asyncio.Future[Session | Denied],
    ) -> None:
        """Open, stream, close: the whole of one shell in one task, so that nothing can end between them unseen."""
        end = ShellEnd(reason=EndReason.TOWER_STOPPED)
        denied: Denied | None = None
        try:
            async with AsyncExitStack() as stack:
                try:
                    end = await self._open_and_stream(session, shell, target, evidence, recheck, held, opened, stack)
                except opening.OpenFailedError as failed:
                    denied, end = failed.denied, ShellEnd(reason=EndReason.OPEN_FAILED, detail=failed.denied.sentence)
        except Exception as error:  # noqa: BLE001 - whatever it was, the shell is closed and the reason is visible
            log.error("shell task failed", sid=session.sid, error=type(error).__name__)
            end = ShellEnd(reason=EndReason.RECORDER_FAILED, detail=f"Tower itself failed ({type(error).__name__})")
        held.progress, held.end = "closing", end
        after = await self.shell_over(session.sid, end)
        held.progress = ""
        if not opened.done():
            opened.set_result(denied or Denied(code=Code.OPEN_FAILED, sentence="The shell did not open.", remedy="Open again."))
        log.info("shell over", sid=session.sid, reason=end.reason.value, state=after.value)

    async def _open_and_stream(
        self,
        session: Session,
        shell: Shell,
        target: Target,
        evidence: Manifest,
        recheck: Recheck,
        held: Held,
        opened: asyncio.Future[Session | Denied],
        stack: AsyncExitStack,
    ) -> ShellEnd:
        tower, cluster = self._tower, self._tower.clusters[session.request.cluster]

        def progress(text: str) -> None:
            held.progress = text
            self._rows.poke()

        got = await opening.open_shell(
            opening.Opening(
                session=session,
                shell=shell,
                target=target,
                cluster=cluster,
                vault=tower.vault,
                settings=tower.settings,
                clock=tower.clock,
                size=held.live.size,
                evidence=evidence,
                progress=progress,
            ),
            stack,
        )
        await held.recorder.shell(shell.number, shell.pod)
        held.live.begin_shell()
        active = await self._change(
            session.sid,
            machine.ShellActive(at=self._now(), number=shell.number, started_at=got.started_at, grant_uid=got.grant.uid),
            "session.active",
            pod=shell.pod,
        )
        if isinstance(active, Denied):
            return ShellEnd(reason=EndReason.STORE_FAILED, detail=active.sentence)
        held.progress = ""
        opened.set_result(active)
        return await Stream(
            live=held.live,
            recorder=held.recorder,
            attach=got.stream,
            frames=got.frames,
            early=got.early,
            clock=tower.clock,
            times=expiry.shell_times(
                active, now=self._now(), monotonic=tower.clock.monotonic(), viewer=held.live.driver is not None
            ),
            container=lambda: cluster.workloads.watch(session.request.namespace, shell.pod, shell.pod_uid, shell.container),
            grant_there=lambda: _grant_there(cluster, session.sid),
            recheck=recheck,
            viewer=lambda there: self._viewer(session.sid, there=there),
        ).run()

    async def _viewer(self, sid: Sid, *, there: bool) -> None:
        """Write down that the person left or came back; the row only informs, the stream's own timer decides."""
        event = machine.ViewerBack(at=self._now()) if there else machine.ViewerLeft(at=self._now())
        await self._change(sid, event, "session.viewer_back" if there else "session.viewer_left")

    # --- the end of a shell, and of the session -----------------------------------------------------------------------

    async def shell_over(self, sid: Sid, end: ShellEnd) -> State:
        """A shell ended: go on without it when that costs only a shell, else close the session. Returns the state reached."""
        now = self._now()
        if end.reason in SHELL_ONLY:
            lost = await self._change(
                sid, machine.ShellLost(at=now, reason=end.reason), "shell.lost", reason=end.reason.value, detail=end.detail
            )
            if isinstance(lost, Session) and (state := await self._shell_undone(lost, end)) is not None:
                return state
        return await self._finish_sid(sid, end)

    async def _shell_undone(self, session: Session, end: ShellEnd) -> State | None:
        """Undo the lost shell's side; None when the session cannot go on and must close."""
        undone = await self._undo(session)
        if undone.left:
            return None
        event = machine.ShellClosed(
            at=self._now(),
            terminated_at=undone.terminated_at,
            exit_code=undone.exit_code,
            witness=undone.witness,
            flags=undone.flags,
        )
        back = await self._change(session.sid, event, "shell.closed")
        if isinstance(back, Denied) or machine.spent(back, self._now()):
            return None
        held = self._held[session.sid]
        await held.recorder.marker(ended_sentence(end.reason))
        held.live.finish(
            Ended(reason=end.reason.value, sentence=f"{ended_sentence(end.reason)} {end.detail}".strip(), session_open=True)
        )
        return back.state

    async def _finish_sid(self, sid: Sid, end: ShellEnd) -> State:
        session = await self._tower.store.load(sid)
        return State.CLOSED if session is None else await self._finish(session, end.reason, end.by)

    async def _finish(self, session: Session, reason: EndReason, by: EntityRef | None) -> State:
        ended = await self._change(
            session.sid, machine.End(at=self._now(), reason=reason, by=by), "session.ending", actor=by, reason=reason.value
        )
        if isinstance(ended, Denied) and ended.code is Code.STORE_UNAVAILABLE:
            log.error("session cannot be marked closing; the reaper will", sid=session.sid)
        return await self.close(session.sid)

    async def end(self, session: Session, reason: EndReason, by: EntityRef | None) -> Session | Denied:
        """End a session whatever it is doing: a live shell is told to stop, anything else goes straight to closing."""
        held = self._held.get(session.sid)
        if held is not None and held.shell is not None and not held.shell.done():
            held.live.end(reason, by)
            return session
        ended = await self._change(
            session.sid, machine.End(at=self._now(), reason=reason, by=by), "session.ending", actor=by, reason=reason.value
        )
        if isinstance(ended, Session) and ended.state is State.CLOSING:
            self.close_soon(session.sid)
        return ended

    def close_soon(self, sid: Sid) -> None:
        """Close in the background; the reaper finds it should this process die first."""

        async def closed() -> None:
            await self.close(sid)

        _ = self._spawn(closed())

    async def close(self, sid: Sid) -> State:
        """Undo the cluster's side, seal, lock. Idempotent; resumed by the reaper after a crash, with the same code.

        1. Only a row in `closing` or `stuck` is closed. 2. The cluster's side (`closing.py`). 3. Seal the record: here when
        this process holds it, else its torn tail is sealed `cut`. 4. Lock it in the vault, manifest last. 5. The row says
        `sealed`, or `stuck` with what is left: the evidence is safe either way, and an alarm goes out.
        """
        lock = self._closers.setdefault(sid, asyncio.Lock())
        async with lock:
            session = await self._tower.store.load(sid)
            if session is None or session.state not in {State.CLOSING, State.STUCK}:  # (1)
                return State.CLOSED if session is None else session.state
            undone = await self._undo(session)  # (2)
            held = self._held.get(sid)
            try:
                sealed = session.sealed or await seal(self._tower, session, held.recorder if held else None, undone)  # (3) (4)
            except (PortError, RecorderFailed, OSError) as error:
                return await self._stuck(session, f"the record is not locked yet: {error}", undone)
            if undone.left:
                return await self._stuck(session, undone.left, undone, sealed=sealed)
            event = machine.RecordSealed(
                at=self._now(),
                sealed=sealed,
                flags=undone.flags,
                terminated_at=undone.terminated_at,
                exit_code=undone.exit_code,
                witness=undone.witness,
            )
            done = await self._change(sid, event, "session.sealed", chain=sealed.chain, cut=str(sealed.cut).lower())  # (5)
            if isinstance(done, Denied):
                return State.CLOSING  # sealed and locked, and the row will say so when the reaper comes by
            self._release(done)
            shutil.rmtree(self._tower.settings.spool / sid, ignore_errors=True)
            return done.state

    async def _undo(self, session: Session) -> Undone:
        """The cluster's side of the latest shell; a session that never had one has nothing there."""
        shell = session.shell
        if shell is None:
            return NOTHING
        return await close_shell(self._tower.clusters[session.request.cluster], session, shell)

    async def _stuck(self, session: Session, because: str, undone: Undone, sealed: Sealed | None = None) -> State:
        """Say what is left, loudly, once per new reason; the reaper tries again."""
        if session.state is State.STUCK and session.stuck_because == because:
            return State.STUCK
        event = machine.Stuck(at=self._now(), because=because, sealed=sealed, flags=undone.flags)
        stuck = await self._change(session.sid, event, "session.stuck", because=because)
        self._release(session)
        if isinstance(stuck, Session):
            await self._notices.stuck(stuck)
        return State.STUCK

    def _release(self, session: Session) -> None:
        """This process holds nothing of the session any more; whoever looks is told why it ended."""
        held = self._held.pop(session.sid, None)
        if held is None:
            return
        held.uploading.cancel()
        reason = session.ended.reason if session.ended else EndReason.TOWER_STOPPED
        held.live.finish(Ended(reason=reason.value, sentence=ended_sentence(reason), session_open=False))

    async def _upload(self, session: Session, live: Live, recorder: Recorder) -> None:
        def behind(why: str) -> None:
            log.error("the vault is too far behind", sid=session.sid, why=why)
            live.end(EndReason.RECORDER_FAILED, None)

        await upload(self._tower, session, recorder, behind)

    # --- Tower itself -------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Tower is asked to stop: nothing opens any more; end what runs here, seal it, and wait until that is done."""
        self._stopping = True
        for sid in list(self._held):
            session = await self._tower.store.load(sid)
            if session is not None:
                await self.end(session, EndReason.TOWER_STOPPED, None)
        uploading = {held.uploading for held in self._held.values()}
        while rest := {task for task in self._tasks if not task.done() and task not in uploading}:
            await asyncio.wait(rest)
            uploading = {held.uploading for held in self._held.values()}

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _change(
        self, sid: Sid, event: machine.Event, name: str, *, actor: EntityRef | None = None, **details: str
    ) -> Session | Denied:
        async def same(_: Session) -> machine.Event:
            return event

        return await self._rows.change(sid, same, name, actor=actor, details=details)

    def _now(self) -> datetime:
        return self._tower.clock.now()


NOTHING = Undone(terminated_at=None, exit_code=None, witness="", flags=frozenset(), left="")


async def _grant_there(cluster: Cluster, sid: Sid) -> bool:
    """Whether the grant is still there. Not being able to look is no proof that it is gone: the hard stop bounds that."""
    try:
        return any(grant.sid == sid and not grant.terminating for grant in await cluster.grants.all())
    except PortError:
        return True
