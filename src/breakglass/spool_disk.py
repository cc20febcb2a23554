"""Layer 7, the disk: the one thread that writes a live record. Both lanes are durable before a call is answered.

Must never: answer a call whose bytes are not on the disk, or write on after a fault.
"""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path

from breakglass.core import record as codec
from breakglass.core.record import End, Kind, Lines, Seal, Typed, Writer
from breakglass.spool_files import (
    RecorderFailed,
    RecordSummary,
    SealedSegment,
    SpoolFault,
    locked,
    named,
    names,
    part,
    put_ballast,
    summary,
    sync_directory,
    write_all,
)

BATCH_BYTES = 1 << 20
"""What one commit gathers at most; more waits for the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a live record. Bytes, bytes that must stay free on the disk, and seconds a commit may take."""

    record_bytes: int = 1 << 30
    reserve_bytes: int = 256 << 20
    commit_seconds: float = 5.0


class What(Enum):
    """What a call is."""

    OUTPUT = auto()
    FLUSH = auto()
    INPUT = auto()
    EVENT = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class News:
    """What the thread says to the loop."""

    opened: Callable[[], None]
    answered: Callable[[list[Call]], None]
    sealed: Callable[[SealedSegment], None]
    ended: Callable[[RecordSummary], None]
    failed: Callable[[RecorderFailed], None]
    left: Callable[[], None]


@dataclass(slots=True, eq=False)
class Call:
    """One call on its way: made in the loop, carried out in the thread, answered in the loop."""

    what: What
    at_us: int
    done: asyncio.Future[bytes]
    waiting_since: float
    data: bytes = b""
    kind: Kind = Kind.TYPED
    event: Callable[[int], Lines] | None = None
    reason: str = ""
    covered: bytes = field(default=b"", repr=False)


class Disk(threading.Thread):
    """The one thread that writes a record. A daemon: a disk that hangs must not keep Tower from ending.

    While one commit is on its way the next gathers in `calls`. Nothing here touches the loop but through `_tell`.
    """

    def __init__(
        self,
        directory: Path,
        writer: Writer,
        limits: Limits,
        micros: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        news: News,
    ) -> None:
        super().__init__(name="spool", daemon=True)
        self.calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self.stopped = False
        self.owed: list[bytes] = []
        self._directory = directory
        self._writer = writer
        self._limits = limits
        self._micros = micros
        self._loop = loop
        self._news = news
        self._typed: list[Typed] = []
        self._typed_size = 0
        self._buffers: tuple[list[bytes], list[bytes]] = ([], [])
        self._heads = [b"", b""]
        self._fds: list[int] = []
        self._lock = -1
        self._spent = 0
        self._over = False
        self._sealed: Seal | None = None
        self._named: list[SealedSegment] = []

    def run(self) -> None:
        """Open, commit until the end, a fault or the loop's word; let go of everything."""
        try:
            self._open()
            self._tell(self._news.opened)
            while not (self.stopped or self._over):
                done = self._commit(self._gather())
                self._tell(self._news.answered, done)
                self._cut_when_due()
                self._turn()
                self._settle()
        except RecorderFailed as failed:
            self._tell(self._news.failed, failed)
        except OSError as error:
            self._tell(self._news.failed, named(error))
        finally:
            for fd in [*self._fds, self._lock]:
                with suppress(OSError):  # -1, or a disk that fails even now
                    os.close(fd)
            self._tell(self._news.left)

    def _gather(self) -> list[Call]:
        """What is waiting, up to a bound. Nothing: wait for a call, or until an idle segment's time is over."""
        due = self._writer.due_us
        try:
            first = self.calls.get(timeout=None if due is None else max(0.0, (due - self._micros()) / 1e6))
        except queue.Empty:
            return []
        calls, size = [], 0
        while first is not None:
            calls.append(first)
            size += len(first.data)
            if size >= BATCH_BYTES:
                break
            try:
                first = self.calls.get_nowait()
            except queue.Empty:
                break
        return calls

    def _commit(self, calls: list[Call]) -> list[Call]:
        """1. Turn each call into lines, in order; a segment that becomes full in between is cut. 2. Write and fsync both lanes,
        and the names of files begun meanwhile. 3. Only then may the loop answer these calls; only `output` and `flush` are
        given bytes. A segment that is full at the end gets its name after that: its bytes are durable under either.
        """
        for index, call in enumerate(calls):
            match call.what:  # (1)
                case What.OUTPUT:
                    for piece in codec.pieces(call.data):
                        self._lines(partial(self._writer.output, piece), call.at_us)
                case What.INPUT:
                    self._take_input(call)
                case What.FLUSH:
                    self._lines(self._writer.flush, call.at_us)
                case What.EVENT:
                    self._lines(call.event or self._writer.flush, call.at_us)
                case What.END:
                    self._end(call)
                    return calls[: index + 1]  # what came behind the end is not in the record, and is told so
            if call.what in {What.OUTPUT, What.FLUSH}:
                call.covered, self.owed = b"".join(self.owed), []
        self._seal_typed()
        self._write()  # (2)
        self._settle()
        return calls  # (3)

    def _lines(self, write: Callable[[int], Lines], at_us: int) -> None:
        self._turn()
        lines = write(at_us)
        self._buffers[0].append(lines.out)
        if lines.covered:
            self.owed.append(lines.covered)
        self._cut_when_due()

    def _take_input(self, call: Call) -> None:
        for piece in codec.pieces(call.data):
            self._typed.append(Typed(at_us=call.at_us, kind=call.kind, data=piece))
            self._typed_size += codec.ENTRY.size + len(piece)
            if self._typed_size >= codec.PIECE_MAX:
                self._seal_typed()
                self._cut_when_due()

    def _end(self, call: Call) -> None:
        self._lines(self._writer.flush, call.at_us)
        self._seal_typed()
        self._turn()
        end = End(reason=call.reason, cut=False)
        seal = self._seal(end)
        self._over = True
        self._turn()
        self._settle()
        (self._directory / "ballast").unlink(missing_ok=True)
        found = summary(self._directory, seal.number, seal.chain, self._writer.output_bytes, end)
        self._tell(self._news.ended, found)

    def _seal_typed(self) -> None:
        """One AEAD record for what was typed since the last."""
        if self._typed:
            self._turn()
            self._buffers[1].append(self._writer.input(self._typed))
            self._typed, self._typed_size = [], 0

    def _write(self, *, seal: bytes = b"") -> None:
        """Both lanes durable on return, input first, for a seal names it. Nothing is written beyond the record's size.

        A lane's first lines wait for something to follow them (but for segment 1's, all that a record hangs on): without it
        they can be made again from the segment's number, and cost no fsync of their own.
        """
        out, inp = self._buffers
        self._buffers = ([], [])
        if self._sealed is not None:
            return
        first = self._writer.number == 1
        for lane, lines, must in ((1, inp, first or bool(inp)), (0, [*out, seal], first or bool(seal) or any(out))):
            parts = [line for line in (self._heads[lane], *lines) if line]
            if not parts or not (must or seal):
                continue
            self._heads[lane] = b""
            self._spent += sum(map(len, parts))
            if self._spent > self._limits.record_bytes:
                raise RecorderFailed(SpoolFault.FULL, "the record has reached the size a session may have")
            write_all(self._fds[lane], *parts)
            if must:
                os.fdatasync(self._fds[lane])

    def _cut_when_due(self) -> None:
        if self._sealed is None and self._writer.due(self._micros()):
            self._seal(None)

    def _seal(self, end: End | None) -> Seal:
        """The open segment's last line; with all before it durable on return, in one fsync. Its files are let go by `_turn`."""
        self._seal_typed()
        line, seal = self._writer.seal(end)
        self._write(seal=line)
        self._sealed = seal
        return seal

    def _turn(self) -> None:
        """Give a sealed segment its names and begin the next, unless that was the end. Durable after `_settle`."""
        seal, self._sealed = self._sealed, None
        if seal is None:
            return
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        paths = names(self._directory, seal.number)
        for path in reversed(paths):  # the output object last: it has the seal
            part(path).rename(path)
        self._named.append(SealedSegment(number=seal.number, paths=paths, seal=seal))
        if not self._over:
            self._begin()

    def _settle(self) -> None:
        """One fsync for all names given and files begun since the last."""
        if self._named:
            sync_directory(self._directory)
            for segment in self._named:
                self._tell(self._news.sealed, segment)
            self._named = []

    def _open(self) -> None:
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._room()
        try:
            self._directory.mkdir(mode=0o700)
        except FileExistsError:
            raise RecorderFailed(SpoolFault.IO, "this session has a record in the spool already") from None
        try:
            self._lock = locked(self._directory)
            self._begin()
            self._write()
            put_ballast(self._directory)
            sync_directory(self._directory)
            sync_directory(self._directory.parent)
        except (OSError, RecorderFailed):  # nothing was shown: as if it had never been there
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def _begin(self) -> None:
        """The next segment's two files; in the directory's fsync behind it they become durable."""
        self._room()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._heads = list(self._writer.begin())
        for path in names(self._directory, self._writer.number):
            self._fds.append(os.open(part(path), flags, 0o600))

    def _room(self) -> None:
        free = os.statvfs(self._directory.parent)
        if free.f_bavail * free.f_frsize < self._limits.reserve_bytes:
            raise RecorderFailed(SpoolFault.FULL, "less than the reserve is free on the spool's disk")

    def _tell(self, news: Callable[..., None], *about: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(news, *about)
