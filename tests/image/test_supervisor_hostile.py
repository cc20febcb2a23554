"""The real supervisor without a cluster: what its user, who has its uid, and the clock may do to it."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from breakglass.core.frames import (
    Data,
    Exit,
    Pong,
    TowerFrames,
)
from tests.image.running import NONCE, PATIENCE, QUIET, SOURCE, Alive, Run, supervisor, witness

pytestmark = pytest.mark.slow

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
