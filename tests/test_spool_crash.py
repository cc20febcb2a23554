"""Against a crash at any instant, of the recorder or of its recovery: what anybody was shown is in the record, in order."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pyrage  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakglass import spool_files
from breakglass.core.record import SEGMENT_US
from breakglass.core.record_read import Reader, decrypt_input
from breakglass.spool import Limits, Recorder, RecorderFailed, RecordSummary, SpoolFault, recover
from tests.spool_victim import DIGEST, SID, chunk, chunks

pytestmark = pytest.mark.slow

IDENTITY, SPARE = pyrage.x25519.Identity.generate(), pyrage.x25519.Identity.generate()
RECIPIENTS = [str(IDENTITY.to_public()), str(SPARE.to_public())]
Step = tuple[str, Any]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: thousands of recoveries, and none waits for a disk."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


@dataclass
class Seen:
    """What was shown and sent when the open segment's files had these sizes, all of it on the disk."""

    number: int
    sizes: tuple[int, int]
    shown: bytes
    sent: list[bytes]


@dataclass
class Story:
    """A recorder that was abandoned: a copy of its directory, and what had been shown at each instant."""

    directory: Path
    fed: bytes = b""
    seen: list[Seen] = field(default_factory=list)


async def tell(directory: Path, steps: list[Step]) -> Story:
    """Play the steps; `tick` makes the open segment's time run out."""
    ticks = [0]
    recorder = await Recorder.start(
        directory / "live",
        sid=SID,
        request_digest=DIGEST,
        size=(80, 24),
        started_at=datetime(2026, 3, 1, tzinfo=UTC),
        recipients=RECIPIENTS,
        limits=Limits(reserve_bytes=0, commit_seconds=60),
        clock=lambda: ticks[0],
    )
    story = Story(directory / "copy")
    shown, sent = b"", []
    for name, value in steps:
        ticks[0] += 1000
        match name:
            case "output" | "fill":
                data = bytes(value) if name == "fill" else value
                story.fed += data
                shown += await recorder.output(data)
            case "flush":
                shown += await recorder.flush()
            case "input":
                await recorder.input(value)
                sent.append(value)
            case "marker":
                await recorder.marker(value)
            case _:
                ticks[0] += SEGMENT_US
        with suppress(FileNotFoundError, ValueError):  # the thread is between two segments: the next step sees them
            out, inp = sorted((directory / "live").glob("*.part"))
            sizes = out.stat().st_size, inp.stat().st_size
            if out.exists() and inp.exists():
                story.seen.append(Seen(int(out.name[4:10]), sizes, shown, list(sent)))
    await recorder.marker("over")  # nothing is on its way behind this
    shutil.copytree(directory / "live", story.directory)
    await recorder.end("idle")
    return story


def told(summary: RecordSummary) -> tuple[bytes, list[bytes]]:
    """Output and input of a recovered record, read as a reviewer reads it."""
    reader = Reader(SID)
    segments = [
        reader.segment(out.read_bytes(), inp.read_bytes())
        for out, inp in zip(summary.paths[::2], summary.paths[1::2], strict=True)
    ]
    reader.finish()
    assert (reader.number, reader.chain.hex(), reader.output_bytes) == (summary.segments, summary.chain, summary.output_bytes)
    wrapped = segments[0].wrapped_key
    assert wrapped is not None
    key = pyrage.decrypt(wrapped, [IDENTITY])
    typed = [one.data for one in decrypt_input(segments, SID, key)]
    return b"".join(event.data for segment in segments for event in segment.events), typed


def holds(summary: RecordSummary, shown: bytes, sent: list[bytes], fed: bytes) -> None:
    """Everything shown and sent is in the record, in order, and nothing that never was."""
    assert summary.cut
    if summary.segments == 0:
        assert (shown, sent) == (b"", [])
        return
    output, typed = told(summary)
    assert output.startswith(shown)
    assert fed.startswith(output)
    assert typed[: len(sent)] == sent


STEPS: list[Step] = [
    ("marker", "shell 1 on pod checkout-1"),
    ("output", b"one\r\n"),
    ("input", b"l"),
    ("tick", None),
    ("output", b"two \xff\xfe\r\n"),
    ("output", "grüße".encode()),
    ("input", b"s\r"),
    ("output", b"half \xe2\x82"),
    ("output", b"\xac"),
    ("output", b"\xe2"),
    ("flush", None),
]


def crashes(story: Story) -> Iterator[tuple[int, int, bytes, list[bytes]]]:
    """Every size the open segment's two files can be left with, and what was surely shown and sent by then."""
    number = max(seen.number for seen in story.seen)
    files = sorted(story.directory.glob("*.part"))
    sizes = files[0].stat().st_size, files[1].stat().st_size
    before = [Seen(number, (0, 0), b"", []), *(seen for seen in story.seen if seen.number < number)][-1]
    for out, inp in [*((out, sizes[1]) for out in range(sizes[0] + 1)), *((sizes[0], inp) for inp in range(sizes[1] + 1))]:
        durable = [seen for seen in story.seen if seen.number == number and seen.sizes[0] <= out and seen.sizes[1] <= inp] or [
            before
        ]
        yield out, inp, durable[-1].shown, durable[-1].sent


@pytest.mark.parametrize("played", [3, len(STEPS)])
async def test_torn_at_any_byte_everything_shown_is_in_the_recovered_record(memory: Path, played: int) -> None:
    story = await tell(memory, STEPS[:played])
    work = memory / "work"
    sizes = [path.stat().st_size for path in sorted(story.directory.glob("*.part"))]
    count = 0
    for out, inp, shown, sent in crashes(story):
        for tail in (b"", b"\x00" * 700):  # a torn tail, and one whose length came to the disk before its bytes
            shutil.copytree(story.directory, work)
            cast, typed = sorted(work.glob("*.part"))
            for path, size, full in ((cast, out, sizes[0]), (typed, inp, sizes[1])):
                path.write_bytes(path.read_bytes()[:size] + (tail if size < full else b""))
            summary = recover(work)
            holds(summary, shown, sent, story.fed)
            before = {path.name: path.read_bytes() for path in work.iterdir()}
            assert recover(work, "idle") == summary
            assert {path.name: path.read_bytes() for path in work.iterdir()} == before
            shutil.rmtree(work)
            count += 1
    assert count == 2 * (sum(sizes) + 2)


scripts = st.lists(
    st.one_of(
        st.tuples(st.just("output"), st.one_of(st.binary(max_size=40), st.text(max_size=9).map(str.encode))),
        st.tuples(st.just("output"), st.sampled_from([b"\xe2", b"\x82", b"\xac"])),
        st.tuples(st.just("fill"), st.sampled_from([70_000, 300_000])),
        st.tuples(st.just("input"), st.binary(min_size=1, max_size=80)),
        st.tuples(st.sampled_from(["flush", "tick"]), st.none()),
        st.tuples(st.just("marker"), st.text(max_size=9)),
    ),
    max_size=10,
)


@settings(max_examples=60, deadline=None)
@given(scripts, st.tuples(st.integers(0, 1000), st.integers(0, 1000)))
def test_whatever_was_recorded_a_crash_takes_nothing_that_was_shown(steps: list[Step], torn: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        story = asyncio.run(tell(Path(name), [*steps, ("output", b"end")]))
        files = sorted(story.directory.glob("*.part"))
        sizes = [path.stat().st_size for path in files]
        number = int(files[0].name[4:10])
        last = [seen for seen in story.seen if seen.number == number]
        at = [size * share // 1000 for size, share in zip(sizes, torn, strict=True)]
        for path, size in zip(files, at, strict=True):
            os.truncate(path, size)
        durable = [seen for seen in last if seen.sizes[0] <= at[0] and seen.sizes[1] <= at[1]]
        before = [Seen(0, (0, 0), b"", []), *(seen for seen in story.seen if seen.number < number)][-1]
        surely = (durable or [before])[-1]
        holds(recover(story.directory), surely.shown, surely.sent, story.fed)


def _dies_at(line: int, directory: Path) -> bool:
    """Recover in a process of its own that dies before the given line of `spool_files.py` it comes to; whether it died."""
    child = os.fork()
    if child == 0:
        left = line

        def tracer(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename != spool_files.__file__:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os._exit(9)
            return tracer

        sys.settrace(tracer)
        try:
            recover(directory)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("torn", [(0, 0), (250, 250), (10_000, 10_000)])
async def test_a_recovery_that_dies_at_any_line_is_taken_up_by_the_next(memory: Path, torn: tuple[int, int]) -> None:
    story = await tell(memory, STEPS)
    for path, size in zip(sorted(story.directory.glob("*.part")), torn, strict=True):
        path.write_bytes(path.read_bytes()[:size])
    shutil.copytree(story.directory, memory / "wanted")
    wanted = recover(memory / "wanted")
    objects = {path.name: path.read_bytes() for path in wanted.paths}
    draw = random.Random(1)
    for line in itertools.count(1):
        work = memory / "work"
        shutil.copytree(story.directory, work)
        sizes = {path: path.stat().st_size for path in work.glob("*.part")}
        died = _dies_at(line, work)
        for path, size in sizes.items():  # and what it wrote last is not whole on the disk either
            if path.exists() and path.stat().st_size > min(size, dict(zip(sorted(sizes), torn, strict=True))[path]):
                os.truncate(path, draw.randint(min(size, path.stat().st_size), path.stat().st_size))
        summary = recover(work)
        assert {path.name: path.read_bytes() for path in summary.paths} == objects
        assert (summary.chain, summary.segments) == (wanted.chain, wanted.segments)
        shutil.rmtree(work)
        if not died:
            assert line > 100
            break


@pytest.mark.parametrize("seed", range(20))
def test_killed_at_a_random_instant_everything_it_said_is_in_the_record(tmp_path: Path, seed: int) -> None:
    arguments = [sys.executable, "-m", "tests.spool_victim", str(tmp_path / "s"), str(seed), *RECIPIENTS]
    patience = random.Random(seed).randint(1, 60_000)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as victim:
        assert victim.stdout is not None
        heard = b""
        while len(heard) < patience:
            heard += os.read(victim.stdout.fileno(), 4096)
        os.kill(victim.pid, signal.SIGKILL)
        heard += victim.stdout.read()
    shown = b""
    sent: list[bytes] = []
    while len(heard) >= 5 + (size := int.from_bytes(heard[1:5], "big")) and heard:
        data = heard[5 : 5 + size]
        shown, sent = (shown + data, sent) if heard[:1] == b"o" else (shown, [*sent, data])
        heard = heard[5 + size :]
    output, typed = told(recover(tmp_path / "s"))
    assert output.startswith(shown)
    assert typed[: len(sent)] == sent
    draw, fed = chunks(seed), b""
    while len(fed) < len(output):
        fed += chunk(draw)
    assert fed.startswith(output)


async def test_a_record_somebody_still_writes_is_not_recovered(tmp_path: Path) -> None:
    recorder = await Recorder.start(
        tmp_path / "s",
        sid=SID,
        request_digest=DIGEST,
        size=(80, 24),
        started_at=datetime(2026, 3, 1, tzinfo=UTC),
        recipients=RECIPIENTS,
        limits=Limits(reserve_bytes=0),
    )
    with pytest.raises(RecorderFailed) as caught:
        recover(tmp_path / "s")
    assert caught.value.code is SpoolFault.BUSY
    await recorder.output(b"x")
    assert (await recorder.end("idle")).output_bytes == 1


async def test_the_room_kept_for_the_last_seal_is_let_go_first(memory: Path) -> None:
    story = await tell(memory, STEPS)
    assert (story.directory / "ballast").stat().st_size == spool_files.BALLAST_BYTES
    recover(story.directory)
    assert not (story.directory / "ballast").exists()


def test_nothing_there_is_an_empty_record_and_no_error(tmp_path: Path) -> None:
    assert recover(tmp_path / "never").segments == 0
    (tmp_path / "empty").mkdir()
    assert recover(tmp_path / "empty") == RecordSummary(segments=0, chain="", output_bytes=0, cut=True, paths=())


async def test_a_sealed_segment_that_changed_is_not_mended(memory: Path) -> None:
    story = await tell(memory, STEPS)
    first = story.directory / "seg-000001.cast"
    first.write_bytes(first.read_bytes().replace(b"one", b"0ne"))
    with pytest.raises(RecorderFailed) as caught:
        recover(story.directory)
    assert (caught.value.code, str(caught.value)) == (
        SpoolFault.CORRUPT,
        "the record in the spool does not hold: segment 1: out digest",
    )
    assert first.read_bytes().count(b"0ne") == 1


async def test_a_missing_segment_is_not_passed_over(memory: Path) -> None:
    story = await tell(memory, STEPS)
    (story.directory / "seg-000001.cast").unlink()
    with pytest.raises(RecorderFailed) as caught:
        recover(story.directory)
    assert caught.value.code is SpoolFault.CORRUPT
