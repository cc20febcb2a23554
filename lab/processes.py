"""Starts the cluster's programs and finds them again: by a mark in their environment, so that nothing else can ever be ended.

Lab, outside the layers. It must never send a signal to a process without the mark of this state directory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.layout import LabError, Layout

#: The environment variable whose value is the state directory; children inherit it, containers do not.
MARK: Final = "TOWER_LAB_STATE"


#: Kept so that an ended child does not stay behind as a zombie of a long test run.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A living process of the cluster, by its number on this machine."""

    pid: int
    program: str


def start(layout: Layout, role: str, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
    """Start a program in the background; its output goes to `logs/<role>.log`."""
    layout.logs.mkdir(parents=True, exist_ok=True)
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        MARK: str(layout.state),
    }
    with (layout.logs / f"{role}.log").open("ab") as log:
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    _children.append(child)
    return child


def alive(layout: Layout) -> list[Process]:
    """Return every process that carries this state directory's mark (a zombie carries none)."""
    wanted = f"{MARK}={layout.state}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                program = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                found.append(Process(pid=int(entry), program=os.path.basename(program)))
    return found


def pids(layout: Layout, *programs: str) -> list[int]:
    """Return the numbers of the cluster's processes that run one of these programs."""
    return [process.pid for process in alive(layout) if process.program in programs]


def send(numbers: Iterable[int], what: signal.Signals) -> None:
    """Send a signal; a process that has gone already is fine."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, what)


def end(layout: Layout, *programs: str, what: signal.Signals = signal.SIGKILL, seconds: float = 20.0) -> None:
    """Signal the cluster's processes (all of them, or those programs) and return when none is left; LabError if some stay."""
    deadline = time.monotonic() + seconds
    while running := [p for p in alive(layout) if not programs or p.program in programs]:
        if time.monotonic() > deadline:
            raise LabError(f"still running {seconds:.0f} s after {what.name}: {running}")
        send((process.pid for process in running), what)
        send((process.pid for process in running), signal.SIGCONT)
        reap()
        time.sleep(0.02)
    reap()


def reap() -> None:
    """Collect those of this program's own children that have ended."""
    _children[:] = [child for child in _children if child.poll() is None]


def wait_until(what: str, check: Callable[[], bool], seconds: float, every: float = 0.05, log: Path | None = None) -> None:
    """Poll until `check` is true; LabError names what did not happen and shows the end of the log."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise LabError(f"{what} did not happen within {seconds:.0f} s" + tail(log))
        time.sleep(every)


def tail(log: Path | None, lines: int = 15) -> str:
    """Return the last lines of a log for an error text."""
    if log is None or not log.exists():
        return ""
    return f"; the end of {log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
