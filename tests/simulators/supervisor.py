"""A model of `image/supervisor.py` and of the terminal behind it: frames in, frames out, kernel timers, a shell with a script.

It speaks through `core/frames.SupervisorFrames`, so it is wrong wherever the codec is; that the real one speaks the same is shown
on the real node. Nothing here waits: output is pulled by whoever reads the stream, so a reader that stalls stops the shell.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from breakglass.core.frames import (
    DATA_MAX,
    Data,
    End,
    Exit,
    ExitReason,
    FrameViolation,
    Ping,
    Resize,
    Start,
    SupervisorEvent,
    SupervisorFrames,
)

NO_START_SECONDS = 120
KILLED, VIOLATION = 137, 65
"""Exit codes: 128 + SIGKILL from a kernel timer; the supervisor's own for a broken frame stream."""
STDIN_MAX = 64 << 10
"""What the pipe to a supervisor that does not read holds before the writer waits."""
OUT_HIGH = 256 << 10
"""Sealed output that nobody has taken; above it the terminal is not read."""

Reply = bytes | Callable[[], Iterator[bytes]]
"""What a command prints: bytes, or a program that prints as long as somebody reads."""


class SimShell:
    """A terminal with echo, and a shell that knows a table of commands, `exit N`, Ctrl-C and Ctrl-D."""

    PROMPT = b"$ "

    def __init__(self, commands: Mapping[str, Reply], cols: int, rows: int) -> None:
        self.typed = bytearray()
        self.sizes = [(cols, rows)]
        self.status: int | None = None
        self._commands = commands
        self._line = bytearray()
        self._output: deque[bytes | int | Iterator[bytes]] = deque([self.PROMPT])
        """What is still to be printed, and where the shell exits (an int): what is typed meanwhile comes after it."""

    def type(self, data: bytes) -> None:
        """Take keystrokes: echoed at once, run at Enter."""
        self.typed += data
        for key in (data[i : i + 1] for i in range(len(data))):
            if key in {b"\r", b"\n"}:
                self._output.append(b"\r\n")
                self._run(bytes(self._line).decode(errors="replace").strip())
                self._line.clear()
            elif key == b"\x03":
                self._line.clear()
                self._output = deque([b"^C\r\n", self.PROMPT])
            elif key == b"\x04" and not self._line:
                self._output.append(0)
            else:
                self._line += key
                self._output.append(key)

    def print(self, data: bytes) -> None:
        """Print something nobody asked for, as a background job does."""
        self._output.append(data)

    def take(self) -> bytes:
        """Up to one frame of output, b"" when there is none now."""
        taken = bytearray()
        while self._output and len(taken) < DATA_MAX:
            match self._output.popleft():
                case int(status):
                    self.status = status
                    self._output.clear()
                case bytes(piece):
                    taken += piece
                case program:
                    if (printed := next(program, None)) is not None:
                        taken += printed
                        self._output.appendleft(program)
        if rest := bytes(taken[DATA_MAX:]):
            self._output.appendleft(rest)
        return bytes(taken[:DATA_MAX])

    def _run(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        if command == "exit":
            self._output.append(int(argument or 0))
            return
        reply = self._commands.get(line, f"sh: {command}: not found\r\n".encode() if line else b"")
        self._output.append(reply if isinstance(reply, bytes) else reply())
        self._output.append(self.PROMPT)


class SimSupervisor:
    """One debug container's first process. `ended(exit code, termination message)` is called once, `changed` at every step."""

    def __init__(
        self,
        *,
        start_sha256: str,
        max_seconds: int,
        commands: Mapping[str, Reply],
        ended: Callable[[int, str], None],
        changed: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.shell: SimShell | None = None
        self.exit_code: int | None = None
        self.frozen = False
        self.ignores_eof = False
        """A shell with process access can do both of these to the real one (research: SIGSTOP); kernel timers still kill it."""
        self.leases = 0
        self._commands, self._ended, self._changed = commands, ended, changed
        self._frames = SupervisorFrames(start_sha256)
        self._unread, self._ready = bytearray(), bytearray()
        self._in, self._out = hashlib.sha256(), hashlib.sha256()
        self._in_bytes = self._out_bytes = 0
        self._lease_seconds: float = NO_START_SECONDS
        self._deadline = loop.call_later(max_seconds, self.kill)
        self._lease = loop.call_later(NO_START_SECONDS, self.kill)

    @property
    def full(self) -> bool:
        """Whether its stdin takes no more: it is stopped and the pipe is full."""
        return self.frozen and len(self._unread) >= STDIN_MAX and self.exit_code is None

    def feed(self, data: bytes) -> None:
        """Bytes arrive on stdin."""
        self._unread += data
        if self.frozen or self.exit_code is not None:
            return
        data, self._unread = bytes(self._unread), bytearray()
        try:
            for event in self._frames.feed(data):
                if self.exit_code is None:
                    self._take(event)
            self._pump()
        except FrameViolation as violation:
            self._exit(VIOLATION, f"violation:{violation.code.value}", None)
        self._changed()

    def eof(self) -> None:
        """Stdin is closed: `stdinOnce`, and the stream has dropped."""
        if not (self.frozen or self.ignores_eof):
            self._exit(0, "eof", None)

    def terminate(self) -> None:
        """SIGTERM: the kubelet ends the pod."""
        if not self.frozen:
            self._farewell(ExitReason.STOPPED, 0)

    def kill(self) -> None:
        """SIGKILL: deadline, lease or the end of the grace period. Nothing is said."""
        self._exit(KILLED, "running", None)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        self.frozen = False
        self.feed(b"")

    def print(self, data: bytes) -> None:
        """Let the shell print something."""
        if self.shell is not None:
            self.shell.print(data)
            self._pump()
            self._changed()

    def take(self, most: int) -> bytes:
        """Up to `most` bytes of stdout, b"" when there are none now; frames are cut wherever they happen to be cut."""
        taken = bytes(self._ready[:most])
        del self._ready[:most]
        self._pump()
        return taken

    def _take(self, event: SupervisorEvent) -> None:
        match event:
            case Start():
                self.shell = SimShell(self._commands, event.cols, event.rows)
                self._lease_seconds = event.lease_seconds
                self._renew()
                self._ready += self._frames.ready()
            case Data():
                assert self.shell is not None
                self._in.update(event.data)
                self._in_bytes += len(event.data)
                self.shell.type(event.data)
            case Resize():
                assert self.shell is not None
                self.shell.sizes.append((event.cols, event.rows))
            case Ping():
                self._renew()
                self._ready += self._frames.pong(event.nonce, self._in_bytes)
            case End():
                self._farewell(ExitReason.ENDED, 0)

    def _renew(self) -> None:
        self.leases += 1
        self._lease.cancel()
        self._lease = asyncio.get_running_loop().call_later(self._lease_seconds, self.kill)

    def _pump(self) -> None:
        """Read the terminal and seal, as long as somebody takes it."""
        while self.exit_code is None and len(self._ready) < OUT_HIGH and self._pull():
            pass
        if self.shell is not None and self.shell.status is not None:
            self._farewell(ExitReason.SHELL_EXITED, self.shell.status)

    def _pull(self) -> bool:
        """Seal one frame of output, if there is any."""
        if self.shell is None or self.frozen or not (data := self.shell.take()):
            return False
        self._out.update(data)
        self._out_bytes += len(data)
        self._ready += self._frames.data(data)
        return True

    def _farewell(self, reason: ExitReason, status: int) -> None:
        """The terminal's last bytes, then EXIT; what was said before the end is still read after it."""
        if self.exit_code is not None:
            return
        self._pull()
        if self.shell is not None:
            last = Exit(
                reason=reason,
                status=status,
                in_bytes=self._in_bytes,
                in_sha256=self._in.digest(),
                out_bytes=self._out_bytes,
                out_sha256=self._out.digest(),
            )
            self._ready += self._frames.exit(last)
        self._exit(status, reason.name.lower(), status if reason is ExitReason.SHELL_EXITED else None)

    def _exit(self, code: int, reason: str, status: int | None) -> None:
        if self.exit_code is not None:
            return
        self.exit_code = code
        self._deadline.cancel()
        self._lease.cancel()
        message = {
            "in_bytes": self._in_bytes,
            "in_sha256": self._in.hexdigest(),
            "out_bytes": self._out_bytes,
            "out_sha256": self._out.hexdigest(),
            "reason": reason,
            "exit": status,
            "final": reason != "running",
        }
        self._ended(code, json.dumps(message, separators=(",", ":")))
        self._changed()
