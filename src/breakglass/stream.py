"""Layers 6 and 7 while a shell lives: one stream, recorded before it is shown, ended on time.

Recorder, pumps and timers are siblings in one TaskGroup: when one fails, all end. There is no fail-open flag.
Must never: show a byte or pass a keystroke that is not durable, extend a time, or touch a cluster right.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial

from breakglass.core import expiry
from breakglass.core.facts import DebugContainerFacts
from breakglass.core.frames import DATA_MAX, Data, Exit, ExitReason, FrameViolation, Note, Pong, Ready, TowerEvent, TowerFrames
from breakglass.core.model import EndReason, EntityRef
from breakglass.live import Input, Live, Resize, Stop, Told
from breakglass.ports import AttachStream, PortError
from breakglass.spool import Recorder, RecorderFailed
from breakglass.tower import Clock

PING_SECONDS = 5
UNTAKEN_BYTES = 256 << 10
"""Input the shell has not taken yet; more is not sent, so a sleeping shell never starves the lease's pings."""
UNSHOWN_BYTES = 1 << 20
"""Output read and not durable yet; the attach reader waits above it."""
BATCH_BYTES = 256 << 10
HELD_SECONDS = 0.1
"""How long the first bytes of a cut UTF-8 sequence wait for the rest before they are recorded and shown alone."""
FAREWELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellEnd:
    """Why one shell ended, who ended it, and what the supervisor could still say: its exit code, and whether its digest over
    all output is that of the bytes that came through here (None when it said nothing).
    """

    reason: EndReason
    by: EntityRef | None = None
    exit_code: int | None = None
    detail: str = ""
    witness_agrees: bool | None = None


@dataclass(slots=True, kw_only=True)
class Stream:
    """What one live shell is made of. `recheck` gives a sentence when the requester is *definitely* no longer entitled."""

    live: Live
    recorder: Recorder
    attach: AttachStream
    frames: TowerFrames
    early: list[TowerEvent]
    clock: Clock
    times: expiry.ShellTimes
    container: Callable[[], AsyncIterator[DebugContainerFacts | None]]
    grant_there: Callable[[], Awaitable[bool]]
    recheck: Callable[[], Awaitable[str | None]]
    viewer: Callable[[bool], Awaitable[None]]
    _pending: bytearray = field(default_factory=bytearray)
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _less: asyncio.Event = field(default_factory=asyncio.Event)
    _recording: asyncio.Future[bytes] | None = None
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _heard: hashlib._Hash = field(default_factory=hashlib.sha256)
    _sent: int = 0
    _taken: int = 0
    _pong: asyncio.Event = field(default_factory=asyncio.Event)
    _timers: asyncio.Event = field(default_factory=asyncio.Event)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _exit: ShellEnd | None = None

    async def run(self) -> ShellEnd:
        """Run until something ends the shell; then END, and up to 1 s for the last bytes.

        1. Output: decrypt → record → fsync → show. 2. Input: record → fsync → send. 3. Pings renew the lease. 4. Timers:
        hard stop, idle, viewer. 5. The API's word on container and grant. 6. Entitlement every 60 s. Any one of them ends
        all. Closing the stream, the cluster side and the seal are the caller's (`running.py`, `closing.py`).
        """
        self.live.driver_changed = self._driver_changed
        end = await self._together(
            self._reads(),
            self._shows(),
            self._commands(),
            self._pings(),
            self._clock(),
            self._viewers(),
            self._watches(),
            self._rechecks(),
            self._stops(),
        )
        self.live.driver_changed = lambda: None
        if end.reason not in {EndReason.RECORDER_FAILED, EndReason.FRAME_VIOLATION}:
            end = await self._farewell(end)
        return end

    async def _together(self, *children: Coroutine[None, None, None]) -> ShellEnd:
        ends: list[ShellEnd] = []
        try:
            async with asyncio.TaskGroup() as group:
                for child in children:
                    group.create_task(child)
        except* _Over as over:
            ends += [error.end for error in _leaves(over) if isinstance(error, _Over)]
        except* RecorderFailed as failed:
            ends += [ShellEnd(reason=EndReason.RECORDER_FAILED, detail=str(error)) for error in _leaves(failed)]
        except* FrameViolation as violated:
            ends += [ShellEnd(reason=EndReason.FRAME_VIOLATION, detail=str(error)) for error in _leaves(violated)]
        except* PortError as lost:
            ends += [ShellEnd(reason=EndReason.ATTACH_LOST, detail=str(error)) for error in _leaves(lost)]
        return min(ends, key=lambda end: _WEIGHT.get(end.reason, 1))

    # (1) output -------------------------------------------------------------------------------------------------------

    async def _reads(self) -> None:
        self._take(self.early)
        while data := await self.attach.read():
            self._feed(data)
            while len(self._pending) >= UNSHOWN_BYTES:
                self._less.clear()
                await self._less.wait()
        await self._drained()
        raise _Over(self._exit or ShellEnd(reason=EndReason.ATTACH_LOST, detail="the stream to the debug container ended"))

    def _feed(self, data: bytes) -> None:
        """Take every good event; those before a violation happened, those behind it did not."""
        try:
            self._take(self.frames.feed(data))
        except FrameViolation as violation:
            self._take([event for event in violation.events if isinstance(event, TowerEvent)])
            raise

    def _take(self, events: list[TowerEvent]) -> None:
        for event in events:
            match event:
                case Data():
                    self._pending += event.data
                    self._heard.update(event.data)
                case Pong():
                    self._taken = max(self._taken, event.taken)
                    self._pong.set()
                case Exit():
                    agrees = event.out_sha256 == self._heard.digest()
                    self._exit = ShellEnd(reason=_ENDS[event.reason], exit_code=event.status, witness_agrees=agrees)
                case Note():
                    self.live.tell(Told(kind="supervisor", sentence=event.text))
                case Ready():
                    pass
        if self._pending:
            self._more.set()

    async def _shows(self) -> None:
        while True:
            if not await _either(self._more, HELD_SECONDS):
                self.live.show(await self.recorder.flush())  # half a character that nothing followed
                await self._more.wait()
            self._more.clear()
            while self._unshown:
                await self.live.room()
                await self._show_batch()

    @property
    def _unshown(self) -> bool:
        return bool(self._pending) or self._recording is not None

    async def _show_batch(self) -> None:
        """Record one batch, then show what the recorder says is durable. Cancelled half-way, the next call finishes it."""
        if self._recording is None:
            batch = bytes(self._pending[:BATCH_BYTES])
            del self._pending[: len(batch)]
            self._recording = asyncio.ensure_future(self.recorder.output(batch))
        shown = await asyncio.shield(self._recording)
        self._recording = None
        self._less.set()
        self.live.show(shown)

    async def _drained(self) -> None:
        while self._unshown:
            self._less.clear()
            await self._less.wait()

    # (2) input --------------------------------------------------------------------------------------------------------

    async def _commands(self) -> None:
        while True:
            command = await self.live.commands.get()
            match command:
                case Input():
                    self.times = expiry.typed(self.times, self.clock.monotonic())
                    await self._send(command.data)
                case Resize():
                    await self._resize(command)
                case Stop():
                    raise _Over(ShellEnd(reason=command.reason, by=command.by))

    async def _send(self, data: bytes) -> None:
        await self.recorder.input(data)
        for at in range(0, len(data), DATA_MAX):
            piece = data[at : at + DATA_MAX]
            while self._sent + len(piece) - self._taken > UNTAKEN_BYTES:
                await self._ask_taken()
            self._sent += len(piece)
            await self._write(partial(self.frames.data, piece))

    async def _write(self, sealed: Callable[[], bytes]) -> None:
        """Seal and send as one: the counter's order is the wire's order."""
        async with self._writing:
            await self.attach.write(sealed())

    async def _ask_taken(self) -> None:
        self._pong.clear()
        await self._write(lambda: self.frames.ping(self.clock.random(8)))
        await self._pong.wait()
        await asyncio.sleep(0.05)

    async def _resize(self, resize: Resize) -> None:
        await self.recorder.resize(resize.cols, resize.rows)
        if resize.redraw:  # a program repaints only when the size really changes
            await self._write(lambda: self.frames.resize(resize.cols, resize.rows + 1))
        await self._write(lambda: self.frames.resize(resize.cols, resize.rows))

    # (3)–(6) what ends it ---------------------------------------------------------------------------------------------

    async def _pings(self) -> None:
        while True:
            await self._write(lambda: self.frames.ping(self.clock.random(8)))
            await asyncio.sleep(PING_SECONDS)

    async def _clock(self) -> None:
        while True:
            now = self.clock.monotonic()
            match expiry.check(self.times, now):
                case EndReason() as reason:
                    raise _Over(ShellEnd(reason=reason))
                case expiry.Warned() as warning:
                    self.times = expiry.said(self.times, warning)
                    await self.recorder.marker(warning.sentence)
                    self.live.tell(Told(kind="warning", sentence=warning.sentence))
                    continue
                case None:
                    pass
            self._timers.clear()
            await _either(self._timers, expiry.next_check(self.times) - now)

    def _driver_changed(self) -> None:
        there = self.live.driver is not None
        self.times = expiry.viewed(self.times, there=there, now=self.clock.monotonic())
        self._timers.set()
        self._moved.set()

    async def _viewers(self) -> None:
        """Have it written down when the person leaves and when they come back."""
        there = True
        while True:
            await self._moved.wait()
            self._moved.clear()
            if there is not (self.live.driver is not None):
                there = not there
                await self.viewer(there)

    async def _watches(self) -> None:
        async for seen in self.container():
            if seen is None:
                raise _Over(ShellEnd(reason=EndReason.POD_GONE, detail="the pod is gone"))
            if seen.terminated_at is not None:
                await asyncio.sleep(FAREWELL_SECONDS)  # the stream's own last words come first where there are any
                raise _Over(
                    self._exit
                    or ShellEnd(reason=EndReason.ATTACH_LOST, exit_code=seen.exit_code, detail="the debug container ended")
                )

    async def _rechecks(self) -> None:
        checks = 0
        while True:
            await asyncio.sleep(expiry.RECHECK_SECONDS / 6)
            checks += 1
            if not await self.grant_there():
                raise _Over(ShellEnd(reason=EndReason.GRANT_GONE, detail="the grant was deleted by somebody else"))
            if checks % 6 == 0 and (why := await self.recheck()) is not None:
                raise _Over(ShellEnd(reason=EndReason.NOT_ENTITLED, detail=why))

    async def _stops(self) -> None:
        stop = await self.live.stopped()
        raise _Over(ShellEnd(reason=stop.reason, by=stop.by))

    async def _farewell(self, end: ShellEnd) -> ShellEnd:
        """Ask the supervisor to end and take what it still says; a frozen one is left to its kernel timer."""
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                while self._unshown:
                    await self._show_batch()
                if self._exit is None:
                    await self._write(self.frames.end)
                    while self._exit is None and (data := await self.attach.read()):
                        self._feed(data)
                while self._unshown:
                    await self._show_batch()
            self.live.show(await self.recorder.flush())
        except (TimeoutError, PortError, FrameViolation):
            pass
        except RecorderFailed as failed:
            return ShellEnd(reason=EndReason.RECORDER_FAILED, detail=str(failed))
        if self._exit is None:
            return end
        return replace(end, exit_code=self._exit.exit_code, witness_agrees=self._exit.witness_agrees)


class _Over(Exception):  # noqa: N818 - not an error: how a child tells its siblings that the shell is over
    def __init__(self, end: ShellEnd) -> None:
        super().__init__(end.reason.value)
        self.end = end


_ENDS = {
    ExitReason.SHELL_EXITED: EndReason.SHELL_EXITED,
    ExitReason.ENDED: EndReason.SHELL_EXITED,
    ExitReason.EOF: EndReason.ATTACH_LOST,
    ExitReason.STOPPED: EndReason.POD_GONE,
}
"""Why the supervisor ended. It is stopped when the kubelet ends its pod: that costs the shell and not the approval."""
_WEIGHT = {EndReason.RECORDER_FAILED: -2, EndReason.FRAME_VIOLATION: -1, EndReason.ATTACH_LOST: 2}
"""When several end a shell in one instant, the gravest is the reason, and a lost stream is the least of them."""


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def _either(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event or the time; whether it was the event."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            return await event.wait()
    except TimeoutError:
        return False
