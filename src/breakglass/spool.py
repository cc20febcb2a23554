"""Layer 7, the disk: what `output` returns is on it. Group commit in one thread a record, segments cut, torn tails sealed `cut`.

Must never: return a byte that is not durable, go on after a fault (every later call fails), or drop anything silently.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import pyrage  # type: ignore[import-untyped]

from breakglass.core import record as codec
from breakglass.core.record import Header, Kind, Lines, Writer
from breakglass.spool_disk import Call, Disk, Limits, News, What
from breakglass.spool_files import RecorderFailed, RecordSummary, SealedSegment, SpoolFault, recover

__all__ = ["Limits", "RecordSummary", "Recorder", "RecorderFailed", "SealedSegment", "SpoolFault", "recover"]


class Recorder:
    """The live record of one session, for one event loop. Calls may overlap; they take effect in the order they were made.

    A call that is cancelled still takes effect; the bytes it would have returned are the next `output`'s or `flush`'s. The first
    fault is final: it is what every later call raises.
    """

    def __init__(self, directory: Path, writer: Writer, limits: Limits, clock: Callable[[], int]) -> None:
        """Use `start`."""
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._limits = limits
        self._clock = clock
        self._began_us = clock()
        self._last_us = 0
        self._pending: deque[Call] = deque()
        self._unseen = b""
        self._watch: asyncio.TimerHandle | None = None
        self._failed: RecorderFailed | None = None
        self._summary: RecordSummary | None = None
        self._ending = asyncio.Lock()
        self._sealed: asyncio.Queue[SealedSegment | None] = asyncio.Queue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._writer = writer
        news = News(self._open, self._answer, self._seal_seen, self._ended, self._fail, self._left)
        self._disk = Disk(directory, writer, limits, lambda: clock() - self._began_us, self._loop, news)

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
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> Recorder:
        """A new record in a new directory (0700, files 0600), its first lines durable on return. `clock`: monotonic µs.

        1. At least two distinct recipients, or nobody but one could ever read the input. 2. The key exists in memory only;
        age-wrapped it stands in the first segment. 3. Room on the disk. 4. The directory is new: a record is never written over.
        """
        wrapped, key = await asyncio.to_thread(_new_key, recipients)  # (1) (2)
        header = Header(sid=sid, request_digest=request_digest, cols=size[0], rows=size[1], started_at=started_at)
        recorder = cls(directory, Writer(header, key=key, wrapped_key=wrapped), limits, clock)
        recorder._disk.start()  # (3) (4)
        try:
            async with asyncio.timeout(limits.commit_seconds):
                await recorder._opened
        except TimeoutError:
            recorder._fail(_late(limits))
            raise recorder._failure() from None
        except asyncio.CancelledError:
            recorder._fail(RecorderFailed(SpoolFault.ENDED, "nobody waits for this record any more"))
            raise
        return recorder

    async def output(self, data: bytes) -> bytes:
        """Record output. Returns the bytes that are durable now and were not returned before: only these may be shown.

        The beginning of a UTF-8 sequence at the end of `data` (≤ 3 bytes) waits for the next call, or for `flush`.
        """
        return await self._do(What.OUTPUT, data=data)

    async def flush(self) -> bytes:
        """Record the beginning of a character that nothing followed; returns it, and what else was not returned yet."""
        if self._failed is None and not self._pending and not (self._unseen or self._writer.holding or self._disk.owed):
            return b""
        return await self._do(What.FLUSH)

    async def input(self, data: bytes, kind: Kind = Kind.TYPED) -> None:
        """Record input, encrypted; durable on return, so that it may go to the shell."""
        await self._do(What.INPUT, data=data, kind=kind)

    async def resize(self, cols: int, rows: int) -> None:
        """Record a new terminal size; `ValueError` when it is none."""
        if not (0 < cols < 1 << 16 and 0 < rows < 1 << 16):
            raise ValueError("a terminal has 1–65535 columns and rows")
        await self._do(What.EVENT, event=partial(self._writer.resize, cols, rows))

    async def marker(self, label: str) -> None:
        """Record that something happened that is not output."""
        await self._do(What.EVENT, event=partial(self._writer.marker, label))

    async def shell(self, number: int, pod: str) -> None:
        """Record that a shell begins."""
        await self.marker(f"shell {number} on pod {pod}")

    async def exit(self, status: int) -> None:
        """Record a shell's exit status; `ValueError` when it is none."""
        if not 0 <= status <= 255:
            raise ValueError("an exit status is 0–255")
        await self._do(What.EVENT, event=partial(self._writer.exit, status))

    async def end(self, reason: str) -> RecordSummary:
        """Seal the record; harmless to repeat. After a fault what is on the disk is sealed `cut`, by `recover`.

        `RecorderFailed` when even that is not possible now: the bytes stay where they are, `recover` may be tried later.
        """
        if codec.REASON.fullmatch(reason) is None:
            raise ValueError("a record ends with a word of a-z, 0-9 and _")
        async with self._ending:
            if self._summary is None:
                with suppress(RecorderFailed):
                    await self._do(What.END, reason=reason)
            try:
                async with asyncio.timeout(self._limits.commit_seconds):
                    await self._gone.wait()  # the thread may still be in the disk's hands; nobody else writes before it left
            except TimeoutError:
                raise _late(self._limits) from None
            if self._summary is None:
                self._summary = await asyncio.to_thread(recover, self._directory, reason)
            return self._summary

    async def sealed(self) -> AsyncIterator[SealedSegment]:
        """Every segment as it is sealed; ends with the record or its first fault. One consumer."""
        while (segment := await self._sealed.get()) is not None:
            yield segment

    # --- in the loop --------------------------------------------------------------------------------------------------

    async def _do(
        self,
        what: What,
        *,
        data: bytes = b"",
        kind: Kind = Kind.TYPED,
        event: Callable[[int], Lines] | None = None,
        reason: str = "",
    ) -> bytes:
        if self._failed is not None or self._summary is not None:
            raise self._failure()
        done: asyncio.Future[bytes] = self._loop.create_future()
        call = Call(what, self._micros(), done, self._loop.time(), data, kind, event, reason)
        self._pending.append(call)
        if self._watch is None:
            self._watch = self._loop.call_later(self._limits.commit_seconds, self._look)
        self._disk.calls.put(call)
        try:
            return await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled() and done.exception() is None:  # answered, and cancelled before it heard
                self._unseen += done.result()
            raise

    def _micros(self) -> int:
        """Microseconds since the record began; never backwards."""
        self._last_us = max(self._last_us, self._clock() - self._began_us)
        return self._last_us

    def _look(self) -> None:
        """The oldest call must not wait longer than a commit may take. One timer for all of them."""
        self._watch = None
        if not self._pending:
            return
        at = self._pending[0].waiting_since + self._limits.commit_seconds
        if self._loop.time() >= at:
            self._fail(_late(self._limits))
        else:
            self._watch = self._loop.call_at(at, self._look)

    def _open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def _answer(self, calls: list[Call]) -> None:
        """These calls are durable. When the record has failed meanwhile they were told so and stay told."""
        for call in calls:
            if self._failed is None:
                self._pending.popleft()
            if call.what in {What.OUTPUT, What.FLUSH}:
                self._unseen += call.covered
            if not call.done.done():
                seen, self._unseen = (self._unseen, b"") if call.what in {What.OUTPUT, What.FLUSH} else (b"", self._unseen)
                call.done.set_result(seen)

    def _fail(self, failed: RecorderFailed) -> None:
        if self._failed is None:
            self._failed = failed
        self._disk.stopped = True
        self._disk.calls.put(None)
        if not self._opened.done():
            self._opened.set_exception(self._failure())
        self._refuse()
        self._sealed.put_nowait(None)

    def _refuse(self) -> None:
        for call in self._pending:
            if not call.done.done():
                call.done.set_exception(self._failure())
        self._pending.clear()

    def _failure(self) -> RecorderFailed:
        if self._failed is None:
            return RecorderFailed(SpoolFault.ENDED, "the record has ended")
        return RecorderFailed(self._failed.code, str(self._failed))

    def _seal_seen(self, segment: SealedSegment) -> None:
        self._sealed.put_nowait(segment)

    def _ended(self, summary: RecordSummary) -> None:
        self._summary = summary
        self._sealed.put_nowait(None)

    def _left(self) -> None:
        """The thread holds no file any more. Calls that came behind the end are refused; so is all when it died unasked."""
        self._gone.set()
        if self._failed is None and self._summary is None:
            self._fail(RecorderFailed(SpoolFault.IO, "the spool's thread died"))
        if self._watch is not None:
            self._watch.cancel()
        self._refuse()


def _late(limits: Limits) -> RecorderFailed:
    return RecorderFailed(SpoolFault.LATE, f"the spool's disk took more than {limits.commit_seconds:g} s")


def _new_key(recipients: Sequence[str]) -> tuple[bytes, bytes]:
    """A fresh input key, and the same wrapped to every recipient; fewer than two distinct ones is no record."""
    try:
        parsed = [pyrage.x25519.Recipient.from_str(text.strip()) for text in recipients]
    except pyrage.RecipientError:
        raise RecorderFailed(SpoolFault.RECIPIENTS, "a recipient in site.yaml is not an age x25519 recipient") from None
    distinct = {str(recipient): recipient for recipient in parsed}  # one key may be written in two ways (bech32 folds case)
    if len(distinct) < 2:
        raise RecorderFailed(SpoolFault.RECIPIENTS, "the input lane needs two distinct recipients, one of them offline")
    key = secrets.token_bytes(codec.KEY_BYTES)
    return pyrage.encrypt(key, list(distinct.values())), key
