"""The real supervisor without a cluster: what may come over its stdin, what leaves it, and what its shell is given."""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
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
    TowerFrames,
    Type,
)
from tests.image.running import KEY, NONCE, PATIENCE, QUIET, SOURCE, Run, Running, witness

pytestmark = pytest.mark.slow

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
    ignored = int(running.ask("grep SigIgn /proc/self/status").split()[1], 16)
    assert ignored & ~(0b11 << 31) == 0  # 32 and 33 are libc's own: what our parent did with them nobody can undo
    assert running.ask("grep SigBlk /proc/self/status").split() == ["SigBlk:", "0" * 16]
    assert running.ask("ls /proc/$$/fd").split() == ["0", "1", "2", "255"]
    assert running.ask("ps -o tty= -p $$ | grep -c pts/").strip() == "1"


INTERRUPTED = (
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); print(chr(63) * 3, flush=True); "
    "signal.sigwait({signal.SIGINT}); print(chr(33) * 3, flush=True)"
)


def test_unicode_and_control_c_pass(run: Run) -> None:
    running = run().start()
    assert running.ask("printf '\\xf0\\x9f\\x9b\\xab é\\n'") == "🛫 é\r\n"
    running.say(f"{sys.executable} -c '{INTERRUPTED}'")
    running.until(b"???\r\n")
    running.send(running.frames.data(b"\x03"))
    running.until(b"!!!\r\n")


def test_a_shell_that_gave_its_terminal_away_can_still_be_ended(run: Run) -> None:
    running = run().start()
    running.say("exec sleep 1000 <&- >&- 2>&-")
    for n in range(50):
        running.pong(b"%08d" % n)
    running.send(running.frames.end())
    assert running.code() == 0


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
