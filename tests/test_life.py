"""A session's life from request to sealed record, and every way it ends, on simulators in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from breakglass.core.codes import Code
from breakglass.core.model import Denied, EndReason, Flag, Session, State, Tier
from tests.life import Life, an_ask
from tests.simulators.faults import Fault
from tests.virtual_time import in_virtual_time, until

OVER = (State.SEALED, State.ACCOUNT_DUE)


@in_virtual_time
async def test_what_was_shown_is_what_is_locked_and_nothing_is_left_in_the_cluster(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    await seat.types("hello\r", sees=b"hello yourself")
    await life.service.end(life.actor("ana"), session.sid)
    assert (await seat.is_over()).reason == EndReason.ENDED_BY_REQUESTER
    sealed = await life.reaches(session, State.SEALED)
    assert sealed.sealed is not None
    assert not sealed.sealed.cut
    assert life.recorded(session) == bytes(seat.saw)
    assert life.cluster.grants == {}
    assert sealed.shells[0].terminated_at is not None
    assert not (tmp_path / "spool" / session.sid).exists()
    assert life.audit(session) == [
        "session.requested",
        "session.approved",
        "session.opening",
        "session.active",
        "session.ending",
        "session.sealed",
    ]


@in_virtual_time
async def test_a_vault_that_takes_nothing_means_no_grant_was_ever_made(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    life.vault.faults.at("put", Fault.FAIL)
    refused = await life.service.open(life.actor("ana"), session.sid, pod=None, cols=80, rows=24)
    assert isinstance(refused, Denied)
    assert refused.code is Code.OPEN_FAILED
    assert "write the case file" in refused.sentence
    assert life.cluster.faults.seen["grants.create"] == 0


@in_virtual_time
async def test_a_spool_without_room_means_no_grant_was_ever_made(tmp_path: Path) -> None:
    life = Life(tmp_path, reserve_bytes=1 << 60)
    session = await life.approved()
    refused = await life.service.open(life.actor("ana"), session.sid, pod=None, cols=80, rows=24)
    assert isinstance(refused, Denied)
    assert refused.code is Code.NO_RECORD
    assert life.cluster.faults.seen["grants.create"] == 0


@in_virtual_time
async def test_the_hard_stop_comes_on_time_however_much_is_typed(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved(minutes=10)
    seat = await life.opened(session)
    began = life.loop.seconds
    while seat.ended is None:
        await seat.viewer.input(b"x")
        await asyncio.sleep(60)
    assert seat.ended.reason == EndReason.HARD_STOP
    assert 600 <= life.loop.seconds - began <= 665
    assert [told.kind for told in seat.told].count("warning") == 1
    assert (await life.reaches(session, State.SEALED)).ended.reason is EndReason.HARD_STOP  # type: ignore[union-attr]


@in_virtual_time
async def test_output_does_not_keep_an_idle_session_alive(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    began = life.loop.seconds
    supervisor = life.cluster.supervisor(f"debug-{session.sid}-1")
    while seat.ended is None:
        supervisor.print(b"tick\r\n")
        await asyncio.sleep(5)
    assert seat.ended.reason == EndReason.IDLE
    assert 600 <= life.loop.seconds - began <= 610
    assert any("Nine minutes without a keystroke" in told.sentence for told in seat.told)


@in_virtual_time
async def test_two_minutes_without_a_viewer_end_it_and_a_reload_within_them_does_not(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    first = await life.opened(session)
    await first.types("hello\r", sees=b"yourself")
    await first.leaves()
    life.cluster.supervisor(f"debug-{session.sid}-1").print(b"while you were away\r\n")
    await life.reaches(session, State.DISCONNECTED)
    await asyncio.sleep(110)
    second = await life.seat(session, offset=len(first.saw))
    await life.reaches(session, State.ACTIVE)
    await until(lambda: b"while you were away" in second.saw)
    assert second.ended is None
    await second.leaves()
    left = life.loop.seconds
    over = await life.reaches(session, State.SEALED)
    assert over.ended is not None
    assert over.ended.reason is EndReason.NO_VIEWER
    assert 120 <= life.loop.seconds - left <= 130
    assert life.recorded(session) == bytes(first.saw + second.saw)


@in_virtual_time
async def test_a_shell_nobody_ever_looked_at_ends_after_two_minutes(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    await life.service.open(life.actor("ana"), session.sid, pod=None, cols=80, rows=24)
    assert (await life.reaches(session, State.SEALED, seconds=130)).ended.reason is EndReason.NO_VIEWER  # type: ignore[union-attr]


@in_virtual_time
async def test_a_deleted_pod_costs_a_shell_and_not_the_approval(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    await seat.types("hello\r", sees=b"yourself")
    life.cluster.kill_pod("checkout", life.store.sessions[session.sid].shells[0].pod)
    ended = await seat.is_over()
    assert (ended.reason, ended.session_open) == (EndReason.POD_GONE, True)
    assert (await life.reaches(session, State.APPROVED)).shells[0].end is EndReason.POD_GONE
    assert life.cluster.grants == {}
    again = await life.opened(session)
    await again.types("hello\r", sees=b"yourself")
    assert again.saw.count(b"hello yourself") == 1
    await life.service.end(life.actor("ana"), session.sid)
    sealed = await life.reaches(session, State.SEALED)
    assert [shell.number for shell in sealed.shells] == [1, 2]
    assert life.recorded(session) == bytes(seat.saw + again.saw)


@in_virtual_time
async def test_the_sessions_time_goes_on_between_two_shells(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved(minutes=10)
    seat = await life.opened(session)
    life.cluster.kill_pod("checkout", life.store.sessions[session.sid].shells[0].pod)
    await seat.is_over()
    over = await life.reaches(session, State.SEALED, seconds=620)
    assert over.ended is not None
    assert over.ended.reason is EndReason.HARD_STOP


@in_virtual_time
async def test_a_grant_deleted_behind_towers_back_ends_the_session(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    life.cluster.delete_grant("checkout", session.sid)
    began = life.loop.seconds
    ended = await seat.is_over()
    assert (ended.reason, ended.session_open) == (EndReason.GRANT_GONE, False)
    assert life.loop.seconds - began <= 12
    await life.reaches(session, State.SEALED)
    assert life.cluster.faults.seen["grants.create"] == 1


@in_virtual_time
async def test_an_api_server_restart_costs_a_shell_and_not_the_approval(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    life.cluster.stop_api()
    await asyncio.sleep(1)
    life.cluster.start_api()
    assert (await seat.is_over()).session_open
    await life.reaches(session, State.APPROVED)
    again = await life.opened(session)
    await again.types("hello\r", sees=b"yourself")


@in_virtual_time
async def test_a_dead_node_is_said_and_its_person_can_ask_again_at_once(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    await seat.types("hello\r", sees=b"yourself")
    life.cluster.kill_node()
    await life.service.end(life.actor("ana"), session.sid)
    stuck = await life.reaches(session, State.STUCK)
    assert "not seen to end" in stuck.stuck_because
    assert stuck.sealed is not None
    assert Flag.NOT_TERMINATED in stuck.flags
    assert life.recorded(session) == bytes(seat.saw)
    assert life.cluster.grants == {}
    assert [notice.event for notice in life.world.notices if notice.event == "stuck"] == ["stuck"]
    life.cluster.add_pod("checkout", "checkout-3", node="node-2", node_ready=True)
    assert isinstance(await life.service.request(life.actor("ana"), an_ask()), Session)
    life.cluster.node_up = True
    life.cluster.kill_pod("checkout", stuck.shells[0].pod)
    assert (await life.reaches(session, State.SEALED)).stuck_because == ""


@in_virtual_time
async def test_a_full_record_ends_the_session_and_nothing_that_was_shown_is_missing(tmp_path: Path) -> None:
    life = Life(tmp_path, record_bytes=20_000)
    session = await life.approved()
    seat = await life.opened(session)
    life.cluster.commands["flood"] = b"0123456789" * 10_000
    await seat.viewer.input(b"flood\r")
    assert (await seat.is_over()).reason == EndReason.RECORDER_FAILED
    sealed = await life.reaches(session, State.SEALED)
    assert sealed.sealed is not None
    assert sealed.sealed.cut
    assert life.recorded(session).startswith(bytes(seat.saw))
    assert life.cluster.grants == {}


@in_virtual_time
async def test_lost_ownership_ends_the_shell_within_a_minute_and_an_identity_outage_does_not(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    life.world.down = True
    for _ in range(5):
        await asyncio.sleep(60)
        await seat.viewer.input(b"x")
    assert seat.ended is None
    assert any(told.kind == "identity" for told in seat.told)
    assert isinstance(await life.service.ticket(life.actor("ana"), session.sid, role="drive", origin=""), Denied)
    life.world.down = False
    life.world.groups["ana"] = frozenset()
    began = life.loop.seconds
    assert (await seat.is_over()).reason == EndReason.NOT_ENTITLED
    assert life.loop.seconds - began <= 75


@in_virtual_time
async def test_an_owner_and_an_admin_can_end_it_and_an_outsider_cannot(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    refused = await life.service.end(life.actor("oz"), session.sid)
    assert isinstance(refused, Denied)
    assert refused.code is Code.NOT_ENTITLED
    assert seat.ended is None
    await life.service.end(life.actor("ben"), session.sid)
    assert (await seat.is_over()).reason == EndReason.ENDED_BY_OTHER
    assert (await life.reaches(session, State.SEALED)).ended.by == "user:default/ben"  # type: ignore[union-attr]


@in_virtual_time
async def test_nobody_approves_their_own_under_any_alias(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.world.aliases = {"ana": frozenset({"ana@example.test"}), "ben": frozenset({"ANA@example.test"})}
    asked = await life.service.request(life.actor("ana"), an_ask())
    assert isinstance(asked, Session)
    for name in ("ana", "ben"):
        refused = await life.service.approve(life.actor(name), asked.sid, asked.request.digest)
        assert isinstance(refused, Denied)
        assert refused.code is Code.SELF_APPROVAL


@in_virtual_time
async def test_a_second_session_is_refused_under_every_name_until_the_first_is_closing(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    life.world.aliases = {"ana": frozenset({"a@example.test"})}
    refused = await life.service.request(life.actor("ana"), an_ask())
    assert isinstance(refused, Denied)
    assert refused.code is Code.SESSION_OPEN_ELSEWHERE
    assert session.sid in refused.sentence
    await life.service.end(life.actor("ana"), session.sid)
    assert isinstance(await life.service.request(life.actor("ana"), an_ask()), Session)


@in_virtual_time
async def test_two_opens_at_once_make_one_shell(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    both = await asyncio.gather(
        *(life.service.open(life.actor("ana"), session.sid, pod=None, cols=80, rows=24) for _ in range(2))
    )
    assert sorted(type(one).__name__ for one in both) == ["Denied", "Session"]
    assert life.cluster.faults.seen["grants.create"] == 1


@in_virtual_time
async def test_an_approval_lapses_unopened_and_a_request_unanswered(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    assert (await life.reaches(session, State.CLOSED, seconds=15 * 60 + 10)).ended.reason is EndReason.EXPIRED  # type: ignore[union-attr]
    asked = await life.service.request(life.actor("ana"), an_ask())
    assert isinstance(asked, Session)
    await asyncio.sleep(5 * 60 + 5)
    assert [notice.event for notice in life.world.notices][-1] == "unanswered"
    assert (await life.reaches(asked, State.CLOSED, seconds=56 * 60)).ended.reason is EndReason.EXPIRED  # type: ignore[union-attr]


@in_virtual_time
async def test_an_approval_does_not_follow_cicd_yaml_to_another_namespace(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    life.cluster.add_namespace("ledger", app="checkout", entity="component:default/checkout")
    life.world.namespace = "ledger"
    refused = await life.service.open(life.actor("ana"), session.sid, pod=None, cols=80, rows=24)
    assert isinstance(refused, Denied)
    assert refused.code is Code.DIGEST_MISMATCH
    assert life.cluster.grants == {}


@in_virtual_time
async def test_process_access_marks_the_pod_takes_the_mark_away_and_recycles_it(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved(process_access=True)
    await life.opened(session)
    shell = life.store.sessions[session.sid].shells[0]
    assert life.cluster.pods["checkout", shell.pod].process_access == session.sid
    await life.service.end(life.actor("ana"), session.sid)
    sealed = await life.reaches(session, State.SEALED)
    assert sealed.flags == frozenset()
    assert ("checkout", shell.pod) not in life.cluster.pods
    assert life.cluster.faults.seen["workloads.delete_pod"] == 1


@in_virtual_time
async def test_two_people_never_share_a_pod_that_one_has_process_access_to(tmp_path: Path) -> None:
    life = Life(tmp_path)
    first = await life.approved("ana", "ben", process_access=True)
    second = await life.approved("ben", "ana", process_access=True)
    opened = await asyncio.gather(
        life.service.open(life.actor("ana"), first.sid, pod="checkout-1", cols=80, rows=24),
        life.service.open(life.actor("ben"), second.sid, pod="checkout-1", cols=80, rows=24),
    )
    refused = [one for one in opened if isinstance(one, Denied)]
    assert [one.code for one in refused] == [Code.POD_BUSY]


@in_virtual_time
async def test_a_broken_glass_is_marked_alarmed_and_owes_an_account(tmp_path: Path) -> None:
    life = Life(tmp_path)
    broken = await life.service.request(life.actor("carla"), an_ask(), break_glass=True)
    assert isinstance(broken, Session)
    assert broken.glass is not None
    assert [notice.event for notice in life.world.notices] == ["glass_broken"]
    seat = await life.opened(broken, who="carla")
    await seat.types("hello\r", sees=b"yourself")
    await life.service.end(life.actor("carla"), broken.sid)
    await life.reaches(broken, State.ACCOUNT_DUE)
    again = await life.service.request(life.actor("carla"), an_ask(), break_glass=True)
    assert isinstance(again, Denied)
    assert again.code is Code.ACCOUNT_OWED


@in_virtual_time
async def test_ground_needs_no_approver_and_flight_is_not_believed_to_be_ground(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.world.tier = Tier.GROUND
    refused = await life.service.request(life.actor("ana"), an_ask())
    assert isinstance(refused, Denied)
    assert refused.code is Code.TIER_CONFLICT
    life.cluster.tier = Tier.GROUND
    life.cluster.labelled_tier = "ground"
    at_once = await life.service.request(life.actor("ana"), an_ask())
    assert isinstance(at_once, Session)
    assert at_once.state is State.APPROVED


@pytest.mark.parametrize("misuse", ["used twice", "another origin", "another session", "too late"])
def test_a_ticket_is_good_once_in_time_where_it_was_meant(tmp_path: Path, misuse: str) -> None:
    @in_virtual_time
    async def attack() -> None:
        life = Life(tmp_path)
        session = await life.approved()
        await life.opened(session)
        ticket = await life.service.ticket(life.actor("ana"), session.sid, role="drive", origin="https://tower.example")
        assert isinstance(ticket, str)
        sid, origin = str(session.sid), "https://tower.example"
        match misuse:
            case "used twice":
                await life.service.join(ticket, sid, origin=origin)
            case "another origin":
                origin = "https://evil.example"
            case "another session":
                sid = "zzzzzzzzzz"
            case _:
                await asyncio.sleep(31)
        joined = await life.service.join(ticket, sid, origin=origin)
        assert isinstance(joined, Denied)
        assert joined.code is Code.TICKET_INVALID
        assert ticket not in str(life.store.tickets)

    attack()


@in_virtual_time
async def test_a_watcher_sees_and_cannot_type_and_is_announced(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    watcher = await life.seat(session, "eve", role="watch")
    await watcher.viewer.input(b"hello\r")
    await seat.types("hello\r", sees=b"yourself")
    await until(lambda: b"yourself" in watcher.saw)
    assert watcher.saw.count(b"yourself") == 1
    assert any(told.kind == "watcher" for told in seat.told)


@in_virtual_time
async def test_somebody_else_never_gets_a_ticket_to_type(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    await life.opened(session)
    for name in ("ben", "carla", "eve", "oz"):
        refused = await life.service.ticket(life.actor(name), session.sid, role="drive", origin="")
        assert isinstance(refused, Denied)
        assert refused.code is Code.NOT_ENTITLED


@in_virtual_time
async def test_after_towers_death_everything_is_undone_and_the_record_is_sealed_cut(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    seat = await life.opened(session)
    await seat.types("hello\r", sees=b"yourself")
    saw = bytes(seat.saw)
    await life.die()
    again = life.reborn()
    over = await again.reaches(session, State.SEALED)
    assert over.ended is not None
    assert over.ended.reason is EndReason.TOWER_DIED
    assert over.sealed is not None
    assert over.sealed.cut
    assert again.recorded(session).startswith(saw)
    assert again.cluster.grants == {}


@in_virtual_time
async def test_the_copy_of_a_locked_record_that_a_crash_left_on_the_disk_is_deleted_and_no_other(tmp_path: Path) -> None:
    life = Life(tmp_path)
    session = await life.approved()
    await life.opened(session)
    await life.service.end(life.actor("ana"), session.sid)
    await life.reaches(session, State.SEALED)
    left, unknown = tmp_path / "spool" / session.sid, tmp_path / "spool" / "aaaaaaaaaa"
    left.mkdir()
    (left / "seg-000001.cast").touch()
    unknown.mkdir()
    await life.die()
    life.reborn()
    await until(lambda: not left.exists())
    assert unknown.exists()
