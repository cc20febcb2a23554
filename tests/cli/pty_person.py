"""A person at a terminal: the real CLI in a child process whose terminal is a pty this test holds the other end of."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from breakglass.cli.main import run

CLI = [sys.executable, "-c", "from breakglass.cli.main import main; main()"]


def environment(url: str, name: str, home: Path) -> dict[str, str]:
    """What the CLI is told: no more than a person's shell would hold."""
    kept = {key: value for key, value in os.environ.items() if key in {"PATH", "PYTHONPATH", "LANG", "COVERAGE_PROCESS_START"}}
    return {
        **kept,
        "HOME": str(home),
        "TERM": "xterm-256color",
        "BREAKGLASS_URL": url,
        "BREAKGLASS_TOKEN": f"token-{name}",
        "TZ": "UTC",
    }


class Person:
    """`screen` is everything the terminal was given so far."""

    def __init__(self, master: int, slave: int, process: asyncio.subprocess.Process) -> None:
        self._master, self._slave, self.process = master, slave, process
        self.screen = b""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self.screen += os.read(self._master, 65_536)
        self._more.set()

    async def sees(self, pattern: bytes | str, *, after: int = 0, seconds: float = 15.0) -> re.Match[bytes]:
        """Wait until the screen has it; the failure shows the whole screen."""
        wanted = re.compile(pattern.encode() if isinstance(pattern, str) else pattern, re.DOTALL)
        try:
            async with asyncio.timeout(seconds):
                while (found := wanted.search(self.screen, after)) is None:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"{pattern!r} never came; the screen:\n{self.screen.decode(errors='replace')}") from None
        return found

    def types(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resizes(self, cols: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        os.kill(self.process.pid, signal.SIGWINCH)

    @property
    def raw(self) -> bool:
        """Whether the terminal is in raw mode now (no line editing, no echo, no signals)."""
        local = termios.tcgetattr(self._slave)[3]
        return not local & (termios.ICANON | termios.ECHO | termios.ISIG)

    async def leaves(self, seconds: float = 15.0) -> int:
        """The exit code, once the process is gone and its last words are read."""
        try:
            async with asyncio.timeout(seconds):
                code = await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"still running; the screen:\n{self.screen.decode(errors='replace')}") from None
        await asyncio.sleep(0)
        self._read_rest()
        assert b"Traceback" not in self.screen, self.screen.decode(errors="replace")
        assert b"was destroyed" not in self.screen, self.screen.decode(errors="replace")
        return code

    def _read_rest(self) -> None:
        os.set_blocking(self._master, False)
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self._master, 65_536):
                self.screen += data


@contextlib.asynccontextmanager
async def at_terminal(arguments: list[str], env: dict[str, str], *, cols: int = 80, rows: int = 24) -> AsyncIterator[Person]:
    """The CLI with a terminal on all three of its standard streams, killed at the end whatever happened."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *CLI,
        *arguments,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # its controlling terminal: Ctrl-C must become SIGINT
    )
    person = Person(master, slave, process)
    try:
        yield person
    finally:
        asyncio.get_running_loop().remove_reader(master)
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)
        os.close(slave)


async def without_terminal(
    arguments: list[str], env: dict[str, str], piped: bytes = b"", seconds: float = 30.0
) -> tuple[int, bytes, bytes]:
    """Exit code, standard output and standard error of the CLI in a pipe."""
    process = await asyncio.create_subprocess_exec(
        *CLI, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate(piped)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out, err


def here(arguments: list[str], env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The CLI in this process, for commands that need neither a terminal nor a running loop; `capfd` has what it said."""
    for name in ("BREAKGLASS_URL", "BREAKGLASS_TOKEN", "HOME"):
        monkeypatch.setenv(name, env[name]) if name in env else monkeypatch.delenv(name, raising=False)
    return run(arguments)
