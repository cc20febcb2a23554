"""The real supervisor as a child process, boxed or not, and Tower's end of its pipes.

Boxed: in namespaces of its own without capabilities, as the first process there (a debug container without process access) or
beside another (with process access). The cgroup that a node kills is layer 6's test on the real node.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from breakglass.core.frames import (
    Data,
    Pong,
    TowerEvent,
    TowerFrames,
)

SOURCE = Path(__file__).parents[2] / "image" / "supervisor.py"
KEY = bytes(range(32))
PATIENCE = 20.0
NONCE = b"12345678"
QUIET = "stty -echo; PS1= exec bash --noprofile --norc --noediting -ic 'echo ready; exec bash --noprofile --norc --noediting'"
"""A shell that prints what it is told to and nothing else."""
BOX = """
set -e
mount -t tmpfs tmpfs "$1"
for node in null zero full random urandom tty; do : > "$1/$node"; mount --bind "/dev/$node" "$1/$node"; done
mkdir "$1/pts" "$1/shm"; ln -s pts/ptmx "$1/ptmx"; ln -s /proc/self/fd "$1/fd"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/pts"
: > "$1/termination-log"; mount --bind "$2" "$1/termination-log"
mount --rbind "$1" /dev
shift 2
exec "$@"
"""
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
NO_CAPS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
BESIDE = ("sh", "-c", '"$@"; exit $?', "sh")
"""Keeps the supervisor from being the first process of its namespace."""


class Running:
    """One supervisor and Tower's end of its pipes. Every wait is on an event, and gives up after `PATIENCE`."""

    def __init__(self, command: list[str]) -> None:
        env = os.environ | {"TOWER_SECRET": "not for the shell"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, bufsize=0)
        self.frames = TowerFrames(KEY)
        self.events: list[TowerEvent] = []
        self.screen = bytearray()

    def send(self, frame: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frame)

    def start(self, lease: int = 20) -> Running:
        self.send(self.frames.start(80, 24, lease))
        self.say(QUIET)
        self.until(b"ready\r\n")
        return self

    def say(self, line: str) -> None:
        self.send(self.frames.data(line.encode() + b"\n"))

    def ask(self, line: str) -> str:
        """What a command prints."""
        self.screen.clear()
        self.say(f"{line}; echo do''ne")
        return self.until(b"done\r\n").decode().removesuffix("done\r\n")

    def read(self) -> bool:
        """Take what is there; False at the end."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert readable, f"silent for {PATIENCE} s; the screen: {bytes(self.screen[-500:])!r}"
        data = os.read(self.process.stdout.fileno(), 256 << 10)
        events = self.frames.feed(data)
        self.events += events
        for event in events:
            if isinstance(event, Data):
                self.screen += event.data
        return bool(data)

    def until(self, mark: bytes) -> bytes:
        while mark not in self.screen:
            assert self.read(), f"ended; the screen: {bytes(self.screen[-500:])!r}"
        return bytes(self.screen[: self.screen.index(mark) + len(mark)])

    def pong(self, nonce: bytes = NONCE) -> Pong:
        """Ping, and wait for the answer."""
        self.send(self.frames.ping(nonce))
        while True:
            for event in self.events:
                if isinstance(event, Pong) and event.nonce == nonce:
                    self.events.remove(event)
                    return event
            assert self.read(), "no answer to a ping"

    def flood(self, frame: Callable[[], bytes]) -> None:
        """Send until nobody takes it any more."""
        until = time.monotonic() + PATIENCE
        with suppress(BrokenPipeError):
            while time.monotonic() < until:
                self.send(frame())
            pytest.fail("it took everything")

    def rest(self) -> list[TowerEvent]:
        """Everything until the end of its stdout."""
        self.events.clear()
        while self.read():
            pass
        return self.events

    def code(self) -> int:
        """How it ended."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


Run = Callable[..., Running]


def supervisor(seconds: int, source: Path = SOURCE) -> list[str]:
    digest = TowerFrames(KEY).start_sha256
    return [sys.executable, "-I", str(source), "--max-seconds", str(seconds), "--start-sha256", digest]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start supervisors, as they are or boxed, and leave none behind."""
    made: list[Running] = []
    (tmp_path / "dev").mkdir()
    (tmp_path / "log").touch()

    def one(seconds: int = 60, *, box: str = "", source: Path = SOURCE) -> Running:
        command = supervisor(seconds, source)
        if box:
            inner = [*(BESIDE if box == "beside" else ()), *command]
            command = [*UNSHARE, "sh", "-c", BOX, "box", str(tmp_path / "dev"), str(tmp_path / "log"), *NO_CAPS, *inner]
        made.append(Running(command))
        return made[-1]

    yield one
    for running in made:
        running.close()


class Alive:
    """The reading end of a FIFO that processes in the shell hold open: it ends when the last of them is dead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def await_one(self) -> None:
        readable, _, _ = select.select([self._fd], [], [], PATIENCE)
        assert readable, "the process never started"
        assert os.read(self._fd, 1) in {b"+", b"/"}

    def await_none(self) -> None:
        until = time.monotonic() + PATIENCE
        while os.read(self._fd, 4096):
            select.select([self._fd], [], [], until - time.monotonic())
            assert time.monotonic() < until, "something still writes"
        os.close(self._fd)


@pytest.fixture
def alive(tmp_path: Path) -> Alive:
    return Alive(tmp_path / "alive")


def witness(tmp_path: Path) -> dict[str, object]:
    message: dict[str, object] = json.loads((tmp_path / "log").read_text())
    return message
