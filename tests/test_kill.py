"""Kill -9 of Tower right before and right after everything it does to open and to close a shell, on a real cluster.

Whatever the moment: the debug container is dead, the next Tower leaves no grant and no mark, the record is sealed and holds, and
no byte that anybody was shown is missing in it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from lab.api import Cluster
from lab.site import Site
from tests.standing import OPEN, Seat, Standing, standing_on, unanswered, until

pytestmark = pytest.mark.lab

EOF_SECONDS = 6.0
"""How long a shell may live without Tower: its stream's end reaches it (measured alone: 0.8–1.4 s; this machine may be busy).
A frozen one is test_endings' matter."""

BEFORE_ANYTHING = {
    "store.replace:1:before": "requested",
    "store.replace:1:after": "approved",
    "store.replace:2:before": "approved",
}
"""Approving, and opening before its row says so: the session is where it was, and may be opened."""

NEVER_STARTED = {
    "workloads.add_debug_container:1:after",
    "workloads.watch:1:before",
    "workloads.watch:1:after",
    "attach.attach:1:before",
    "attach.attach:1:after",
    "stream.write:1:before",
}
"""The debug container is there and nobody sent START: no shell ever runs; the next Tower ends the waiting supervisor. A stream
cut in the instant it was made may never reach the container (seen), so its end is not always an end of file."""

OPENING = [
    "store.replace:1",
    "store.replace:2",
    "vault.put:1",
    "grants.create:1",
    "workloads.annotate:1",
    "workloads.add_debug_container:1",
    "workloads.watch:1",
    "attach.attach:1",
    "stream.write:1",
    "stream.read:1",
    "store.replace:3",
]
CLOSING = [
    "store.replace:4",
    "workloads.watch:3",
    "workloads.unannotate:1",
    "workloads.delete_pod:1",
    "grants.delete:1",
    "vault.put:2",
    "vault.put:3",
    "vault.put:4",
    "store.replace:5",
]
POINTS = [f"{call}:{when}" for call in (*OPENING, *CLOSING) for when in ("before", "after")]
AT_WORK = ["disk.fdatasync:4:before", "disk.fdatasync:4:after", "disk.fdatasync:7:before", "stream.bytes:300:after"]


@pytest.fixture(scope="module")
def standing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """One site for all of them; its Tower dies in every test, and the one started after that goes on into the next."""
    folder = tmp_path_factory.mktemp("kill") / "site"
    with standing_on(cluster, folder, start=start) as standing:
        yield standing


@pytest.fixture(autouse=True)
def tidy(standing: Standing) -> Iterator[None]:
    """No trap and no open session is left to the next test, whatever became of this one."""
    yield
    set_trap(standing, "")
    if not standing.site.answers() or unanswered(standing.end_all):
        standing.site.kill()
        start(standing.site)
        standing.end_all()


def start(site: Site) -> None:
    """The real Tower; it dies where the file says, once it is asked for a session."""
    trap = site.folder / "trap"
    trap.touch()
    site.start(("-m", "tests.deadly", f"@{trap}"))


def set_trap(standing: Standing, point: str) -> None:
    (standing.site.folder / "trap").write_text(point)


def dead(standing: Standing, seconds: float = 60) -> float:
    """Wait until Tower has killed itself; when that was, in monotonic seconds."""
    process = standing.site.process
    assert process is not None
    assert process.wait(seconds) == -9
    return time.monotonic()


def shell_ends(standing: Standing, sid: str, point: str, since: float) -> None:
    """The API says `terminated` in time; what was never attached has no shell in it."""
    if point in NEVER_STARTED:
        for status in standing.running(sid):
            assert len(standing.processes(status)) <= 1, "only the supervisor may run, and wait"
        return
    until("the debug container's end", lambda: not standing.running(sid), seconds=since + EOF_SECONDS - time.monotonic() + 0.1)


def comes_back(standing: Standing, sid: str, point: str) -> None:
    """The next Tower on the same state brings the session to the end that its point asks for."""
    set_trap(standing, "")
    start(standing.site)
    if (state := BEFORE_ANYTHING.get(point)) is not None:
        assert standing.session(sid)["state"] == state
        assert standing.end(sid)[0] == 200
        standing.reaches(sid, "closed")
        standing.is_clean(sid)
        return
    session = standing.reaches(sid, "sealed")
    standing.is_clean(sid)
    assert session["ended"]["sentence"]
    assert set(session["flags"]) <= ({"pod_deleted"} if point in NEVER_STARTED else set())
    standing.verified(sid)


def lives(standing: Standing, sid: str) -> Seat | None:
    """Approve, open, sit down, type, end: as far as Tower lives. The seat, if anybody came to sit."""
    if unanswered(lambda: standing.approve(sid)) or unanswered(lambda: standing.open(sid)):
        return None
    seat: list[Seat] = []
    if unanswered(lambda: seat.append(Seat(standing.site, sid))):
        return None
    if unanswered(lambda: seat[0].types("for i in 1 2 3; do echo Grüße-$((i * 14)); sleep 0.2; done\n")):
        return seat[0]
    until("an answer, or nobody", lambda: "Grüße-42".encode() in seat[0].saw or not standing.site.answers())
    unanswered(lambda: standing.end(sid))
    return seat[0]


@pytest.mark.parametrize("point", [*POINTS, *AT_WORK])
def test_tower_killed_here_leaves_no_shell_no_grant_and_a_record_of_all_that_was_shown(standing: Standing, point: str) -> None:
    standing.app_is_ready()
    set_trap(standing, point)
    sid = standing.ask()
    seat = lives(standing, sid)
    shell_ends(standing, sid, point, dead(standing))
    if seat is not None:
        seat.leaves()
    comes_back(standing, sid, point)
    if seat is not None:
        assert seat.saw
        assert standing.recorded(sid).startswith(bytes(seat.saw))
    assert standing.session(sid)["state"] not in OPEN


@pytest.mark.parametrize("round_", range(5))
def test_tower_killed_at_any_time_under_a_flood_has_recorded_every_byte_it_showed(standing: Standing, round_: int) -> None:
    sid, seat = standing.opened(process_access=False)
    seat.types("cat /dev/urandom | base64 -w 78\n")
    until("a flood", lambda: len(seat.saw) > 100_000)
    time.sleep(random.random() * 2)
    standing.site.kill()
    killed = time.monotonic()
    shell_ends(standing, sid, "", killed)
    seat.leaves()
    comes_back(standing, sid, "")
    session = standing.session(sid)
    assert session["sealed"]["cut"]
    assert session["ended"]["reason"] == "tower_died"
    assert standing.recorded(sid).startswith(bytes(seat.saw))
