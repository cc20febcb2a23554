"""What can go wrong around a live shell, on a real cluster: it ends closed, in words, and its record holds all that was shown."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
import yaml
from lightkube.resources.core_v1 import Pod
from lightkube.resources.rbac_authorization_v1 import RoleBinding

from breakglass.core.grant import PREFIX
from lab.api import Cluster
from lab.site import Site
from tests.standing import NAMESPACE, Seat, Standing, standing_on, until

pytestmark = pytest.mark.lab

PROMPT = r"[$#] $"
LEASE_SECONDS = 25.0
"""A frozen supervisor's shell is dead by then: its lease is 20 s, and the kernel's timer needs nobody's help."""


@pytest.fixture(scope="module")
def standing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """One site and its Tower for all of them."""
    with standing_on(cluster, tmp_path_factory.mktemp("endings") / "site") as standing:
        yield standing


@pytest.fixture(autouse=True)
def tidy(standing: Standing) -> Iterator[None]:
    """No open session is left to the next test."""
    yield
    if not standing.site.answers():
        standing.site.kill()
        standing.site.start()
    standing.end_all()


def is_sealed(standing: Standing, sid: str, *seats: Seat, seconds: float = 60) -> dict[str, Any]:
    """The session is sealed, nothing is left, the record holds, and everything the seats were shown is in it, in order."""
    session = standing.reaches(sid, "sealed", seconds=seconds)
    standing.is_clean(sid)
    standing.verified(sid)
    for seat in seats:
        seat.leaves()
    assert seats
    shown = b"".join(bytes(seat.saw) for seat in seats)
    assert shown
    assert standing.recorded(sid).startswith(shown)
    return session


def test_a_grant_deleted_behind_towers_back_ends_the_session_in_words(standing: Standing) -> None:
    sid, seat = standing.opened(process_access=False)
    seat.does("echo $((6 * 7))", sees=b"42")
    standing.admin.delete(RoleBinding, PREFIX + sid, namespace=NAMESPACE)
    over = seat.is_over(20)
    assert (over["reason"], over["sentence"]) == ("grant_gone", "The grant was deleted in the cluster.")
    assert is_sealed(standing, sid, seat)["ended"]["reason"] == "grant_gone"


def test_a_deleted_pod_costs_the_shell_and_the_cli_opens_the_next_one_in_another_pod(standing: Standing) -> None:
    sid = standing.approved(process_access=False)
    people = os.environ | {"BREAKGLASS_URL": standing.site.url, "BREAKGLASS_TOKEN": standing.site.token("ana")}
    command = ["-m", "breakglass.cli", "shell", "--resume", sid]
    terminal: pexpect.spawn[str] = pexpect.spawn(
        sys.executable, command, env=people, encoding="utf-8", timeout=60, dimensions=(24, 100)
    )
    try:
        terminal.expect("shell 1 on pod")
        terminal.expect(PROMPT)
        terminal.sendline("echo first-$((6 * 7))")
        terminal.expect_exact("first-42")
        first = standing.session(sid)["shells"][0]["pod"]
        standing.admin.delete(Pod, first, namespace=NAMESPACE)
        terminal.expect_exact("no new approval needed")
        terminal.expect("shell 2 on pod")
        terminal.expect(PROMPT)
        terminal.sendline("echo second-$((6 * 7))")
        terminal.expect_exact("second-42")
        terminal.expect(PROMPT)
        terminal.send("\r~e")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)
    session = standing.reaches(sid, "sealed")
    standing.is_clean(sid)
    standing.verified(sid)
    recorded = standing.recorded(sid)
    assert 0 <= recorded.find(b"first-42") < recorded.find(b"second-42")
    assert [shell["end"] for shell in session["shells"]] == ["pod_gone", "ended_by_requester"]
    assert session["shells"][1]["pod"] != first


def test_an_api_server_that_restarts_costs_the_shell_and_not_the_approval(standing: Standing) -> None:
    sid, seat = standing.opened(process_access=False)
    seat.does("echo $((6 * 7))", sees=b"42")
    standing.site.cluster.restart_apiserver()
    standing.reconnect()
    over = seat.is_over()
    assert (over["reason"], over["session_open"]) == ("attach_lost", True)
    assert over["sentence"]
    standing.reaches(sid, "approved")
    status, answer = standing.open(sid)
    assert status == 200, answer
    again = Seat(standing.site, sid)
    again.does("echo $((6 * 8))", sees=b"48")
    assert standing.end(sid)[0] == 200
    session = is_sealed(standing, sid, seat, again)
    assert len(session["shells"]) == 2
    assert not session["sealed"]["cut"]


def test_a_record_that_has_no_room_any_more_ends_the_session_in_words(standing: Standing) -> None:
    with _limits(standing, record_bytes=1 << 20):
        sid, seat = standing.opened(process_access=False)
        seat.types("base64 /dev/urandom\n")
        over = seat.is_over()
        assert over["reason"] == "recorder_failed"
        assert over["sentence"] == "The record could not be kept, and without a record there is no session."
        assert is_sealed(standing, sid, seat)["ended"]["reason"] == "recorder_failed"
        assert len(seat.saw) > 100_000


def test_a_full_disk_under_the_spool_ends_the_session_in_words(standing: Standing) -> None:
    with _small_spool(standing, "6m"), _limits(standing, reserve_bytes=1 << 20):
        sid, seat = standing.opened(process_access=False)
        seat.types("base64 /dev/urandom\n")
        over = seat.is_over()
        assert over["reason"] == "recorder_failed"
        assert is_sealed(standing, sid, seat)["ended"]["reason"] == "recorder_failed"
        assert len(seat.saw) > 100_000


def test_a_locked_store_refuses_a_shell_in_words_and_lets_it_open_afterwards(standing: Standing) -> None:
    sid = standing.approved(process_access=False)
    with _locked(standing):
        status, answer = standing.open(sid)
        assert (status, answer["error"]["code"]) == (503, "store_unavailable")
        assert "locked" in answer["error"]["sentence"]
        assert standing.grants() == []
    status, answer = standing.open(sid)
    assert status == 200, answer
    seat = Seat(standing.site, sid)
    seat.does("echo $((6 * 7))", sees=b"42")
    assert standing.end(sid)[0] == 200
    is_sealed(standing, sid, seat)


def test_a_session_that_ends_while_the_store_is_locked_has_no_shell_at_once_and_is_sealed_later(standing: Standing) -> None:
    sid, seat = standing.opened(process_access=False)
    seat.does("echo $((6 * 7))", sees=b"42")
    with _locked(standing):
        seat.types("exit\n")
        until("the debug container's end", lambda: not standing.running(sid), 10)
        until("tower says it cannot write that down", lambda: "the reaper will" in standing.site.log.read_text())
    session = is_sealed(standing, sid, seat)
    assert session["ended"]["reason"] == "shell_exited"


def test_a_dead_node_is_said_and_is_no_dead_end(standing: Standing) -> None:
    cluster = standing.site.cluster
    sid, seat = standing.opened(process_access=False)
    seat.does("echo $((6 * 7))", sees=b"42")
    cluster.kill_node()
    try:
        assert standing.end(sid)[0] == 200
        session = standing.reaches(sid, "stuck", seconds=120)
        assert "the debug container was not seen to end" in session["stuck_because"]
        assert session["sealed"] is not None
        cluster.wait_for_node("Unknown", seconds=90)
        status, answer = standing.site.ask(
            "ana", "POST", "/sessions", {"app": "checkout", "environment": "production", "reason": "the node is dead"}
        )
        assert (status, answer["error"]["code"]) == (409, "node_not_ready")
    finally:
        cluster.start_node()
    is_sealed(standing, sid, seat, seconds=120)
    standing.app_is_ready()
    assert standing.ask("ana")


def test_a_tower_that_is_told_to_stop_tells_the_viewer_and_seals_first(standing: Standing) -> None:
    sid, seat = standing.opened(process_access=False)
    seat.does("echo $((6 * 7))", sees=b"42")
    process = standing.site.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    over = seat.is_over()
    assert (over["reason"], over["sentence"]) == ("tower_stopped", "Tower was stopped.")
    assert process.wait(30) == 0
    standing.site.start()
    session = is_sealed(standing, sid, seat)
    assert not session["sealed"]["cut"]


def test_a_supervisor_that_its_user_froze_is_dead_by_its_lease_or_with_its_pod(standing: Standing) -> None:
    sid, seat = standing.opened(process_access=True)
    seat.does("echo $((6 * 7))", sees=b"42")
    seat.types("kill -STOP $PPID\n")
    until(
        "a frozen supervisor", lambda: any(_frozen(pid) for status in standing.running(sid) for pid in standing.processes(status))
    )
    began = time.monotonic()
    assert standing.end(sid)[0] == 200
    until("the debug container's end", lambda: not standing.running(sid), LEASE_SECONDS)
    session = is_sealed(standing, sid, seat)
    assert set(session["flags"]) <= {"pod_deleted"}
    assert time.monotonic() - began < 60


def _frozen(pid: int) -> bool:
    try:
        return re.search(r"^State:\tT", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None
    except OSError:
        return False


@contextlib.contextmanager
def _locked(standing: Standing) -> Iterator[None]:
    """Somebody else holds Tower's store for themselves."""
    with contextlib.closing(sqlite3.connect(standing.site.state / "tower.db", timeout=10, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


@contextlib.contextmanager
def _limits(standing: Standing, **limits: int) -> Iterator[None]:
    """Tower with other limits, and afterwards as it was."""
    site, before = standing.site, standing.site.file.read_text()
    decided = yaml.safe_load(before)
    decided["limits"] |= limits
    try:
        _restarted(site, yaml.safe_dump(decided))
        yield
    finally:
        _restarted(site, before)


def _restarted(site: Site, decided: str) -> None:
    site.stop()
    site.file.write_text(decided)
    site.start()


@contextlib.contextmanager
def _small_spool(standing: Standing, size: str) -> Iterator[None]:
    """A disk of its own under the spool, and a small one."""
    spool = standing.site.state / "spool"
    spool.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(spool)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(spool)], check=True)
