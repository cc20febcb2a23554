"""Layer 7, the disk: a record's files, and what a dead process left of them sealed `cut`, by the code that seals the living.

Must never: write where another process may still be writing (one lock a record), or call a record whole that was cut.
"""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from breakglass.core import record as codec
from breakglass.core.record import End, Seal
from breakglass.core.record_read import OBJECT_MAX, Fault, Reader, RecordInvalid, whole

IOV_MAX = 1024
"""Pieces that one `writev` takes (POSIX guarantees 16, Linux has 1024)."""
BALLAST_BYTES = 64 << 10
"""Kept on the disk of each live record and let go when it is full: room for the last seal."""


class SpoolFault(StrEnum):
    """Why the record cannot be kept."""

    FULL = "spool_full"
    LATE = "spool_late"
    IO = "spool_io"
    BUSY = "spool_busy"
    CORRUPT = "spool_corrupt"
    ENDED = "spool_ended"
    RECIPIENTS = "too_few_recipients"


class RecorderFailed(Exception):  # noqa: N818 - the design's word
    """The record cannot be kept: the session ends. Nothing of the failed call was made showable."""

    def __init__(self, code: SpoolFault, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSegment:
    """One sealed segment on disk: its output object, its input object, and what its seal says."""

    number: int
    paths: tuple[Path, Path]
    seal: Seal


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSummary:
    """A record at its end. `paths`: every segment's two objects in order; `chain` the last link, hex, empty without segments."""

    segments: int
    chain: str
    output_bytes: int
    cut: bool
    paths: tuple[Path, ...]


NOTHING = RecordSummary(segments=0, chain="", output_bytes=0, cut=True, paths=())


def recover(directory: Path, reason: str = "tower_died") -> RecordSummary:
    """Seal what a dead process left, `cut`, for nobody knows what did not reach the disk. The input key is not needed.

    1. Nobody else is writing (the lock). 2. Segments with their names are read strictly. 3. One that has its seal but not its
    name gets it. 4. The open one is cut back to whole lines in both lanes, sealed with the end, and read again. Repeating it,
    also after a crash in the middle, comes to the same record. What `output` had returned is in whole lines: it was durable
    before it was shown. A record without its first lines was never shown to anybody: no segments.
    `RecorderFailed`: busy (a process holds it), corrupt (what was whole once is not any more: not mended), full, io.
    """
    if codec.REASON.fullmatch(reason) is None:
        raise ValueError("a record ends with a word of a-z, 0-9 and _")
    if not directory.is_dir():
        return NOTHING
    lock = locked(directory)  # (1)
    try:
        (directory / "ballast").unlink(missing_ok=True)
        reader = Reader()
        while reader.end is None and _next(reader, directory, End(reason=reason, cut=True)):
            pass
    except RecordInvalid as invalid:
        raise RecorderFailed(SpoolFault.CORRUPT, f"the record in the spool does not hold: {invalid}") from None
    except OSError as error:
        raise named(error) from None
    finally:
        os.close(lock)
    return NOTHING if reader.end is None else summary(directory, reader.number, reader.chain, reader.output_bytes, reader.end)


def _next(reader: Reader, directory: Path, end: End) -> bool:
    """Bring one segment to its final form; False when there is nothing whole to seal."""
    number = reader.number + 1
    paths = names(directory, number)
    out, inp = (_read(path) for path in paths)
    try:
        _seen(reader, paths, out, inp)  # (2) (3)
    except RecordInvalid:
        if paths[0].exists() or any(_exists(path) for path in names(directory, number + 1)):
            raise
        found = whole(out, inp, reader)  # (4)
        if found is None:
            return False
        heads = codec.seg_line(number, found.prev), codec.input_header(found.header.sid, number, b"")
        more = [b"" if kept else head for kept, head in zip((found.out_size, found.in_size), heads, strict=True)]
        digests = codec.digest(out[: found.out_size] + more[0]), codec.digest(inp[: found.in_size] + more[1])
        seal = codec.sealed(found.prev, number, digests, found.counts, end)
        _cut_back(_here(paths[1]), found.in_size, more[1])
        _cut_back(_here(paths[0]), found.out_size, more[0] + codec.seal_line(seal))
        reader.segment(_read(paths[0]), _read(paths[1]))
    for path in reversed(paths):
        if not path.exists():
            part(path).rename(path)
    sync_directory(directory)
    return True


def _seen(reader: Reader, paths: tuple[Path, Path], out: bytes, inp: bytes) -> None:
    """Read a sealed segment. An input object without records is not fsynced before the seal: it is made again where missing."""
    try:
        reader.segment(out, inp)
    except RecordInvalid as invalid:
        if invalid.code is not Fault.IN_DIGEST or reader.header is None:
            raise
        head = codec.input_header(reader.header.sid, reader.number + 1, b"")
        reader.segment(out, head)
        _cut_back(_here(paths[1]), 0, head)


def _exists(path: Path) -> bool:
    return path.exists() or part(path).exists()


def _here(path: Path) -> Path:
    """The file under its name or, not sealed yet, under the other."""
    return path if path.exists() else part(path)


def _read(path: Path) -> bytes:
    """At most one byte more than a reader takes; nothing when there is no such file."""
    try:
        with _here(path).open("rb") as file:
            data = file.read(OBJECT_MAX + 1)
    except FileNotFoundError:
        return b""
    if len(data) > OBJECT_MAX:
        raise RecordInvalid(Fault.TOO_LONG, path.name)
    return data


def _cut_back(path: Path, size: int, more: bytes) -> None:
    """Keep `size` bytes and append, in place: a full disk has no room for a second copy. Durable on return."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        write_all(fd, more)
        os.fsync(fd)
    finally:
        os.close(fd)


def summary(directory: Path, segments: int, chain: bytes, output_bytes: int, end: End) -> RecordSummary:
    """What a sealed record is."""
    paths = tuple(path for number in range(1, segments + 1) for path in names(directory, number))
    return RecordSummary(segments=segments, chain=chain.hex(), output_bytes=output_bytes, cut=end.cut, paths=paths)


def names(directory: Path, number: int) -> tuple[Path, Path]:
    """A segment's output and input object."""
    name = codec.segment_name(number)
    return directory / f"{name}.cast", directory / f"{name}.in"


def part(path: Path) -> Path:
    """Where an object grows until it is sealed."""
    return path.with_name(path.name + ".part")


def locked(directory: Path) -> int:
    """A descriptor that holds the record's lock until it is closed, by us or by the kernel when we die; else busy."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise RecorderFailed(SpoolFault.BUSY, "another process still holds this record") from None
    return fd


def put_ballast(directory: Path) -> None:
    """Random, so that no file system stores it as nothing."""
    fd = os.open(directory / "ballast", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, os.urandom(BALLAST_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)


def named(error: OSError) -> RecorderFailed:
    """What the system's error means for a record."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return RecorderFailed(SpoolFault.FULL, "the spool is full")
    return RecorderFailed(SpoolFault.IO, f"the spool cannot be written ({os.strerror(error.errno or errno.EIO)})")


def write_all(fd: int, *parts: bytes) -> None:
    """All of it, however little the system takes at a time."""
    for at in range(0, len(parts), IOV_MAX):
        some = parts[at : at + IOV_MAX]
        done = os.writev(fd, some)
        rest = memoryview(b"" if done == sum(map(len, some)) else b"".join(some)[done:])
        while rest:
            rest = rest[os.write(fd, rest) :]


def sync_directory(directory: Path) -> None:
    """What was created and renamed in it is durable on return."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
