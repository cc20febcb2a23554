"""The real supervisor as a child process: what its stdin, its user and the clock may do to it, without a cluster.

Boxed tests run it in namespaces of its own without capabilities, as the first process there (a debug container without process
access) or not (with process access); the cgroup that a node kills is layer 6's test on the real node.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from breakglass.core.frames import (
    DATA_MAX,
    HEAD,
    Data,
    Exit,
    ExitReason,
    Pong,
    Ready,
    TowerEvent,
    TowerFrames,
    Type,
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


# --- START ------------------------------------------------------------------------------------------------------------


def test_nothing_is_said_before_start_and_ready_comes_first(run: Run) -> None:
    running = run()
    assert running.process.stdout is not None
    running.send(running.frames.start(80, 24, 20) + running.frames.ping(NONCE))
    while not any(isinstance(event, Pong) for event in running.events):
        running.read()
    assert running.events[0] == Ready(version=1)


def test_a_foreign_start_gets_no_shell_and_no_word(run: Run, tmp_path: Path) -> None:
    running = run(box="first")
    running.send(TowerFrames(bytes(32)).start(80, 24, 20) + running.frames.data(b"touch /tmp/here\n"))
    assert running.code() == 65
    assert running.rest() == []
    assert witness(tmp_path)["reason"] == "violation:foreign_start"


@pytest.mark.parametrize(
    "first",
    [
        TowerFrames(KEY).data(b"echo hello\n"),
        HEAD.pack(Type.START, 37) + KEY + bytes(5),
        HEAD.pack(Type.START, 38) + KEY + struct.pack(">HHH", 0, 24, 20),
        HEAD.pack(Type.START, 38) + KEY + struct.pack(">HHH", 80, 24, 0),
        HEAD.pack(Type.START, 38) + KEY + struct.pack(">HHH", 80, 24, 121),
        HEAD.pack(Type.FILE_GET, 0),
        HEAD.pack(Type.DATA_IN, 65537),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["data", "short", "no width", "no lease", "long lease", "reserved", "too long", "http"],
)
def test_what_is_not_a_start_ends_it_without_a_word(run: Run, first: bytes) -> None:
    running = run()
    running.send(first)
    assert running.code() == 65
    assert running.rest() == []


def test_without_a_start_the_kernel_ends_it(run: Run, tmp_path: Path) -> None:
    impatient = tmp_path / "supervisor.py"
    text = SOURCE.read_text()
    assert text.count("NO_START_SECONDS = 120\n") == 1
    impatient.write_text(text.replace("NO_START_SECONDS = 120\n", "NO_START_SECONDS = 1\n"))
    assert run(source=impatient).code() == -signal.SIGKILL


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--max-seconds", "60"],
        ["--max-seconds", "0", "--start-sha256", "0" * 64],
        ["--max-seconds", "3661", "--start-sha256", "0" * 64],
        ["--max-seconds", "-1", "--start-sha256", "0" * 64],
        ["--max-seconds", "6０", "--start-sha256", "0" * 64],
        ["--max-seconds", "60", "--start-sha256", "0" * 63],
        ["--max-seconds", "60", "--start-sha256", "A" * 64],
        ["--max-seconds", "60", "--start-sha256", "0" * 64, "--debug"],
        ["--start-sha256", "0" * 64, "--max-seconds", "60"],
    ],
    ids=str,
)
def test_other_arguments_than_the_admitted_ones_start_nothing(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(SOURCE), *arguments], input=b"", capture_output=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (64, b"", b"")


# --- frames -----------------------------------------------------------------------------------------------------------


def replayed(running: Running, frame: bytes) -> bytes:
    return frame + frame


def dropped(running: Running, frame: bytes) -> bytes:
    return running.frames.data(b"echo tw''o\n")


def reordered(running: Running, frame: bytes) -> bytes:
    return running.frames.data(b"echo tw''o\n") + frame


def injected(running: Running, frame: bytes) -> bytes:
    return TowerFrames(bytes(32)).data(b"echo tw''o\n")


def flipped(running: Running, frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


@pytest.mark.parametrize("attack", [replayed, dropped, reordered, injected, flipped])
def test_a_tampered_frame_ends_it_and_no_byte_leaves_after_it(run: Run, tmp_path: Path, attack: Callable[..., bytes]) -> None:
    running = run(box="first").start()
    running.pong()
    frame = running.frames.data(b"echo o''ne\n")
    running.send(attack(running, frame))
    assert running.code() == 65
    assert not any(isinstance(event, Exit) for event in running.rest())
    assert b"two" not in running.screen
    assert witness(tmp_path)["reason"] == "violation:bad_seal"


def test_a_second_start_ends_it(run: Run) -> None:
    running = run().start()
    running.send(running.frames.start(80, 24, 20))
    assert running.code() == 65


def test_a_sealed_frame_of_another_form_ends_it(run: Run) -> None:
    running = run().start()
    running.send(running.frames._in.seal(Type.RESIZE, bytes(4)))
    assert running.code() == 65


def test_only_ciphertext_leaves(run: Run) -> None:
    """What a second attacher and the node's log see of a shell."""
    running = run()
    assert running.process.stdout is not None
    running.send(running.frames.start(80, 24, 20) + running.frames.data(b"echo tower-clear-text; exit\n"))
    seen = running.process.stdout.read()
    assert b"tower-clear-text" not in seen
    assert b"tower-clear-text\r\n" in b"".join(e.data for e in running.frames.feed(seen) if isinstance(e, Data))


# --- the shell --------------------------------------------------------------------------------------------------------


def test_exit_brings_the_status_and_digests_that_both_witnesses_share(run: Run, tmp_path: Path) -> None:
    running = run(box="first").start()
    running.say("exit 7")
    said = running.rest()[-1]
    assert isinstance(said, Exit)
    typed = QUIET.encode() + b"\nexit 7\n"
    assert (said.reason, said.status, said.signal) == (ExitReason.SHELL_EXITED, 7, 0)
    assert (said.in_bytes, said.in_sha256) == (len(typed), hashlib.sha256(typed).digest())
    assert (said.out_bytes, said.out_sha256) == (len(running.screen), hashlib.sha256(running.screen).digest())
    assert running.code() == 7
    assert witness(tmp_path) == {
        "in_bytes": said.in_bytes,
        "in_sha256": said.in_sha256.hex(),
        "out_bytes": said.out_bytes,
        "out_sha256": said.out_sha256.hex(),
        "reason": "shell_exited",
        "exit": 7,
        "final": True,
    }


def test_a_shell_that_kills_itself_is_told_apart(run: Run) -> None:
    running = run().start()
    running.say("kill -9 $$")
    said = running.rest()[-1]
    assert isinstance(said, Exit)
    assert (said.status, said.signal, running.code()) == (137, 9, 137)


def test_a_job_that_keeps_the_terminal_open_does_not_keep_it_alive(run: Run) -> None:
    running = run().start()
    running.say("(trap '' HUP; while :; do echo still; done) & disown; exit 3")
    said = running.rest()[-1]
    assert isinstance(said, Exit)
    assert (said.status, running.code()) == (3, 3)


def test_end_says_goodbye(run: Run) -> None:
    running = run().start()
    running.say("yes")
    running.until(b"y\r\ny\r\n")
    running.send(running.frames.end())
    said = running.rest()[-1]
    assert isinstance(said, Exit)
    assert (said.reason, said.status, running.code()) == (ExitReason.ENDED, 0, 0)
    assert said.out_bytes == len(running.screen)


def test_the_node_stopping_the_pod_is_told_apart(run: Run) -> None:
    running = run().start()
    running.process.terminate()
    said = running.rest()[-1]
    assert isinstance(said, Exit)
    assert (said.reason, running.code()) == (ExitReason.STOPPED, 0)


def test_a_resize_reaches_the_program(run: Run) -> None:
    running = run().start()
    assert running.ask("stty size") == "24 80\r\n"
    running.say("trap 'echo win''ch' WINCH; echo s''et")
    running.until(b"set\r\n")
    running.send(running.frames.resize(133, 50))
    running.say("")
    running.until(b"winch\r\n")
    assert running.ask("stty size") == "50 133\r\n"


def test_the_shell_gets_nothing_of_the_supervisors(run: Run) -> None:
    running = run().start()
    names = {line.split("=")[0] for line in running.ask("env").splitlines()}
    assert names <= {"PATH", "HOME", "TMPDIR", "TERM", "LANG", "HISTFILE", "LESSHISTFILE", "PS1", "PWD", "OLDPWD", "SHLVL", "_"}
    assert running.ask("grep SigIgn /proc/self/status").split() == ["SigIgn:", "0" * 16]
    assert running.ask("grep SigBlk /proc/self/status").split() == ["SigBlk:", "0" * 16]
    assert running.ask("ls /proc/$$/fd").split() == ["0", "1", "2", "255"]
    assert running.ask("ps -o tty= -p $$ | grep -c pts/").strip() == "1"


def test_unicode_and_control_c_pass(run: Run) -> None:
    running = run().start()
    assert running.ask("printf '\\xf0\\x9f\\x9b\\xab é\\n'") == "🛫 é\r\n"
    running.say("echo sle''ep; sleep 1000")
    running.until(b"sleep\r\n")
    running.send(running.frames.data(b"\x03"))
    assert running.ask("echo $?").strip() == "130"


def test_a_shell_that_gave_its_terminal_away_can_still_be_ended(run: Run) -> None:
    running = run().start()
    running.say("exec sleep 1000 <&- >&- 2>&-")
    for n in range(50):
        running.pong(b"%08d" % n)
    running.send(running.frames.end())
    assert running.code() == 0


# --- ends that nothing in the container can prevent -------------------------------------------------------------------


def test_the_end_of_stdin_is_the_end(run: Run, tmp_path: Path, alive: Alive) -> None:
    running = run(box="first").start()
    running.say(f"(setsid sh -c 'trap \"\" HUP TERM; printf + >&3; while :; do sleep 1; done' 3>{alive.path} &)")
    alive.await_one()
    assert running.process.stdin is not None
    running.process.stdin.close()
    assert running.code() == 0
    alive.await_none()
    assert (witness(tmp_path)["reason"], witness(tmp_path)["final"]) == ("eof", True)


DAEMON = (
    "import os, signal, sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
    "os.write(os.open(sys.argv[1], os.O_WRONLY), sys.argv[1][:1].encode()); signal.pause()"
)


@pytest.mark.parametrize("how", ["end", "exit", "lease", "deadline", "violation"])
def test_setsid_loops_and_daemons_die_with_it(run: Run, alive: Alive, how: str) -> None:
    """As the first process of its PID namespace: without process access."""
    running = run(3 if how == "deadline" else 60, box="first").start(3 if how == "lease" else 20)
    running.say("kill -STOP 1; kill -KILL 1; kill -TSTP 1; kill -HUP 1")
    running.say(f"(setsid sh -c 'trap \"\" HUP TERM; printf + >&3; while :; do sleep 1; done' 3>{alive.path} &)")
    running.say(f"{sys.executable} -c '{DAEMON}' {alive.path}")
    alive.await_one()
    alive.await_one()
    if how == "end":
        running.send(running.frames.end())
    elif how == "exit":
        running.say("exit")
    elif how == "violation":
        running.send(b"\xff" * 5)
    running.rest()
    alive.await_none()
    assert running.code() == {"end": 0, "exit": 0, "violation": 65}.get(how, signal.SIGALRM)


@pytest.mark.parametrize(
    ("timer", "limit"),
    [("deadline", ""), ("deadline", "sigpending")]
    + [("lease", limit) for limit in ("", "sigpending", "nofile", "fsize", "nproc", "memlock", "as", "data", "stack")],
)
def test_a_frozen_supervisor_is_killed_by_the_kernel(run: Run, timer: str, limit: str) -> None:
    """With process access the user may stop it and take its limits away. It dies on time."""
    running = run(3 if timer == "deadline" else 3600).start(120 if timer == "deadline" else 1)
    prlimit = f"prlimit --pid $PPID --{limit}=0:0; " if limit else ""
    running.say(f"{prlimit}kill -STOP $PPID")
    assert running.code() in {-signal.SIGKILL, *([] if limit in {"", "sigpending"} else [70])}


def test_a_cpu_limit_ends_it_early_at_worst(run: Run) -> None:
    running = run(3).start(120)
    running.say("prlimit --pid $PPID --cpu=1:1; yes")
    running.rest()
    assert running.code() in {-signal.SIGXCPU, -signal.SIGKILL}


@pytest.mark.parametrize(
    "number", ["KILL", "TERM", "INT", "HUP", "QUIT", "USR1", "ALRM", "SEGV", "PIPE", "CHLD", "CONT", "WINCH"]
)
def test_no_signal_of_the_user_makes_it_live_longer_or_talk_in_clear(run: Run, number: str) -> None:
    running = run().start()
    running.say(f"kill -{number} $PPID; echo st''ill")
    with suppress(BrokenPipeError):
        running.send(running.frames.ping(NONCE))
        running.send(running.frames.end())
    for event in running.rest():
        assert isinstance(event, Data | Pong | Exit)
    assert running.code() in {-getattr(signal, f"SIG{number}"), 0, 70}


def test_a_lease_lives_as_long_as_its_pings(run: Run) -> None:
    running = run().start(1)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        running.pong()
        select.select([], [], [], 0.2)
    assert running.ask("echo alive") == "alive\r\n"
    assert running.code() == -signal.SIGKILL


def test_a_forged_ping_does_not_renew_the_lease(run: Run) -> None:
    running = run().start(20)
    running.send(TowerFrames(bytes(32)).ping(NONCE))
    assert running.code() == 65


# --- floods -----------------------------------------------------------------------------------------------------------


def test_a_shell_that_does_not_read_holds_up_no_ping(run: Run) -> None:
    running = run().start()
    running.say("stty raw -echo; echo sle''ep; sleep 1000")
    running.until(b"sleep")
    for _ in range(4):
        running.send(running.frames.data(bytes(DATA_MAX)))
    taken = running.pong().taken
    assert 0 < taken < 4 * DATA_MAX
    assert running.pong(b"87654321").taken < 4 * DATA_MAX


def test_more_input_than_a_window_is_a_violation(run: Run, tmp_path: Path) -> None:
    running = run(box="first").start()
    running.say("stty raw -echo; echo sle''ep; sleep 1000")
    running.until(b"sleep")
    running.flood(lambda: running.frames.data(bytes(DATA_MAX)))
    assert running.code() == 65
    assert witness(tmp_path)["reason"] == "violation:flood"


def test_output_nobody_takes_stops_the_program_and_no_ping(run: Run) -> None:
    running = run().start()
    assert running.process.stdout is not None
    talker = running.ask("echo $$").strip()
    running.say("exec yes")
    written, before = 0, -1
    while written == 0 or written != before:
        select.select([], [], [], 0.3)
        before, written = written, int(Path(f"/proc/{talker}/io").read_text().split("wchar: ")[1].split()[0])
    running.screen.clear()
    running.pong()
    pipe = fcntl.fcntl(running.process.stdout, fcntl.F_GETPIPE_SZ)
    assert len(running.screen) <= pipe + (256 << 10) + 3 * (64 << 10)


def test_pings_nobody_reads_the_answers_of_are_a_violation(run: Run) -> None:
    running = run().start()
    running.flood(lambda: running.frames.ping(NONCE))
    assert running.code() == 65


def test_when_nobody_takes_output_any_more_it_ends(run: Run) -> None:
    running = run().start()
    assert running.process.stdout is not None
    running.process.stdout.close()
    running.say("echo anybody")
    assert running.code() == 70


def test_a_random_stream_never_gets_a_word(run: Run) -> None:
    running = run().start()
    running.pong()
    running.flood(lambda: os.urandom(4096))
    assert running.code() == 65
    assert all(isinstance(event, Data) for event in running.rest())


# --- the same uid -----------------------------------------------------------------------------------------------------

PTRACE = (
    "import ctypes, os, sys; l = ctypes.CDLL(None, use_errno=True); "
    "print(l.ptrace(int(sys.argv[1]), int(sys.argv[2]), 0, 0), ctypes.get_errno())"
)


@pytest.mark.parametrize("box", ["first", "beside"])
def test_its_user_cannot_look_into_it_or_take_it_over(run: Run, box: str) -> None:
    running = run(box=box).start()
    assert running.ask("id -u; grep CapEff /proc/self/status").split() == ["0", "CapEff:", "0" * 16]
    for file in ("mem", "environ", "maps", "fd/0", "fd/1", "cwd/x", "root/x", "stack", "auxv"):
        assert "ermission denied" in running.ask(f"head -c 1 /proc/$PPID/{file}"), file
    for what in ("16", "0x4206"):  # PTRACE_ATTACH, PTRACE_SEIZE
        assert running.ask(f"{sys.executable} -c '{PTRACE}' {int(what, 0)} $PPID") == "-1 1\r\n"


def test_its_user_can_still_debug_their_own_processes(run: Run) -> None:
    running = run(box="first").start()
    running.say("sleep 1000 &")
    assert running.ask("head -c 6 /proc/$!/environ | tr '\\0' ' '; echo") != ""
    assert running.ask(f"{sys.executable} -c '{PTRACE}' 16 $!").startswith("0 0\r\n")


def test_a_killed_supervisor_leaves_the_last_known_digests(run: Run, tmp_path: Path) -> None:
    running = run(box="beside").start()
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "log").read_text() or witness(tmp_path)["in_bytes"] != len(QUIET) + 1:
        assert time.monotonic() < until
        running.pong()
        select.select([], [], [], 0.05)
    running.say("kill -9 $PPID")
    assert running.code() == 137
    assert (witness(tmp_path)["final"], witness(tmp_path)["reason"]) == (False, "running")


def test_a_spoiled_termination_message_is_overwritten_at_the_end(run: Run, tmp_path: Path) -> None:
    running = run(box="first").start()
    assert running.ask("head -c 100000 /dev/zero > /dev/termination-log") == ""
    running.send(running.frames.end())
    assert running.code() == 0
    assert witness(tmp_path)["final"] is True


def test_its_traceback_and_errors_go_nowhere(tmp_path: Path) -> None:
    broken = tmp_path / "supervisor.py"
    fault = "print('not for the log', file=sys.stderr); raise KeyboardInterrupt"
    broken.write_text(SOURCE.read_text().replace("supervisor.run()  # (4)", fault))
    done = subprocess.run(supervisor(60, broken), input=b"", capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (70, b"", b"")
