"""The person's own terminal: raw while a shell is in it, and as it was whatever ends us (return, error, signal).

Must never: leave a terminal raw, or set O_NONBLOCK on it (the flag would be shared with the shell that started us).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import termios
import tty
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from breakglass.cli.codes import SignalledError
from breakglass.core.terminal import escape_field

READ_BYTES = 16 << 10

_MODE = re.compile(rb"\x1b\[\?([0-9;]{1,64})([hl])")
_MODES = (1, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004)
"""Private modes a program may leave on (xterm control sequences, DECSET): cursor keys, alternate screen, mouse, paste."""


class Modes:
    """Which terminal modes the shell's output has switched on and not off again, so that exactly those are reset at the end."""

    def __init__(self) -> None:
        self._on: set[int] = set()
        self._cursor_hidden = False
        self._tail = b""

    def seen(self, data: bytes) -> None:
        """Look at output as it passes; a sequence split between two pieces is found too."""
        text = self._tail + data if self._tail else data
        for match in _MODE.finditer(text):
            on = match[2] == b"h"
            for mode in (int(word) for word in match[1].split(b";") if word):
                if mode == 25:
                    self._cursor_hidden = not on
                elif mode in _MODES:
                    (self._on.add if on else self._on.discard)(mode)
        cut = text.rfind(b"\x1b", -72)
        self._tail = text[cut:] if cut >= 0 and not _MODE.search(text[cut:]) else b""

    def reset(self) -> bytes:
        """What brings the terminal back; forgets what was on."""
        undo = (
            b"".join(b"\x1b[?%dl" % mode for mode in sorted(self._on))
            + (b"\x1b[?25h" if self._cursor_hidden else b"")
            + b"\x1b[0m"
        )
        self._on.clear()
        self._cursor_hidden = False
        return undo


class Screen:
    """Standard input and output as a shell needs them; works the same on a terminal, a pipe and a file.

    `async with Screen()`: raw inside (when standard input is a terminal), restored outside. One reader, one writer.
    """

    def __init__(self, *, output: int = 1) -> None:
        self.interactive = os.isatty(0)
        self._in, self._out = 0, output
        self._out_is_terminal = os.isatty(output)
        self._saved: list[int | list[bytes | int]] | None = None
        self._modes = Modes()
        self._at_line_start = True
        self._readable = asyncio.Event()
        self.resized: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self.interactive:
            self._saved = termios.tcgetattr(self._in)
            self._raw()
            loop.add_signal_handler(signal.SIGCONT, self._raw)
        loop.add_signal_handler(signal.SIGWINCH, self._size_changed)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGCONT, signal.SIGWINCH):
            loop.remove_signal_handler(number)
        self._stop_reading()
        self.restore()

    def _size_changed(self) -> None:
        self.resized()

    def _raw(self) -> None:
        tty.setraw(self._in, termios.TCSANOW)

    def restore(self) -> None:
        """The terminal as we found it: line discipline, and the modes the shell left on. Harmless to repeat."""
        if self._out_is_terminal:
            with contextlib.suppress(OSError):
                os.write(self._out, self._modes.reset() + (b"" if self._at_line_start else b"\r\n"))
            self._at_line_start = True
        if self._saved is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._in, termios.TCSANOW, self._saved)
            self._saved = None

    def size(self) -> tuple[int, int]:
        """Columns and rows: the terminal's, else COLUMNS and LINES, else 80 × 24."""
        try:
            cols, rows = os.get_terminal_size(self._in if self.interactive else self._out)
        except OSError:
            cols, rows = shutil.get_terminal_size((80, 24))
        return max(1, min(cols or 80, 1000)), max(1, min(rows or 24, 1000))

    async def read(self) -> bytes:
        """The next typed or piped bytes, b"" at the end. Not calling it leaves them where they are."""
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(self._in, self._readable.set)
        except PermissionError:  # a plain file or /dev/null: epoll takes neither, and neither ever blocks
            return os.read(self._in, READ_BYTES)
        try:
            await self._readable.wait()
            self._readable.clear()
            return os.read(self._in, READ_BYTES)
        except OSError:  # EIO: the terminal hung up
            return b""
        finally:
            self._stop_reading()

    def _stop_reading(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            asyncio.get_running_loop().remove_reader(self._in)

    async def write(self, data: bytes) -> None:
        """Shell output, on the screen on return. In a thread: a stopped terminal must not stop our pings."""
        self._modes.seen(data)
        if data:
            self._at_line_start = data.endswith(b"\n")
        await asyncio.to_thread(_write_all, self._out, data)

    async def line(self, text: str) -> None:
        """One `tower:` line on standard error, on a line of its own even in the middle of the shell's output."""
        both = self._out_is_terminal and os.isatty(2)
        begin = "\r\n" if both and not self._at_line_start else ""
        end = "\r\n" if os.isatty(2) else "\n"
        if both:
            self._at_line_start = True
        await asyncio.to_thread(_write_all, 2, f"{begin}tower: {escape_field(text)}{end}".encode())


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def ending_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP cancel the running task, so that every `finally` (the terminal's first) runs before we go."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    got: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        got.append(number)
        if task is not None:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if got:
            raise SignalledError(got[0]) from None
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
