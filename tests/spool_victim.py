"""A process that records in a loop and says what it was allowed to show, until `tests/test_spool_crash.py` kills it."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from datetime import UTC, datetime
from pathlib import Path

from breakglass.spool import Limits, Recorder

SID = "abcdefghij"
DIGEST = "sha256:" + "5" * 64


def chunks(seed: int) -> random.Random:
    """The same bytes for victim and witness."""
    return random.Random(seed)


def chunk(draw: random.Random) -> bytes:
    """Text, binary, or a character cut in two; now and then much."""
    size = draw.choice([1, 1, 1, 5, 80, 3000])
    return draw.choice(["é€𝄞".encode()[: draw.randint(1, 9)], draw.randbytes(size), b"line of text\r\n" * (size // 14 + 1)])


def say(lane: bytes, data: bytes) -> None:
    """One frame; a pipe takes a small one whole or not at all."""
    if data:
        os.write(1, lane + len(data).to_bytes(4, "big") + data)


async def bleed(directory: Path, seed: int, recipients: list[str]) -> None:
    """Record and say, for ever. The clock runs fast, so that segments are cut often."""
    ticks = 0

    def clock() -> int:
        nonlocal ticks
        ticks += 10_000
        return ticks

    recorder = await Recorder.start(
        directory,
        sid=SID,
        request_digest=DIGEST,
        size=(80, 24),
        started_at=datetime.now(tz=UTC),
        recipients=recipients,
        limits=Limits(reserve_bytes=0, commit_seconds=60),
        clock=clock,
    )
    draw = chunks(seed)
    count = 0
    while True:
        say(b"o", await recorder.output(chunk(draw)))
        count += 1
        if count % 7 == 0:
            typed = str(count).encode()
            await recorder.input(typed)
            say(b"i", typed)


if __name__ == "__main__":
    asyncio.run(bleed(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
