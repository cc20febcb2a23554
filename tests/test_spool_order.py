"""Against an answer that comes too early, and faults of the disk under an open file: the order is watched from outside."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pyrage  # type: ignore[import-untyped]
import pytest

from breakglass import spool_disk
from breakglass.core.record_read import Reader, decrypt_input
from breakglass.spool import Limits, Recorder, RecorderFailed, RecordSummary, SpoolFault, recover

IDENTITIES = [pyrage.x25519.Identity.generate() for _ in range(2)]
RECIPIENTS = [str(identity.to_public()) for identity in IDENTITIES]
SID = "abcdefghij"


async def start(directory: Path, **changed: Any) -> Recorder:
    arguments: dict[str, Any] = {
        "sid": SID,
        "request_digest": "sha256:" + "5" * 64,
        "size": (80, 24),
        "started_at": datetime(2026, 3, 1, tzinfo=UTC),
        "recipients": RECIPIENTS,
        "limits": Limits(reserve_bytes=0, commit_seconds=60),
    }
    return await Recorder.start(directory, **(arguments | changed))


def told(summary: RecordSummary) -> tuple[bytes, bytes]:
    """All output and all input of a record."""
    reader = Reader(SID)
    pairs = zip(summary.paths[::2], summary.paths[1::2], strict=True)
    segments = [reader.segment(out.read_bytes(), inp.read_bytes()) for out, inp in pairs]
    reader.finish()
    wrapped = segments[0].wrapped_key
    assert wrapped is not None
    typed = decrypt_input(segments, SID, pyrage.decrypt(wrapped, [IDENTITIES[1]]))
    return b"".join(event.data for segment in segments for event in segment.events), b"".join(one.data for one in typed)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "spool"}


@contextmanager
def watched() -> Iterator[list[str]]:
    """What the recorder's thread does, as the interpreter sees it: the system's calls, and the news it gives to the loop."""
    done: list[str] = []

    def profile(frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and what in {os.write, os.writev, os.fdatasync, os.fsync}:
            done.append(what.__name__)
        elif event == "call" and frame.f_code is spool_disk.Disk._tell.__code__:
            done.append(frame.f_locals["news"].__name__)

    threading.setprofile(profile)
    try:
        yield done
    finally:
        threading.setprofile(None)


async def test_no_call_is_answered_between_a_write_and_its_fsync(tmp_path: Path) -> None:
    with watched() as done:
        recorder = await start(tmp_path / SID)
    for number in range(20):
        await recorder.input(b"k")
        await recorder.output(b"x" * 10**5 if number % 5 == 4 else b"x")
    await recorder.marker("m")
    await recorder.output(b"\xe2")
    await recorder.resize(1, 1)
    await recorder.end("idle")
    unsynced = 0
    for name in done:
        if name in {"write", "writev"}:
            unsynced += 1
        elif name in {"fdatasync", "fsync"}:
            unsynced = 0
        elif name in {"_open", "_answer", "_seal_seen", "_ended"}:
            assert unsynced == 0, done
    assert done.count("_answer") > 40
    assert done.count("fdatasync") > 40
    assert done[-2:] == ["_answer", "_left"]


async def test_one_lane_alone_costs_one_fsync(tmp_path: Path) -> None:
    with watched() as done:
        recorder = await start(tmp_path / SID)
    await recorder.output(b"a")
    await recorder.input(b"b")
    del done[:]
    await recorder.output(b"x")
    assert done == ["writev", "fdatasync", "_answer"]
    del done[:]
    await recorder.input(b"x")
    assert done == ["writev", "fdatasync", "_answer"]
    await recorder.end("idle")


def under(directory: Path, suffix: str) -> int:
    """The descriptor of the open segment's file."""
    for path in Path("/proc/self/fd").iterdir():
        if path.is_symlink() and str(path.readlink()).startswith(str(directory)) and str(path.readlink()).endswith(suffix):
            return int(path.name)
    raise AssertionError(suffix)


def full() -> int:
    """What a full disk answers: ENOSPC to every write."""
    return os.open("/dev/full", os.O_WRONLY)


def broken() -> int:
    """A file nobody can write any more: EPIPE."""
    read, write = os.pipe()
    os.close(read)
    return write


def unsyncable() -> int:
    """Takes every byte and can make none of them durable: fdatasync fails (EINVAL on a character device)."""
    return os.open("/dev/null", os.O_WRONLY)


@pytest.mark.parametrize("lane", [".cast.part", ".in.part"])
@pytest.mark.parametrize(
    ("replacement", "code", "sentence"),
    [
        (full, SpoolFault.FULL, "the spool is full"),
        (broken, SpoolFault.IO, "the spool cannot be written (Broken pipe)"),
        (unsyncable, SpoolFault.IO, "the spool cannot be written (Invalid argument)"),
    ],
)
async def test_a_fault_under_an_open_file_ends_the_record_with_what_was_durable(
    tmp_path: Path, lane: str, replacement: Callable[[], int], code: SpoolFault, sentence: str
) -> None:
    recorder = await start(tmp_path / SID)
    shown = await recorder.output(b"before")
    await recorder.input(b"typed")
    fd, other = under(tmp_path, lane), replacement()
    os.dup2(other, fd)
    os.close(other)
    failing, later = asyncio.ensure_future(recorder.output(b"never")), asyncio.ensure_future(recorder.input(b"never"))
    results = await asyncio.gather(failing, later, recorder.marker("m"), return_exceptions=True)
    again = await asyncio.gather(recorder.output(b"z"), recorder.flush(), recorder.exit(0), return_exceptions=True)
    for raised in [*(result for result in results if result != b"never" or lane == ".cast.part"), *again]:
        assert isinstance(raised, RecorderFailed)
        assert (raised.code, str(raised)) == (code, sentence)
    summary = await recorder.end("recorder_failed")
    assert summary.cut
    output, typed = told(summary)
    assert output.startswith(shown)
    assert typed.startswith(b"typed")
    assert await recorder.end("recorder_failed") == summary == recover(tmp_path / SID)
    assert threads() == set()


async def test_the_same_recipient_written_twice_is_one(tmp_path: Path) -> None:
    with pytest.raises(RecorderFailed) as raised:
        await start(tmp_path / SID, recipients=[RECIPIENTS[0], RECIPIENTS[0].upper()])
    assert raised.value.code is SpoolFault.RECIPIENTS
    assert str(raised.value) == "the input lane needs two distinct recipients, one of them offline"


async def test_a_start_that_nobody_waits_for_leaves_no_thread_and_no_lock(tmp_path: Path) -> None:
    for number in range(20):
        starting = asyncio.ensure_future(start(tmp_path / str(number)))
        for _ in range(number):
            await asyncio.sleep(0.001)
        starting.cancel()
        result = (await asyncio.gather(starting, return_exceptions=True))[0]
        if isinstance(result, Recorder):
            await result.end("idle")
    for thread in threads():
        await asyncio.to_thread(thread.join, 60)
    assert threads() == set()
    for number in range(20):
        assert recover(tmp_path / str(number)).output_bytes == 0


async def test_a_recorder_whose_loop_is_gone_lets_go_of_its_files(tmp_path: Path) -> None:
    def once() -> None:
        async def die() -> None:
            recorder = await start(tmp_path / SID)
            await recorder.output(b"x")
            recorder._fail(RecorderFailed(SpoolFault.IO, "as after any fault"))

        asyncio.run(die())

    await asyncio.to_thread(once)
    for thread in threads():
        await asyncio.to_thread(thread.join, 60)
    assert told(recover(tmp_path / SID)) == (b"x", b"")


async def test_bytes_answered_to_a_call_in_the_instant_it_was_cancelled_are_the_nexts(tmp_path: Path) -> None:
    recorder = await start(tmp_path / SID)
    heard: list[bytes] = []

    async def hears(data: bytes) -> None:
        heard.append(await recorder.output(data))

    async def cancels() -> None:
        await hears(b"a")
        cancelled.cancel()  # mostly answered together with the call before, and not awake yet

    for _ in range(30):
        busy = asyncio.ensure_future(hears(b"."))
        await asyncio.sleep(0)
        first, cancelled = asyncio.ensure_future(cancels()), asyncio.ensure_future(hears(b"b"))
        await asyncio.gather(busy, first, cancelled, return_exceptions=True)
        await hears(b"c")
    assert b"".join(heard) == b".abc" * 30 == told(await recorder.end("idle"))[0]


@pytest.mark.parametrize("size", [65_536, 65_537, 5_000_000])
async def test_a_single_call_may_be_larger_than_a_segment(tmp_path: Path, size: int) -> None:
    recorder = await start(tmp_path / SID)
    data = bytes(itertools.islice(itertools.cycle(range(256)), size))
    shown = await recorder.output(data)
    await recorder.input(data)
    shown += await recorder.flush()
    assert told(await recorder.end("idle")) == (data, data)
    assert shown == data


async def test_the_reserve_is_asked_for_again_at_every_segment(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    recorder = await start(tmp_path / SID, limits=Limits(reserve_bytes=free.f_bavail * free.f_frsize - (1 << 30)))
    recorder._disk._limits = Limits(reserve_bytes=1 << 62)  # as if the disk had filled up meanwhile
    shown = b"".join([await recorder.output(b"x" * 100_000) for _ in range(2)])
    with pytest.raises(RecorderFailed) as raised:
        await recorder.output(b"x" * 100_000)  # fills the segment
    assert (raised.value.code, str(raised.value)) == (SpoolFault.FULL, "less than the reserve is free on the spool's disk")
    summary = await recorder.end("recorder_failed")
    assert summary.cut
    assert told(summary)[0].startswith(shown)
