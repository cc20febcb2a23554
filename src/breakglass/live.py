"""Layer 7, the last step before the eye: a viewer is given durable bytes and nothing else; one session's memory in this process.

Must never: read from a shell, decide who may watch, or hold a byte that the record does not hold already.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from breakglass.core.model import EndReason, EntityRef, Sid

RING_BYTES = 4 << 20
"""Shown output kept for reconnecting viewers and watchers."""
WINDOW_BYTES = 1 << 20
"""Bytes a viewer may be behind its acknowledgements before it is given no more; the driver's window holds back the shell."""
PIECE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Durable output bytes; `offset` is the first one's place in the session's whole output."""

    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Something said to the person at the keyboard, in words, beside the output."""

    kind: str
    sentence: str
    fields: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last thing a viewer is given: why, and whether the session still has time for another shell."""

    reason: str
    sentence: str
    session_open: bool


ViewerFrame = Output | Told | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Bytes the driver typed."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """The driver's terminal has a new size; `redraw` asks the program to paint again even if it has not."""

    cols: int
    rows: int
    redraw: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the shell, and with it the session."""

    reason: EndReason
    by: EntityRef | None = None


ShellCommand = Input | Resize | Stop


class Ring:
    """The last `limit` shown bytes, addressed by their offset in the session's whole output."""

    def __init__(self, limit: int = RING_BYTES) -> None:
        self._limit = limit
        self._bytes = bytearray()
        self.start = 0

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.start + len(self._bytes)

    def append(self, data: bytes) -> None:
        """Add bytes at the end; the oldest go, in big steps so that a byte is moved once."""
        self._bytes += data
        if len(self._bytes) > 2 * self._limit:
            gone = len(self._bytes) - self._limit
            del self._bytes[:gone]
            self.start += gone

    def read(self, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset`, which must not lie before `start`."""
        at = offset - self.start
        return bytes(self._bytes[at : at + limit])


class Viewer:
    """One browser or CLI on a session: `drive` types, `watch` only looks. Made by `Live.join`."""

    def __init__(self, live: Live, role: str, offset: int) -> None:
        self.role = role
        self.sid = live.sid
        self._live = live
        self._next = offset
        self._acknowledged = offset
        self._said: deque[tuple[int, Told | Ended]] = deque()
        self._wake = asyncio.Event()
        self._left = False

    async def frames(self) -> AsyncIterator[ViewerFrame]:
        """Output and words in their order, within the window; ends after `Ended` or once the viewer has left."""
        while not self._left:
            frame = self._frame()
            if frame is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            yield frame
            if isinstance(frame, Ended):
                return

    def _frame(self) -> ViewerFrame | None:
        ring = self._live.ring
        if self._next < ring.start:
            self._next = self._acknowledged = ring.start
            return Told(kind="gap", sentence="some output was left out here: it is in the record")
        if self._said and self._said[0][0] <= self._next:
            return self._said.popleft()[1]
        if self._next >= ring.end or self.unacknowledged >= WINDOW_BYTES:
            return None
        until = self._said[0][0] if self._said else ring.end
        data = ring.read(self._next, min(PIECE_BYTES, until - self._next))
        output = Output(offset=self._next, data=data)
        self._next += len(data)
        return output

    def resume(self, offset: int | None) -> int:
        """Go back to `offset`, as far as it is still in memory, before any frame was taken; returns where frames begin.

        None is a viewer that saw nothing yet: it is given what this shell has shown since it began.
        """
        ring = self._live.ring
        wanted = self._live.shell_from if offset is None else offset
        self._next = self._acknowledged = max(ring.start, min(wanted, ring.end))
        self.wake()
        return self._next

    @property
    def unacknowledged(self) -> int:
        """Bytes given and not yet acknowledged."""
        return self._next - self._acknowledged

    @property
    def behind(self) -> int:
        """Bytes shown in the session that this viewer has not acknowledged."""
        return self._live.ring.end - self._acknowledged

    def acknowledge(self, offset: int) -> None:
        """Everything before `offset` is on the viewer's screen. An offset that was never given is ignored."""
        if self._acknowledged < offset <= self._next:
            self._acknowledged = offset
            self.wake()
            self._live.made_room()

    async def input(self, data: bytes) -> None:
        """Hand typed bytes to the shell; waits while it does not take them. A watcher's bytes go nowhere."""
        if self.role == "drive" and not self._left:
            await self._live.commands.put(Input(data=data))

    async def resize(self, cols: int, rows: int, *, redraw: bool = False) -> None:
        """Tell the shell the driver's terminal size."""
        if self.role == "drive" and not self._left:
            self._live.size = (cols, rows)
            await self._live.commands.put(Resize(cols=cols, rows=rows, redraw=redraw))

    async def leave(self) -> None:
        """The viewer is gone; harmless to repeat."""
        if not self._left:
            self._left = True
            self.wake()
            self._live.parted(self)

    def say(self, frame: Told | Ended) -> None:
        """Queue words behind the output shown so far."""
        self._said.append((self._live.ring.end, frame))
        self.wake()

    def wake(self) -> None:
        """There may be something to give."""
        self._wake.set()


class Live:
    """One session in this process: what was shown, who looks, what the driver asks of the shell.

    Owned by the session's task (`running.py`), which alone calls `show` and takes from `commands`.
    """

    def __init__(self, sid: Sid, cols: int, rows: int) -> None:
        self.sid = sid
        self.size = (cols, rows)
        self.ring = Ring()
        self.commands: asyncio.Queue[ShellCommand] = asyncio.Queue(maxsize=16)
        self.shell_from = 0
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.driver: Viewer | None = None
        self.driver_changed: Callable[[], None] = lambda: None
        self._watchers: set[Viewer] = set()
        self._room = asyncio.Event()
        self._room.set()
        self._over: Ended | None = None

    def show(self, data: bytes) -> None:
        """Make durable bytes visible. The caller has them back from the recorder, and from nowhere else."""
        if not data:
            return
        self.ring.append(data)
        self.made_room()
        for viewer in self._viewers():
            viewer.wake()

    def begin_shell(self) -> None:
        """A new shell begins here: what was shown before is another shell's."""
        self.shell_from = self.ring.end

    def tell(self, told: Told) -> None:
        """Say something to everybody who looks."""
        for viewer in self._viewers():
            viewer.say(told)

    def finish(self, ended: Ended) -> None:
        """Say the last word to everybody; later joiners hear it at once."""
        self._over = ended if not ended.session_open else None
        for viewer in self._viewers():
            viewer.say(ended)

    def end(self, reason: EndReason, by: EntityRef | None) -> None:
        """Ask the running shell to end; the first reason stays."""
        if not self._stop.done():
            self._stop.set_result(Stop(reason=reason, by=by))

    async def stopped(self) -> Stop:
        """Wait until somebody asks the shell to end."""
        return await asyncio.shield(self._stop)

    def join(self, role: str) -> Viewer:
        """A new viewer, from now on (`Viewer.resume` may go back). A second driver takes the first one's place: they moved."""
        viewer = Viewer(self, role, self.ring.end)
        if role == "drive":
            if self.driver is not None:
                self.driver.say(Ended(reason="replaced", sentence="this shell was opened in another window", session_open=True))
            self.driver = viewer
            self.made_room()
            self.driver_changed()
        else:
            self._watchers.add(viewer)
        if self._over is not None:
            viewer.say(self._over)
        return viewer

    def parted(self, viewer: Viewer) -> None:
        """A viewer left; the driver's going starts the two-minute clock."""
        self._watchers.discard(viewer)
        if viewer is self.driver:
            self.driver = None
            self.made_room()
            self.driver_changed()

    async def room(self) -> None:
        """Wait until the driver's window has room. Nobody there is room: output is recorded all the same."""
        while self.driver is not None and self.driver.behind >= WINDOW_BYTES:
            self._room.clear()
            await self._room.wait()

    def made_room(self) -> None:
        """Somebody acknowledged, joined or left: whoever waits in `room` looks again."""
        self._room.set()

    def _viewers(self) -> list[Viewer]:
        return [*self._watchers, *([self.driver] if self.driver else [])]
