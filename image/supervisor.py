"""Layer 6 inside the pod: one shell, for whoever holds the START key, for so long and no longer, then all of it dies.

The debug container's command: `python3 -I /usr/local/lib/tower/supervisor.py --max-seconds N --start-sha256 HEX` (Debian 12,
python3-cryptography 38). One file, nothing of Tower in it; wire: `spec/frames.md`, threats: `image/README.md`. Must never:
write a clear byte after READY, go on after a frame it cannot open, or trust the shell's user, who runs under the same uid.
"""

import ctypes
import errno
import fcntl
import hashlib
import hmac
import json
import os
import re
import select
import signal
import struct
import sys
import termios
import time
from contextlib import suppress
from typing import Any

VERSION = 1
MAX_SECONDS = 3660
NO_START_SECONDS = 120
LEASE_MAX = 120
TAG = 16
PAYLOAD_MAX = 64 << 10
DATA_MAX = PAYLOAD_MAX - TAG
OUT_HIGH = 256 << 10  # sealed output waiting for stdout above which the terminal is not read
OUT_MAX = 512 << 10  # and with PONGs: more means that somebody floods us with PINGs
IN_MAX = 1 << 20  # input waiting for a shell that does not read; Tower sends no more than 256 KiB ahead
FLUSH_SECONDS = 0.5
REFRESH_SECONDS = 1.0
TERMINATION_LOG = "/dev/termination-log"
BASH = "/bin/bash"

START, DATA_IN, RESIZE, PING, END = 0x01, 0x02, 0x03, 0x04, 0x05
READY, DATA_OUT, PONG, EXIT, NOTE = 0x81, 0x82, 0x84, 0x85, 0x86
HEAD, START_FORM, SIZE_FORM = struct.Struct(">BI"), struct.Struct(">32sHHH"), struct.Struct(">HH")
EXIT_FORM = struct.Struct(">BBBQ32sQ32s")
REASONS = {"shell_exited": 1, "ended": 2, "eof": 3, "stopped": 4}
BAD_ARGUMENTS, VIOLATION, BROKEN = 64, 65, 70  # our own exit codes (sysexits.h); else 0, or the shell's

libc = ctypes.CDLL(None, use_errno=True)


class Stop(Exception):  # noqa: N818 - an end, not an error
    """The end, with its reason: one of `REASONS`."""


class Violation(Exception):  # noqa: N818 - what spec/frames.md calls it
    """Stdin is not Tower's. Nothing answers it, and no byte leaves after it."""


def check(result: int) -> None:
    """Raise what a C function left in errno."""
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def harden() -> None:
    """Close the ways that a process of our own uid has into us; stderr goes nowhere, for the node keeps what is written there."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)
    check(
        libc.prctl(4, 0, 0, 0, 0)
    )  # PR_SET_DUMPABLE 0: ptrace and /proc/<us>/{mem,fd,environ,…} are denied (ptrace(2), proc(5))
    check(libc.prctl(36, 1, 0, 0, 0))  # PR_SET_CHILD_SUBREAPER: daemons of the shell become our children, not the app's


class Sigevent(ctypes.Structure):
    """Struct sigevent (sigevent(3type)), 64 bytes."""

    _fields_ = (("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("pad", ctypes.c_char * 48))


class KernelTimer:
    """Kills this process from the kernel, also when it is stopped (SIGSTOP) or its interpreter hangs. A fork does not inherit it.

    The kernel lets no SIGKILL reach the first process of a PID namespace from within, timers included. That is us when the shell
    has no process access. Nobody inside can stop such a process, so a handler does: `_exit` itself, run without the interpreter.
    """

    def __init__(self) -> None:
        self._id = ctypes.c_void_p()
        first = os.getpid() == 1
        if first:
            libc.signal(signal.SIGALRM, libc._exit)  # noqa: SLF001 - its name
        event = Sigevent(None, signal.SIGALRM if first else signal.SIGKILL, 0)
        check(libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._id)))

    def arm(self, seconds: int) -> None:
        """Strike `seconds` from now; a later call moves it."""
        value = (ctypes.c_long * 4)(0, 0, seconds, 0)  # struct itimerspec: no interval, one value
        check(libc.timer_settime(self._id, 0, ctypes.byref(value), None))


class Seal:
    """One direction: a key of its own, and a counter that makes a dropped, repeated or reordered frame fail to open."""

    def __init__(self, key: bytes, info: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        derived = hmac.digest(hmac.digest(bytes(32), key, "sha256"), info + b"\x01", "sha256")  # HKDF-SHA256, no salt (RFC 5869)
        self._aead, self._counter = ChaCha20Poly1305(derived), 0

    def _nonce(self) -> bytes:
        self._counter += 1
        return (self._counter - 1).to_bytes(12, "big")

    def seal(self, kind: int, plain: bytes) -> tuple[bytes, bytes]:
        """Head and sealed payload of the next frame."""
        head = HEAD.pack(kind, len(plain) + TAG)
        return head, self._aead.encrypt(self._nonce(), plain, head)

    def open(self, head: bytes, sealed: bytes) -> bytes:
        """The payload of the next frame, and of no other."""
        try:
            return self._aead.decrypt(self._nonce(), sealed, head)
        except Exception:  # noqa: BLE001 - InvalidTag, or what else a library makes of bad bytes
            raise Violation("bad_seal") from None


class Witness:
    """What passed, hashed: the termination message, rewritten about once a second so that SIGKILL leaves the last known."""

    def __init__(self) -> None:
        self._sums = {"in": hashlib.sha256(), "out": hashlib.sha256()}
        self._sizes = {"in": 0, "out": 0}
        self._written, self._at, self._log = 0, 0.0, -1
        with suppress(OSError):
            self._log = os.open(TERMINATION_LOG, os.O_WRONLY)

    @property
    def taken(self) -> int:
        """Input bytes the terminal has accepted."""
        return self._sizes["in"]

    def saw(self, way: str, data: bytes) -> None:
        """Count bytes that passed `in` or `out`."""
        self._sums[way].update(data)
        self._sizes[way] += len(data)

    def refresh(self) -> None:
        """Leave the digests so far, when there are new ones and a second is over."""
        if self._written != sum(self._sizes.values()) and time.monotonic() - self._at >= REFRESH_SECONDS:
            self.write("running", None)

    def write(self, reason: str, status: int | None) -> None:
        """Best effort: the shell's user can fill the file or write another. A witness, not a proof."""
        self._written, self._at = sum(self._sizes.values()), time.monotonic()
        message: dict[str, Any] = {f"{way}_bytes": size for way, size in self._sizes.items()}
        message |= {f"{way}_sha256": digest.hexdigest() for way, digest in self._sums.items()}
        message |= {"reason": reason, "exit": status, "final": reason != "running"}
        with suppress(OSError):
            os.ftruncate(self._log, 0)
            os.pwrite(self._log, json.dumps(message, separators=(",", ":")).encode(), 0)

    def exit(self, reason: str, status: int, number: int) -> bytes:
        """The payload of EXIT."""
        sizes, sums = self._sizes, self._sums
        digests = sizes["in"], sums["in"].digest(), sizes["out"], sums["out"].digest()
        return EXIT_FORM.pack(REASONS[reason], status, number, *digests)


def spawn(cols: int, rows: int) -> tuple[int, int]:
    """Start the shell in a session of its own on a terminal of its own; returns its pid and our side of the terminal.

    It gets nothing of ours or of the container's environment; HOME is where nobody can write, so no rc file is anybody's.
    """
    command = ["bash", "--noprofile", "--norc", "-i"] if os.access(BASH, os.X_OK) else ["sh", "-i"]
    writable = next((path for path in ("/tmp", "/dev/shm") if os.access(path, os.W_OK)), "/")  # noqa: S108 - the container's
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "TMPDIR": writable}  # noqa: S108
    env |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", "HISTFILE": "/dev/null", "LESSHISTFILE": "-", "PS1": "\\h:\\w\\$ "}
    terminal, other = os.openpty()
    resize(terminal, cols, rows)
    pid = os.fork()
    if pid == 0:
        try:
            os.login_tty(other)
            os.closerange(3, 1 << 16)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            os.chdir(writable)
            os.execve("/bin/" + command[0], command, env)  # noqa: S606 - no shell before the shell
        finally:
            os._exit(127)
    os.close(other)
    os.set_blocking(terminal, False)
    return pid, terminal


def resize(terminal: int, cols: int, rows: int) -> None:
    """The kernel tells the foreground program (SIGWINCH) whenever the size is another one."""
    with suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def read(fd: int, most: int) -> bytes | None:
    """Bytes, b"" at the end, None when there is nothing now. A terminal whose other side is closed (EIO) is at its end."""
    try:
        return os.read(fd, most)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


class Supervisor:
    """The loop. Stdin is always read, for a PING must get through; the terminal only while its output finds a way out."""

    def __init__(self, start_sha256: str, lease: KernelTimer, signals: int) -> None:
        self.witness = Witness()
        self._start_sha256, self._lease, self._signals = start_sha256, lease, signals
        self._lease_seconds = 0
        self._frames = bytearray()  # from stdin, not yet a whole frame
        self._input = bytearray()  # for the shell, not yet taken
        self._out: list[bytes] = []  # for stdout,
        self._waiting = 0  # and how many bytes
        self._seals: tuple[Seal, Seal] | None = None  # in, out
        self._pid = self._pidfd = self._terminal = -1
        self._hung_up = False

    def run(self) -> None:
        """Until `Stop` or `Violation`. Nothing here waits but the select."""
        while True:
            reads, writes = [0, self._signals], [1] if self._waiting else []
            if self._seals:
                reads.append(self._pidfd)
                reads += [self._terminal] if self._waiting <= OUT_HIGH and not self._hung_up else []
                writes += [self._terminal] if self._input else []
            readable, writable, _ = select.select(reads, writes, [], REFRESH_SECONDS)
            if 0 in readable:
                self._receive()
            if self._terminal in writable:
                self._give()
            if self._terminal in readable:
                self._take()
            if self._waiting:
                self._flush()
            if self._signals in readable:
                raise Stop("stopped")
            if self._pidfd in readable:
                raise Stop("shell_exited")
            self.witness.refresh()
            self._reap()

    def _receive(self) -> None:
        data = read(0, 256 << 10)
        if data == b"":
            raise Stop("eof")
        self._frames += data or b""
        at = 0
        while len(self._frames) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(self._frames, at)
            if length > PAYLOAD_MAX or kind not in (START, DATA_IN, RESIZE, PING, END):
                raise Violation("bad_head")
            if len(self._frames) - at < HEAD.size + length:
                break
            body = at + HEAD.size
            self._frame(kind, bytes(self._frames[at:body]), bytes(self._frames[body : body + length]))
            at = body + length
        del self._frames[:at]

    def _frame(self, kind: int, head: bytes, payload: bytes) -> None:
        """1. START once, first, by the key's holder. 2. All else opens under the next counter. 3. Exact length. 4. It counts."""
        if (kind == START) is (self._seals is not None):
            raise Violation("out_of_order")
        if self._seals is None:
            return self._start(payload)
        plain = self._seals[0].open(head, payload)
        if kind == DATA_IN and plain:
            self._input += plain
            self._give()
            if len(self._input) > IN_MAX:
                raise Violation("flood")
        elif kind == RESIZE and len(plain) == SIZE_FORM.size and all(SIZE_FORM.unpack(plain)):
            resize(self._terminal, *SIZE_FORM.unpack(plain))
        elif kind == PING and len(plain) == 8:
            self._lease.arm(self._lease_seconds)
            self._send(PONG, plain + self.witness.taken.to_bytes(8, "big"))
            if self._waiting > OUT_MAX:
                raise Violation("flood")
        elif kind == END and not plain:
            raise Stop("ended")
        else:
            raise Violation("bad_payload")
        return None

    def _start(self, payload: bytes) -> None:
        if len(payload) != START_FORM.size:
            raise Violation("bad_payload")
        key, cols, rows, lease = START_FORM.unpack(payload)
        if not hmac.compare_digest(hashlib.sha256(key).hexdigest(), self._start_sha256):
            raise Violation("foreign_start")
        if not cols or not rows or not 1 <= lease <= LEASE_MAX:
            raise Violation("bad_payload")
        self._lease_seconds = lease
        self._lease.arm(lease)
        self._queue(HEAD.pack(READY, 1), bytes([VERSION]))
        self._seals = Seal(key, b"tower frames v1 in"), Seal(key, b"tower frames v1 out")
        self._pid, self._terminal = spawn(cols, rows)
        self._pidfd = os.pidfd_open(self._pid)
        if not os.access(BASH, os.X_OK):
            self._send(NOTE, b"this image has no bash: the shell is sh")

    def _give(self) -> None:
        """Give the terminal what it takes now; the rest waits and holds up nothing else."""
        try:
            taken = os.write(self._terminal, self._input[: 16 << 10])
        except BlockingIOError:
            return
        except OSError:  # nobody is there to read it; the shell's exit comes next
            self._input.clear()
            return
        self.witness.saw("in", bytes(self._input[:taken]))
        del self._input[:taken]

    def _take(self) -> bool:
        """Seal what the terminal has now, at most one frame; whether there was anything."""
        parts: list[bytes] = []
        room = DATA_MAX
        while room and (part := read(self._terminal, room)) is not None:
            self._hung_up = not part
            if self._hung_up:
                break
            parts.append(part)
            room -= len(part)
        if parts:
            self.witness.saw("out", data := b"".join(parts))
            self._send(DATA_OUT, data)
        return bool(parts)

    def _send(self, kind: int, plain: bytes) -> None:
        if self._seals is not None:
            self._queue(*self._seals[1].seal(kind, plain))

    def _queue(self, *parts: bytes) -> None:
        self._out += parts
        self._waiting += sum(map(len, parts))

    def _flush(self) -> None:
        try:
            written = os.writev(1, self._out[:64])
        except BlockingIOError:
            return
        self._waiting -= written
        done = 0
        while done < len(self._out) and written >= len(self._out[done]):
            written -= len(self._out[done])
            done += 1
        del self._out[:done]
        if written:
            self._out[0] = self._out[0][written:]

    def _reap(self) -> None:
        """Bury the shell's orphans; the shell itself is left for `farewell`, which wants its status."""
        with suppress(ChildProcessError):
            while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and child.si_pid != self._pid:
                os.waitpid(child.si_pid, os.WNOHANG)

    def farewell(self, reason: str) -> int:
        """Say what is left, within half a second: the terminal's last bytes, then EXIT. Returns the exit code."""
        status = number = 0
        if reason == "shell_exited":
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            number = max(0, -code)
            status = 128 + number if number else code
        with suppress(OSError):
            self._last_words(reason, status, number)
        self.witness.write(reason, status if reason == "shell_exited" else None)
        return status

    def _last_words(self, reason: str, status: int, number: int) -> None:
        until = time.monotonic() + FLUSH_SECONDS
        more, said = self._seals is not None, False
        while (more or self._waiting or not said) and (left := until - time.monotonic()) > 0:
            if more and self._waiting <= OUT_HIGH:
                more = self._take() and reason == "shell_exited" and left > FLUSH_SECONDS / 2  # others may never be silent
            elif not more and not said:
                self._send(EXIT, self.witness.exit(reason, status, number))
                said = True
            if self._waiting:
                select.select([], [1], [], left)
                self._flush()


def arguments(argv: list[str]) -> tuple[int, str] | None:
    """`--max-seconds N --start-sha256 HEX`, exactly so; layer 5 admits no other command."""
    match argv:
        case ["--max-seconds", seconds, "--start-sha256", digest] if re.fullmatch(r"[0-9a-f]{64}", digest):
            if re.fullmatch(r"[1-9][0-9]{0,3}", seconds) and int(seconds) <= MAX_SECONDS:
                return int(seconds), digest
    return None


def main() -> int:
    """1. Closed to our own uid. 2. The deadline runs. 3. So does the no-START timer. 4. Only now is a byte read."""
    harden()  # (1)
    parsed = arguments(sys.argv[1:])
    if parsed is None:
        return BAD_ARGUMENTS
    deadline, lease = KernelTimer(), KernelTimer()
    deadline.arm(parsed[0])  # (2)
    lease.arm(NO_START_SECONDS)  # (3)
    Seal(bytes(32), b"")  # load the library while Tower attaches
    signals, wakeup = os.pipe()
    for fd in (0, 1, wakeup):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the kubelet ends the pod: `_signals` becomes readable
    supervisor = Supervisor(parsed[1], lease, signals)
    try:
        supervisor.run()  # (4)
    except Stop as stop:
        return supervisor.farewell(str(stop))
    except Violation as violation:
        supervisor.witness.write(f"violation:{violation}", None)
        return VIOLATION
    except Exception as error:  # noqa: BLE001 - stdout closed, no memory left, …: whatever it is, it is the end
        supervisor.witness.write(f"broken:{type(error).__name__}", None)
    return BROKEN


if __name__ == "__main__":
    code = BROKEN
    try:
        code = main()
    finally:
        os._exit(code)  # at once, whatever is left: the container ends with us
