"""An event loop whose clock jumps to the next thing that is due: thirty minutes of a session in milliseconds, in one order only.

Work for a pool of threads is done at once, in line; while a record's own thread has something to do, time stands still. A test
that waits for what will never come fails at once and says so.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from breakglass.spool import Recorder
from breakglass.spool_disk import Disk

BEGIN = datetime(2026, 12, 1, 3, 0, 0, tzinfo=UTC)


class _Jumping(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if (ready := super().select(0)) or timeout == 0:
            return ready
        if _disk_is_busy(self.loop):
            return super().select(0.5)
        if timeout is None:
            raise AssertionError("everybody waits and nothing is due: a deadlock")
        self.loop.seconds += timeout
        return []


def _disk_is_busy(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a record of this loop waits for its thread: to open, to answer a call, or to let go of its files."""
    for thread in threading.enumerate():
        if isinstance(thread, Disk) and thread._loop is loop:
            recorder: Recorder = thread._news.opened.__self__  # type: ignore[attr-defined]
            if not recorder._opened.done() or recorder._pending or thread.stopped or thread._over:
                return True
    return False


class VirtualLoop(asyncio.SelectorEventLoop):
    """`seconds` since its beginning is the only clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed on to whoever waits
            done.set_exception(error)
        return done


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own; leftover tasks are cancelled and their errors are the test's."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            _cancel_all(loop)
            _stop_disks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    return run


def _cancel_all(loop: VirtualLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:  # gathering nothing would ask for a loop that is not there
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def _stop_disks(loop: VirtualLoop) -> None:
    """The records a test left open: their threads go with it, as they would with the process."""
    for thread in threading.enumerate():
        if isinstance(thread, Disk) and thread._loop is loop:
            thread.stopped = True
            thread.calls.put(None)
            thread.join()


async def until(true: Callable[[], bool], seconds: float = 7200) -> None:
    """Let time pass until it is true; fails after `seconds` of the loop's own."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.05)


async def soon(call: Awaitable[Any], seconds: float = 7200) -> Any:
    """The call's result, within `seconds` of the loop's own time."""
    async with asyncio.timeout(seconds):
        return await call
