"""Prints what the lab is doing and how long each part took; knows nothing about clusters.

Lab, outside the layers. It must never stay silent for more than half a minute.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

#: How often a long step says that it is still running when nobody watches a terminal, in seconds.
STILL_RUNNING: Final = 20.0

Say = Callable[[str], None]


def to_stderr(line: str) -> None:
    """Print one line where progress belongs."""
    print(line, file=sys.stderr, flush=True)


class Steps:
    """A table of named steps with seconds, safe to use from several threads."""

    def __init__(self, say: Say = to_stderr) -> None:
        self.say = say
        self._begun = time.monotonic()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, usually: str = "") -> Iterator[None]:
        """Time the block; a block that takes long says so, with what it usually takes."""
        begun = time.monotonic()
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(name, usually, begun, ended), daemon=True)
        if usually:
            self.say(f"  {name:<34} … usually {usually}")
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
        self.seconds[name] = round(time.monotonic() - begun, 2)
        self.say(f"  {name:<34} {self.seconds[name]:6.1f} s")

    def _watch(self, name: str, usually: str, begun: float, ended: threading.Event) -> None:
        hint = f", usually {usually}" if usually else ""
        while not ended.wait(STILL_RUNNING):
            self.say(f"  {name:<34} … {time.monotonic() - begun:.0f} s so far{hint}")

    def total(self) -> float:
        """Return the seconds since the table was begun."""
        return round(time.monotonic() - self._begun, 2)
