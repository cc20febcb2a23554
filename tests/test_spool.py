"""Against full, hanging and lying disks: what was shown is in the record, and what cannot be recorded ends the session.

Crashes at every byte and line: `test_spool_crash.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyrage  # type: ignore[import-untyped]
import pytest

from breakglass.core import record as w
from breakglass.core.record_read import Reader, Segment, decrypt_input, plain_key
from breakglass.spool import Limits, Recorder, RecorderFailed, RecordSummary, SpoolFault, recover

SID = "abcdefghij"
DIGEST = "sha256:" + "0" * 64
REVIEWERS = [pyrage.x25519.Identity.generate() for _ in range(2)]
RECIPIENTS = [str(one.to_public()) for one in REVIEWERS]
EVERYTHING = 1 << 62


async def start(directory: Path, **other: Any) -> Recorder:
    asked: dict[str, Any] = {
        "sid": SID,
        "request_digest": DIGEST,
        "size": (80, 24),
        "started_at": datetime(2026, 12, 1, tzinfo=UTC),
        "recipients": RECIPIENTS,
        "limits": Limits(commit_seconds=60),
    }
    return await Recorder.start(directory, **{**asked, **other})


@asynccontextmanager
async def recorder(directory: Path, **other: Any) -> AsyncIterator[Recorder]:
    live = await start(directory, **other)
    try:
        yield live
    finally:
        await live.end("idle")


def segments(summary: RecordSummary) -> list[Segment]:
    reader = Reader(SID)
    found = [reader.segment(out.read_bytes(), inp.read_bytes()) for out, inp in zip(*[iter(summary.paths)] * 2, strict=True)]
    assert reader.finish().cut is summary.cut
    assert (reader.number, reader.chain.hex(), reader.output_bytes) == (summary.segments, summary.chain, summary.output_bytes)
    return found


def screen(summary: RecordSummary) -> bytes:
    return b"".join(event.data for segment in segments(summary) for event in segment.events)


def labels(summary: RecordSummary) -> list[str]:
    return [f"{event.code} {event.text}" for segment in segments(summary) for event in segment.events if event.code != "o"]


def typed(summary: RecordSummary, reviewer: int = 0) -> list[bytes]:
    found = segments(summary)
    key = plain_key(pyrage.decrypt(found[0].wrapped_key, [REVIEWERS[reviewer]]))
    return [one.data for one in decrypt_input(found, SID, key)]


def crashed(directory: Path, to: Path) -> Path:
    """What a crash now would leave: a copy, without the lock's holder."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(directory, to)
    return to


# --- no byte visible that is not in the record ------------------------------------------------------------------------


async def test_what_output_returned_survives_a_crash_at_that_moment(tmp_path: Path) -> None:
    shown = b""
    async with recorder(tmp_path / SID) as live:
        for chunk in (
            b"$ ",
            "größe".encode()[:3],
            "größe".encode()[3:],
            b"\xff\xfe",
            b"\x00" * 70_000,
            b"x" * 300_000,
            b"\xe2\x82",
        ):
            shown += await live.output(chunk)
            assert screen(recover(crashed(tmp_path / SID, tmp_path / "crash"))).startswith(shown)
        shown += await live.flush()
    assert shown.endswith(b"\xe2\x82")


# --- the calls --------------------------------------------------------------------------------------------------------


async def test_overlapping_calls_take_effect_in_their_order(tmp_path: Path) -> None:
    async with recorder(tmp_path / SID) as live:
        calls = [live.output(b"%d " % number) for number in range(300)]
        assert await asyncio.gather(*calls) == [b"%d " % number for number in range(300)]
    assert screen(recover(tmp_path / SID)) == b"".join(b"%d " % number for number in range(300))


async def test_what_a_cancelled_call_recorded_is_shown_with_the_next(tmp_path: Path) -> None:
    async with recorder(tmp_path / SID) as live:
        task = asyncio.ensure_future(live.output(b"seen by nobody"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await live.output(b"!") == b"seen by nobody!"
    assert screen(recover(tmp_path / SID)) == b"seen by nobody!"


async def test_half_a_character_recorded_by_a_resize_is_shown_with_the_next_output(tmp_path: Path) -> None:
    async with recorder(tmp_path / SID) as live:
        assert await live.output(b"a\xe2") == b"a"
        await live.resize(100, 30)
        assert await live.output(b"\x82") == b"\xe2\x82"
        await live.output(b"\xe2")
        await live.marker("m")
        assert await live.flush() == b"\xe2"
        assert await live.flush() == b""


async def test_keystrokes_are_opened_by_each_reviewer_alone(tmp_path: Path) -> None:
    live = await start(tmp_path / SID)
    await live.input(b"correct horse")
    await live.input(b"\x03", w.Kind.TOWER)
    await live.input(b"p" * 150_000)
    summary = await live.end("idle")
    pasted = [b"p" * 65536, b"p" * 65536, b"p" * (150_000 - 131072)]
    assert typed(summary, 0) == typed(summary, 1) == [b"correct horse", b"\x03", *pasted]
    assert not any(b"horse" in path.read_bytes() for path in (tmp_path / SID).iterdir())


async def test_shells_sizes_and_exits_stand_in_the_record(tmp_path: Path) -> None:
    live = await start(tmp_path / SID)
    await live.shell(1, "checkout-1")
    await live.resize(100, 30)
    await live.marker("10 minutes left")
    await live.exit(137)
    summary = await live.end("shell_exited")
    assert labels(summary) == ["m shell 1 on pod checkout-1", "r 100x30", "m 10 minutes left", "x 137"]


async def test_a_size_or_status_that_does_not_exist_is_refused_and_the_record_goes_on(tmp_path: Path) -> None:
    async with recorder(tmp_path / SID) as live:
        for wrong in (live.resize(0, 24), live.resize(80, 65536), live.exit(256), live.end("Two Words")):
            with pytest.raises(ValueError, match=r"\w"):
                await wrong
        assert await live.output(b"on") == b"on"


# --- segments ---------------------------------------------------------------------------------------------------------


async def test_a_quiet_segment_is_cut_when_its_time_is_over(tmp_path: Path) -> None:
    fast = lambda: time.monotonic_ns() // 10  # noqa: E731 - a clock on which five seconds are fifty milliseconds
    async with recorder(tmp_path / SID, clock=fast) as live:
        await live.output(b"$ ")
        first = await anext(aiter(live.sealed()))
        assert first.number == 1
        assert [path.name for path in first.paths] == ["seg-000001.cast", "seg-000001.in"]


async def test_every_segment_is_handed_out_once_and_is_what_lies_on_the_disk(tmp_path: Path) -> None:
    live = await start(tmp_path / SID)
    for _ in range(3):
        await live.output(b"x" * 300_000)
    await live.input(b"y")
    summary = await live.end("idle")
    handed = [segment async for segment in live.sealed()]
    assert [segment.number for segment in handed] == list(range(1, summary.segments + 1))
    assert [path for segment in handed for path in segment.paths] == list(summary.paths)
    assert [segment.seal for segment in handed] == [segment.seal for segment in segments(summary)]
    assert not list((tmp_path / SID).glob("*.part"))


async def test_nobody_else_may_read_the_spool(tmp_path: Path) -> None:
    async with recorder(tmp_path / "spool" / SID) as live:
        await live.output(b"x")
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spool" / SID).iterdir()}
        assert modes == {0o600}
        assert stat.S_IMODE((tmp_path / "spool" / SID).stat().st_mode) == 0o700


# --- no record, no session --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"recipients": RECIPIENTS[:1]}, SpoolFault.RECIPIENTS),
        ({"recipients": []}, SpoolFault.RECIPIENTS),
        ({"recipients": [RECIPIENTS[0], RECIPIENTS[0], f" {RECIPIENTS[0]}"]}, SpoolFault.RECIPIENTS),
        ({"recipients": [RECIPIENTS[0], "age1nobody"]}, SpoolFault.RECIPIENTS),
        ({"limits": Limits(reserve_bytes=EVERYTHING)}, SpoolFault.FULL),
    ],
)
async def test_a_record_that_could_not_be_kept_or_read_is_not_begun(
    tmp_path: Path, changed: dict[str, Any], code: SpoolFault
) -> None:
    with pytest.raises(RecorderFailed) as raised:
        await start(tmp_path / SID, **changed)
    assert raised.value.code is code
    assert not (tmp_path / SID).exists()


async def test_a_record_is_never_written_over(tmp_path: Path) -> None:
    async with recorder(tmp_path / SID) as live:
        with pytest.raises(RecorderFailed) as raised:
            await start(tmp_path / SID)
        assert raised.value.code is SpoolFault.IO
        assert await live.output(b"x") == b"x"


async def test_a_record_at_its_size_ends_and_says_so_to_every_later_call(tmp_path: Path) -> None:
    live = await start(tmp_path / SID, limits=Limits(record_bytes=100_000, commit_seconds=60))
    shown = await live.output(b"x" * 60_000)
    for call in (live.output(b"y" * 60_000), live.output(b"z"), live.input(b"k"), live.marker("m"), live.flush()):
        with pytest.raises(RecorderFailed) as raised:
            await call
        assert raised.value.code is SpoolFault.FULL
    summary = await live.end("recorder_failed")
    assert summary.cut
    assert screen(summary) == shown
    assert await live.end("recorder_failed") == summary


async def test_a_record_that_has_ended_takes_nothing_more(tmp_path: Path) -> None:
    live = await start(tmp_path / SID)
    late = asyncio.gather(live.end("idle"), live.output(b"late"), live.end("idle"), return_exceptions=True)
    first, refused, second = await late
    assert isinstance(refused, RecorderFailed)
    assert refused.code is SpoolFault.ENDED
    assert first == second == await live.end("hard_stop") == recover(tmp_path / SID)
    assert screen(recover(tmp_path / SID)) == b""
    with pytest.raises(RecorderFailed) as raised:
        await live.input(b"k")
    assert raised.value.code is SpoolFault.ENDED


async def test_files_taken_away_under_a_live_record_end_it(tmp_path: Path) -> None:
    live = await start(tmp_path / SID)
    await live.output(b"x")
    shutil.rmtree(tmp_path / SID)
    with pytest.raises(RecorderFailed) as raised:
        await live.output(b"y" * 300_000)
    assert raised.value.code is SpoolFault.IO
    assert (await live.end("recorder_failed")).segments == 0


# --- after a crash ----------------------------------------------------------------------------------------------------


async def test_sealing_again_what_is_sealed_changes_nothing(tmp_path: Path) -> None:
    live = await start(tmp_path / SID)
    await live.output(b"x" * 600_000)
    summary = await live.end("idle")
    before = {path: path.read_bytes() for path in summary.paths}
    assert recover(tmp_path / SID, "tower_died") == summary
    assert {path: path.read_bytes() for path in summary.paths} == before


@pytest.fixture
async def torn(tmp_path: Path) -> Path:
    """A crash in segment 3: the first two are sealed, each with input."""
    live = await start(tmp_path / SID)
    for letter in (b"a", b"b"):
        await live.input(letter)
        await live.output(letter * 262_144)
    await live.output(b"tail")
    copy = crashed(tmp_path / SID, tmp_path / "torn")
    await live.end("idle")
    return copy


def test_a_sealed_segment_whose_names_were_lost_gets_them_back(torn: Path) -> None:
    whole = screen(recover(crashed(torn, torn.parent / "whole")))
    parts = [torn / "seg-000002.cast", torn / "seg-000002.in"]
    for lost in ([parts[0]], [parts[1]], parts):
        crash = crashed(torn, torn.parent / "crash")
        for path in [*crash.glob("seg-000003*")]:
            path.unlink()
        for path in lost:
            (crash / path.name).rename(crash / f"{path.name}.part")
        summary = recover(crash)
        assert summary.segments == 3
        assert screen(summary) == whole.removesuffix(b"tail")


@pytest.mark.parametrize("lost", [["cast.part"], ["in.part"], ["cast.part", "in.part"]])
def test_files_of_a_new_segment_that_never_reached_the_disk_are_made_again(torn: Path, lost: list[str]) -> None:
    for suffix in lost:
        (torn / f"seg-000003.{suffix}").unlink()
    summary = recover(torn)
    assert summary.segments == 3
    assert screen(summary).endswith(b"b" if "cast.part" in lost else b"tail")
    assert typed(summary) == [b"a", b"b"]


def test_zeros_that_a_power_cut_left_behind_are_cut_off(torn: Path) -> None:
    for name in ("seg-000003.cast.part", "seg-000003.in.part"):
        with (torn / name).open("ab") as file:
            file.write(bytes(5000))
    assert screen(recover(torn)).endswith(b"btail")


async def test_an_input_object_without_input_lost_by_a_power_cut_is_made_again(tmp_path: Path) -> None:
    live = await start(tmp_path / SID)
    await live.output(b"a" * 262_144)
    await live.output(b"b" * 262_144)
    await live.marker("answered, so the second segment has its name")
    copy = crashed(tmp_path / SID, tmp_path / "crash")
    whole = await live.end("idle")
    (copy / "seg-000002.in").write_bytes(b"")
    assert screen(recover(copy)) == screen(whole)


# --- a disk that is full, or does not answer --------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 16 MiB, on a file."""
    image, where = tmp_path / "image", tmp_path / "disk"
    where.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(where)], check=True)
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


@pytest.mark.lab
async def test_a_full_disk_ends_the_session_and_its_record_is_sealed_all_the_same(small_disk: Path) -> None:
    live = await start(small_disk / SID, limits=Limits(reserve_bytes=0, commit_seconds=60))
    shown: list[bytes] = []

    async def flood() -> None:
        for number in itertools.count():
            shown.append(await live.output(bytes([65 + number % 26]) * 100_000))

    with pytest.raises(RecorderFailed) as raised:
        await flood()
    assert raised.value.code is SpoolFault.FULL
    summary = await live.end("recorder_failed")
    assert summary.cut
    assert screen(summary).startswith(b"".join(shown))
    assert len(shown) > 50


@pytest.mark.lab
async def test_a_disk_that_does_not_answer_ends_the_session_and_nothing_unrecorded_was_shown(small_disk: Path) -> None:
    live = await start(small_disk / SID, limits=Limits(reserve_bytes=0, commit_seconds=1))
    shown = await live.output(b"before")
    subprocess.run(["fsfreeze", "-f", str(small_disk)], check=True)
    try:
        waiting = [asyncio.ensure_future(live.output(b"never")), asyncio.ensure_future(live.input(b"k"))]
        for call in [*waiting, live.output(b"later"), live.end("recorder_failed")]:
            with pytest.raises(RecorderFailed) as raised:
                await call
            assert raised.value.code is SpoolFault.LATE
    finally:
        subprocess.run(["fsfreeze", "-u", str(small_disk)], check=True)
    summary = await live.end("recorder_failed")
    assert summary.cut
    assert screen(summary).startswith(shown)
