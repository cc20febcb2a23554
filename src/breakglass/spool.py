"""Layer 7, the disk: what `output` returns is on it. Group commit, fsync in a thread, segments cut, torn tails sealed `cut`.

Must never: return a byte that is not durable, go on after a fault (every later call fails), or drop anything silently.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import errno
import hashlib
import io
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import pyrage  # type: ignore[import-untyped]

from breakglass.core import record as codec
from breakglass.core.record import End, Header, Kind, Seal, Typed, Writer
from breakglass.core.record_read import Reader, RecordInvalid, read_header, whole_inputs, whole_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a live record. Bytes, bytes that must stay free on the disk, and seconds a commit may take."""

    record_bytes: int = 1 << 30
    reserve_bytes: int = 256 << 20
    commit_seconds: float = 5.0


class SpoolFault(StrEnum):
    """Why the record cannot be kept."""

    FULL = "spool_full"
    LATE = "spool_late"
    IO = "spool_io"
    ENDED = "spool_ended"
    RECIPIENTS = "too_few_recipients"


class RecorderFailed(Exception):  # noqa: N818 - the design's word
    """The record cannot be kept: the session ends. Nothing of the failed call was made showable."""

    def __init__(self, code: SpoolFault, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSegment:
    """One sealed segment on disk: output object, input object."""

    number: int
    paths: tuple[Path, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSummary:
    """A record at its end. `paths`: every segment's two objects in order; `chain` the last link, hex, empty without segments."""

    segments: int
    chain: str
    output_bytes: int
    cut: bool
    paths: tuple[Path, ...]


_Op = tuple[str, object]


class Recorder:
    """The live record of one session. Calls may overlap; they take effect in the order in which they were made."""

    def __init__(self, directory: Path, writer: Writer, limits: Limits, micros: Callable[[], int]) -> None:
        self._directory = directory
        self._writer = writer
        self._limits = limits
        self._micros = micros
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._ops: list[tuple[_Op, asyncio.Future[bytes]]] = []
        self._wake = asyncio.Event()
        self._failed: RecorderFailed | None = None
        self._sealed: asyncio.Queue[SealedSegment | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._spent = 0
        self._opened_us = 0
        self._summary: RecordSummary | None = None
        self._files: _Files | None = None
        self._committer: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        directory: Path,
        *,
        sid: str,
        request_digest: str,
        size: tuple[int, int],
        started_at: datetime,
        recipients: Sequence[str],
        limits: Limits,
    ) -> Recorder:
        """A new record in a new directory (0700, files 0600), its first lines durable on return.

        1. At least two distinct recipients, or nobody but one could ever read the input. 2. Room on the disk. 3. The
        directory is new: a record is never written over. 4. The key exists in memory only; age-wrapped it is in each segment.
        """
        wrapped, key = await asyncio.to_thread(_new_key, recipients)  # (1) (4)
        began = time.monotonic_ns()
        header = Header(sid=sid, request_digest=request_digest, cols=size[0], rows=size[1], started_at=started_at)
        writer = Writer(header, key=key, wrapped_key=wrapped)
        recorder = cls(directory, writer, limits, lambda: (time.monotonic_ns() - began) // 1000)
        await recorder._on_disk(recorder._open_directory)  # (2) (3)
        recorder._committer = asyncio.get_running_loop().create_task(recorder._commit_loop())
        return recorder

    async def output(self, data: bytes) -> bytes:
        """Record output. Returns the bytes that are durable now and were not before: only these may be shown."""
        return await self._do("output", data)

    async def flush(self) -> bytes:
        """Record the beginning of a character that nothing followed; returns it."""
        return await self._do("flush", None) if self._writer.holding else b""

    async def input(self, data: bytes, kind: Kind = Kind.TYPED) -> None:
        """Record input, encrypted; durable on return, so that it may go to the shell."""
        await self._do("input", Typed(at_us=self._micros(), kind=kind, data=data))

    async def resize(self, cols: int, rows: int) -> None:
        """Record a new terminal size."""
        await self._do("resize", (cols, rows))

    async def marker(self, label: str) -> None:
        """Record that something happened that is not output."""
        await self._do("marker", label)

    async def shell(self, number: int, pod: str) -> None:
        """Record that a shell begins."""
        await self.marker(f"shell {number} on pod {pod}")

    async def exit(self, status: int) -> None:
        """Record a shell's exit status."""
        await self._do("exit", status)

    async def end(self, reason: str) -> RecordSummary:
        """Seal the record; harmless to repeat. After a fault the tail that is on disk is sealed `cut`, by `recover`."""
        if self._summary is None:
            try:
                await self._do("end", reason)
            except RecorderFailed:
                self._close()
                self._summary = await asyncio.to_thread(recover, self._directory, reason)
            self._close()
        if self._summary is None:
            raise RecorderFailed(SpoolFault.IO, "the record was not sealed")
        return self._summary

    async def sealed(self) -> AsyncIterator[SealedSegment]:
        """Every segment as it is sealed; ends with the record. One consumer."""
        while (segment := await self._sealed.get()) is not None:
            yield segment

    # --- the committer ------------------------------------------------------------------------------------------------

    async def _do(self, what: str, value: object) -> bytes:
        if self._failed is not None:
            raise self._failed
        done: asyncio.Future[bytes] = self._loop.create_future()
        self._ops.append(((what, value), done))
        self._wake.set()
        return await done

    async def _commit_loop(self) -> None:
        """While one commit is on its way to the disk the next gathers; an idle segment is cut when its five seconds are over."""
        while self._failed is None and self._summary is None:
            try:
                async with asyncio.timeout(self._idle_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            batch, self._ops = self._ops, []
            try:
                results = await self._on_disk(self._commit, [op for op, _ in batch])
            except RecorderFailed as failed:
                self._failed = failed
                for _, done in [*batch, *self._ops]:
                    if not done.done():
                        done.set_exception(failed)
                self._ops = []
                self._sealed.put_nowait(None)
                return
            for (_, done), shown in zip(batch, results, strict=True):
                if not done.done():
                    done.set_result(shown)

    def _idle_seconds(self) -> float | None:
        if self._writer.events == 0:
            return None
        return max(0.0, (self._opened_us + codec.SEGMENT_US - self._micros()) / 1e6)

    async def _on_disk(self, work: Callable[..., list[bytes]], *args: object) -> list[bytes]:
        """Do it in the disk's thread, within the time a commit may take; every fault has a name and is final."""
        try:
            async with asyncio.timeout(self._limits.commit_seconds):
                return await self._loop.run_in_executor(self._disk, work, *args)
        except TimeoutError:
            raise RecorderFailed(SpoolFault.LATE, f"the disk took more than {self._limits.commit_seconds:g} s") from None
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
            what = "the spool is full" if full else f"the spool cannot be written ({os.strerror(error.errno or 0)})"
            raise RecorderFailed(SpoolFault.FULL if full else SpoolFault.IO, what) from None

    # --- in the disk's thread -----------------------------------------------------------------------------------------

    def _open_directory(self) -> list[bytes]:
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._room()
        self._directory.mkdir(mode=0o700)
        _sync_directory(self._directory.parent)
        self._begin()
        return []

    def _begin(self) -> None:
        self._room()
        out, inp = self._writer.begin()
        self._files = _Files(self._directory, self._writer.number)
        self._files.append(out, inp)
        _sync_directory(self._directory)
        self._opened_us = self._micros()

    def _room(self) -> None:
        free = os.statvfs(self._directory.parent)
        if free.f_bavail * free.f_frsize < self._limits.reserve_bytes:
            raise RecorderFailed(SpoolFault.FULL, "less than the reserve is free on the spool's disk")

    def _commit(self, ops: list[_Op]) -> list[bytes]:
        """1. Turn the batch into lines. 2. Within the quota, or nothing of it is written. 3. Write and fsync both lanes.
        4. Cut the segment when it is due. Only then do the callers hear that their bytes are durable.
        """
        files = self._files
        if files is None:
            raise RecorderFailed(SpoolFault.ENDED, "the record has ended")
        out, inp, shown = io.BytesIO(), io.BytesIO(), []
        typed = [value for what, value in ops if what == "input" and isinstance(value, Typed)]
        if typed:
            inp.write(self._writer.input(typed))
        end: str | None = None
        for what, value in ops:  # (1)
            lines, covered = self._lines(what, value)
            out.write(lines)
            shown.append(covered)
            if what == "end" and isinstance(value, str):
                end = value
        self._spent += out.tell() + inp.tell()
        if self._spent > self._limits.record_bytes:  # (2)
            raise RecorderFailed(SpoolFault.FULL, "the record has reached the size a session may have")
        files.append(out.getvalue(), inp.getvalue())  # (3)
        due = self._writer.size >= codec.SEGMENT_BYTES or self._micros() - self._opened_us >= codec.SEGMENT_US
        if end is not None or (due and self._writer.events):  # (4)
            self._seal(None if end is None else End(reason=end, cut=False))
        return shown

    def _lines(self, what: str, value: object) -> tuple[bytes, bytes]:
        """The lines one call adds to the output lane, and the output bytes they cover."""
        now = self._micros()
        if what == "output" and isinstance(value, bytes):
            return self._writer.output(value, now)
        if what == "input":
            return b"", b""
        lines, covered = self._writer.flush(now)
        match what, value:
            case "resize", (int() as cols, int() as rows):
                lines += self._writer.resize(cols, rows, now)
            case "marker", str() as label:
                lines += self._writer.marker(label, now)
            case "exit", int() as status:
                lines += self._writer.exit(status, now)
            case _:
                pass
        return lines, covered

    def _seal(self, end: End | None) -> None:
        files = self._files
        if files is None:
            return
        line, seal = self._writer.seal(end)  # what is held back is neither recorded nor shown yet: it goes into the next segment
        paths = files.seal(line)
        self._loop.call_soon_threadsafe(self._sealed.put_nowait, SealedSegment(number=seal.number, paths=paths))
        self._files = None
        if end is None:
            self._begin()
        else:
            self._summary = _summary(self._directory, seal, self._writer.output_bytes)
            self._loop.call_soon_threadsafe(self._sealed.put_nowait, None)

    def _close(self) -> None:
        self._disk.shutdown(wait=False)
        if self._files is not None:
            self._files.close()
            self._files = None


class _Files:
    """The two files of the open segment, `.part` until they are sealed."""

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        name = codec.segment_name(number)
        self._paths = (directory / f"{name}.cast", directory / f"{name}.in")
        self._fds = [os.open(_part(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600) for path in self._paths]

    def append(self, out: bytes, inp: bytes) -> None:
        """Durable on return, both of them."""
        for fd, data in zip(self._fds, (out, inp), strict=True):
            if data:
                _write_all(fd, data)
                os.fdatasync(fd)

    def seal(self, line: bytes) -> tuple[Path, Path]:
        """Add the seal, give both files their names. The input file first: the seal is in the output file."""
        self.append(line, b"")
        self.close()
        for path in reversed(self._paths):
            _part(path).rename(path)
        _sync_directory(self._directory)
        return self._paths

    def close(self) -> None:
        """Let go of the files."""
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def recover(directory: Path, reason: str = "tower_died") -> RecordSummary:
    """Seal what a dead process left, `cut` where its tail is torn. Repeating it is harmless; the input key is not needed.

    1. Segments that were sealed are read strictly. 2. One whose seal was written but not its name gets its name. 3. The open
    one is cut back to whole lines and whole input records, and sealed with the end. What `output` had returned is in whole
    lines: it was durable before it was shown. A record without even a first line was never shown to anybody: no segments.
    """
    reader = Reader()
    while directory.is_dir() and reader.end is None:
        number = reader.number + 1
        cast, inp = (directory / f"{codec.segment_name(number)}{suffix}" for suffix in (".cast", ".in"))
        if cast.exists():  # (1)
            reader.segment(cast.read_bytes(), inp.read_bytes())
        elif (sealed := _finish_names(reader, cast, inp)) is not None:  # (2)
            reader = sealed
        elif not _seal_torn(reader, directory, number, End(reason=reason, cut=True)):  # (3)
            break
    if reader.number == 0:
        return RecordSummary(segments=0, chain="", output_bytes=0, cut=True, paths=())
    cut = reader.end is None or reader.end.cut
    return RecordSummary(
        segments=reader.number,
        chain=reader.chain.hex(),
        output_bytes=reader.output_bytes,
        cut=cut,
        paths=_paths(directory, reader.number),
    )


def _finish_names(reader: Reader, cast: Path, inp: Path) -> Reader | None:
    """(2) The reader after this segment when it is whole but for its names; None when it is not whole."""
    if not _part(cast).exists():
        return None
    there = inp if inp.exists() else _part(inp)
    attempt = copy.copy(reader)
    try:
        attempt.segment(_part(cast).read_bytes(), there.read_bytes() if there.exists() else b"")
    except RecordInvalid:
        return None
    if there is not inp:
        there.rename(inp)
    _part(cast).rename(cast)
    _sync_directory(cast.parent)
    return attempt


def _seal_torn(reader: Reader, directory: Path, number: int, end: End) -> bool:
    """(3) Cut the open segment back and seal it; False when there is nothing whole to seal."""
    cast, inp = (directory / f"{codec.segment_name(number)}{suffix}.part" for suffix in (".cast", ".in"))
    out, typed = (path.read_bytes() if path.exists() else b"" for path in (cast, inp))
    header = reader.header
    prev = reader.chain
    wrapped = _wrapped_key(directory, number, typed)
    if number == 1:
        try:
            header = read_header(out)
        except RecordInvalid:
            return False
        prev = codec.first_link(header.sid, header.request_digest)
    if header is None or wrapped is None:
        return False
    head = codec.input_header(header.sid, number, wrapped)
    whole = whole_lines(out, number, prev, header)
    typed = typed[: whole_inputs(typed, head)] or head
    out = out[: whole.length] or codec.seg_line(number, prev)
    if number == 1 and whole.length == 0:
        return False
    digests = hashlib.sha256(out).digest(), hashlib.sha256(typed).digest()
    seal = Seal(
        number=number, out_sha256=digests[0], in_sha256=digests[1], chain=codec.link(prev, number, *digests, end), end=end
    )
    line = codec.seal_line(seal, events=whole.events, output_bytes=whole.output_bytes, in_bytes=len(typed))
    for path, data in ((inp, typed), (cast, out + line)):
        _replace(path, data)
        path.rename(path.with_suffix(""))
    _sync_directory(directory)
    return True


def _wrapped_key(directory: Path, number: int, typed: bytes) -> bytes | None:
    """The age-wrapped key, from this segment's input file or the one before."""
    before = directory / f"{codec.segment_name(number - 1)}.in"
    for data in (typed, before.read_bytes() if before.exists() else b""):
        line, newline, _ = data.partition(b"\n")
        if newline:
            return base64.b64decode(json.loads(line)["key"])
    return None


def _new_key(recipients: Sequence[str]) -> tuple[bytes, bytes]:
    """A fresh input key, and the same wrapped to every recipient; fewer than two distinct ones is no record."""
    distinct = sorted(set(recipients))
    if len(distinct) < 2:
        raise RecorderFailed(SpoolFault.RECIPIENTS, "the input lane needs two distinct recipients, one of them offline")
    key = secrets.token_bytes(codec.KEY_BYTES)
    try:
        return pyrage.encrypt(key, [pyrage.x25519.Recipient.from_str(text) for text in distinct]), key
    except pyrage.RecipientError:
        raise RecorderFailed(SpoolFault.RECIPIENTS, "a recipient in site.yaml is not an age x25519 recipient") from None


def _summary(directory: Path, seal: Seal, output_bytes: int) -> RecordSummary:
    paths = _paths(directory, seal.number)
    return RecordSummary(segments=seal.number, chain=seal.chain.hex(), output_bytes=output_bytes, cut=False, paths=paths)


def _paths(directory: Path, segments: int) -> tuple[Path, ...]:
    names = [codec.segment_name(number) for number in range(1, segments + 1)]
    return tuple(directory / f"{name}{suffix}" for name in names for suffix in (".cast", ".in"))


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _replace(path: Path, data: bytes) -> None:
    """Write a file anew beside itself, durable, then take its place: a second crash finds the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.rename(path)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
