"""The four cluster ports' contract, sentence by sentence, on the model and on the real API server, kubelet and supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from breakglass.core.frames import Exit, Pong
from breakglass.ports import AttachStream, PortError, Trouble
from tests.contracts import places
from tests.contracts.places import FLOOD, FLOOD_BYTES, NAMESPACE, Place, a_grant, a_pod, ended, granted, lagging, new_sid, printed
from tests.installed import api

__all__ = ["api"]


@pytest.fixture(params=["model", pytest.param("real", marks=pytest.mark.lab)])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """One of the two places."""
    if request.param == "model":
        yield places.Model()
        return
    request.getfixturevalue("api")
    async with places.real(request.getfixturevalue("cluster")) as made:
        yield made


def trouble(caught: pytest.ExceptionInfo[PortError]) -> Trouble:
    return caught.value.trouble


# --- Facts --------------------------------------------------------------------------------------------------------------


async def test_the_cluster_says_its_tier_version_and_clock_itself(place: Place) -> None:
    facts = await place.ports.facts.cluster()
    assert facts.name == place.ports.name
    assert facts.labelled_tier == "flight"
    assert facts.version >= (1, 35)
    assert abs(facts.server_time - facts.read_at) <= timedelta(seconds=1)
    assert abs(facts.read_at - datetime.now(UTC)) < timedelta(seconds=5)


async def test_an_api_server_that_is_down_is_transient_for_every_read(place: Place) -> None:
    facts, pod = place.ports.facts, await a_pod(place)
    await place.stop_api()
    try:
        for read in (facts.cluster(), facts.namespace(NAMESPACE), facts.pods(NAMESPACE), facts.pod(NAMESPACE, pod.name)):
            with pytest.raises(PortError) as caught:
                await read
            assert trouble(caught) is Trouble.TRANSIENT
    finally:
        await place.start_api()


async def test_a_namespace_says_whose_it_is_or_that_there_is_none(place: Place) -> None:
    found = await place.ports.facts.namespace(NAMESPACE)
    assert found is not None
    assert (found.name, found.app_label, found.entity) == (NAMESPACE, NAMESPACE, "component:default/checkout")
    assert await place.ports.facts.namespace("no-such-namespace") is None


async def test_pods_come_oldest_first_with_their_nodes_readiness(place: Place) -> None:
    pods = await place.ports.facts.pods(NAMESPACE)
    assert [pod.created_at for pod in pods] == sorted(pod.created_at for pod in pods)
    pod = await a_pod(place)
    assert (pod.namespace, pod.phase, pod.node_ready) == (NAMESPACE, "Running", True)
    container = pod.containers[0]
    assert (container.name, container.running, container.uid, container.gid) == ("checkout", True, 1000, 1000)
    assert await place.ports.facts.pods("no-such-namespace") == []


async def test_one_pod_is_that_pod_or_none(place: Place) -> None:
    pod = await a_pod(place)
    found = await place.ports.facts.pod(NAMESPACE, pod.name)
    assert found is not None
    assert found.uid == pod.uid
    assert await place.ports.facts.pod(NAMESPACE, "no-such-pod") is None


async def test_reads_overlap_and_nothing_is_cached(place: Place) -> None:
    async with granted(place) as debugging:
        workloads, facts = place.ports.workloads, place.ports.facts
        for sid in (debugging.sid, None, debugging.sid, None):
            await lagging(lambda sid=sid: workloads.annotate(*debugging.where, sid))
            seen = await asyncio.gather(*(facts.pod(NAMESPACE, debugging.pod.name) for _ in range(10)))
            assert {pod.process_access for pod in seen if pod} == {sid}


# --- Grants -------------------------------------------------------------------------------------------------------------


async def test_a_grant_is_stored_as_the_api_server_has_it(place: Place) -> None:
    sid = new_sid()
    made = await place.ports.grants.create(a_grant(sid))
    assert (made.sid, made.namespace, made.terminating) == (sid, NAMESPACE, False)
    assert made.manifest["metadata"]["uid"] == made.uid
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(seconds=5)
    assert made.manifest["metadata"]["annotations"] == a_grant(sid)["metadata"]["annotations"]
    assert [found.uid for found in await place.ports.grants.all() if found.sid == sid] == [made.uid]


async def test_a_second_grant_of_one_session_is_a_conflict(place: Place) -> None:
    sid = new_sid()
    first = await place.ports.grants.create(a_grant(sid))
    with pytest.raises(PortError) as caught:
        await place.ports.grants.create(a_grant(sid))
    assert trouble(caught) is Trouble.CONFLICT
    assert [found.uid for found in await place.ports.grants.all() if found.sid == sid] == [first.uid]


async def test_a_grant_that_a_policy_refuses_is_forbidden_in_the_policys_own_sentence(place: Place) -> None:
    with pytest.raises(PortError, match=r"ttl is 15m to 75m") as caught:
        await place.ports.grants.create(a_grant(new_sid(), ttl="5m"))
    assert trouble(caught) is Trouble.FORBIDDEN


async def test_a_deleted_grant_is_gone_on_return_and_a_missing_one_is_success(place: Place) -> None:
    sid = new_sid()
    await place.ports.grants.create(a_grant(sid))
    for _ in range(2):
        await place.ports.grants.delete(NAMESPACE, sid)
        assert sid not in [found.sid for found in await place.ports.grants.all()]


async def test_grants_of_different_sessions_run_at_once(place: Place) -> None:
    sids = [new_sid() for _ in range(5)]
    await asyncio.gather(*(place.ports.grants.create(a_grant(sid)) for sid in sids))
    assert set(sids) <= {found.sid for found in await place.ports.grants.all()}
    await asyncio.gather(*(place.ports.grants.delete(NAMESPACE, sid) for sid in sids))
    assert not set(sids) & {found.sid for found in await place.ports.grants.all()}


# --- Workloads ----------------------------------------------------------------------------------------------------------


async def test_without_a_grant_every_act_on_a_pod_is_forbidden(place: Place) -> None:
    pod, sid = await a_pod(place), new_sid()
    workloads, where = place.ports.workloads, (pod.namespace, pod.name, pod.uid)
    container = places.Debugging(place, pod, sid)
    for act in (
        lambda: workloads.annotate(*where, sid),
        lambda: workloads.add_debug_container(*where, container.manifest),
        lambda: workloads.delete_pod(*where, grace_seconds=1),
        lambda: enter(place, pod.name, container.container),
    ):
        with pytest.raises(PortError) as caught:
            await act()
        assert trouble(caught) is Trouble.FORBIDDEN


async def enter(place: Place, pod: str, container: str) -> None:
    async with place.ports.attach.attach(NAMESPACE, pod, container):
        pass


async def test_a_mark_is_set_and_removed_and_repeats_are_harmless(place: Place) -> None:
    async with granted(place) as debugging:
        for sid in (debugging.sid, debugging.sid, None, None):
            await lagging(lambda sid=sid: place.ports.workloads.annotate(*debugging.where, sid))
            found = await place.ports.facts.pod(NAMESPACE, debugging.pod.name)
            assert found is not None
            assert found.process_access == sid


async def test_another_pod_of_the_same_name_is_not_found_and_stays_untouched(place: Place) -> None:
    async with granted(place) as debugging:
        workloads, where = place.ports.workloads, (NAMESPACE, debugging.pod.name, "00000000-0000-4000-8000-000000000000")
        for act in (
            lambda: workloads.annotate(*where, debugging.sid),
            lambda: workloads.add_debug_container(*where, debugging.manifest),
            lambda: workloads.delete_pod(*where, grace_seconds=1),
        ):
            with pytest.raises(PortError) as caught:
                await lagging(act)
            assert trouble(caught) is Trouble.NOT_FOUND
        found = await place.ports.facts.pod(NAMESPACE, debugging.pod.name)
        assert found is not None
        assert (found.uid, found.terminating, found.process_access) == (debugging.pod.uid, False, None)
        assert debugging.container not in [c.name for c in found.debug_containers]


async def test_a_pod_that_is_not_there_is_not_found(place: Place) -> None:
    async with granted(place) as debugging:
        where = (NAMESPACE, "no-such-pod", debugging.pod.uid)
        for act in (
            lambda: place.ports.workloads.annotate(*where, debugging.sid),
            lambda: place.ports.workloads.add_debug_container(*where, debugging.manifest),
        ):
            with pytest.raises(PortError) as caught:
                await lagging(act)
            assert trouble(caught) is Trouble.NOT_FOUND


async def test_a_debug_container_is_appended_once(place: Place) -> None:
    async with granted(place) as debugging:
        await debugging.add()
        with pytest.raises(PortError) as caught:
            await debugging.add()
        assert trouble(caught) is Trouble.CONFLICT
        found = await place.ports.facts.pod(NAMESPACE, debugging.pod.name)
        assert found is not None
        assert [c.name for c in found.debug_containers].count(debugging.container) == 1


async def test_the_watch_shows_the_state_now_and_each_change(place: Place) -> None:
    async with granted(place) as debugging:
        await debugging.add()
        seen = []
        async with asyncio.timeout(20):
            async for state in place.ports.workloads.watch(*debugging.where, debugging.container):
                assert state is not None
                seen.append(state)
                if state.running:
                    break
        assert all(not state.running and state.terminated_at is None for state in seen[:-1])
        async for again in place.ports.workloads.watch(*debugging.where, debugging.container):
            assert again == seen[-1]
            break


async def test_the_watch_survives_a_restart_of_the_api_server_and_says_how_the_container_ended(place: Place) -> None:
    async with granted(place) as debugging:
        async with debugging.shell():
            watching = asyncio.create_task(debugging.state(lambda seen: seen.terminated_at is not None))
            await asyncio.sleep(0)
            await place.restart_api()
            seen = await watching
        assert seen.terminated_at is not None
        assert abs(seen.terminated_at - datetime.now(UTC)) < timedelta(seconds=20)
        await places.until(lambda: answers(place))


async def answers(place: Place) -> bool:
    try:
        await place.ports.grants.all()
    except PortError:
        return False
    return True


async def test_a_pod_that_dies_ends_the_watch_with_none(place: Place) -> None:
    async with granted(place) as debugging:
        await debugging.add()
        await debugging.state(lambda seen: seen.running)
        watch = place.ports.workloads.watch(*debugging.where, debugging.container)
        await place.kill_pod(debugging.pod)
        async with asyncio.timeout(30):
            seen = [state async for state in watch]
        assert seen[-1] is None
        assert None not in seen[:-1]
        await a_pod(place)


async def test_deleting_a_pod_takes_its_shell_along_and_a_gone_pod_is_success(place: Place) -> None:
    async with granted(place) as debugging:
        async with debugging.shell() as stream:
            await debugging.read_until(stream, bool)
            await place.ports.workloads.delete_pod(*debugging.where, grace_seconds=1)
            with pytest.raises((PortError, AssertionError)):
                await debugging.read_until(stream, lambda _: False)
        async with asyncio.timeout(30):
            async for state in place.ports.workloads.watch(*debugging.where, debugging.container):
                if state is None:
                    break
        await place.ports.workloads.delete_pod(*debugging.where, grace_seconds=1)
        await a_pod(place)


# --- Attach -------------------------------------------------------------------------------------------------------------


async def test_bytes_go_both_ways_and_the_end_is_an_empty_read(place: Place) -> None:
    async with granted(place) as debugging, debugging.shell() as stream:
        await stream.write(debugging.frames.data(b"echo $((6*7))\r") + debugging.frames.ping(b"12345678"))
        await debugging.read_until(stream, lambda events: b"42\r\n" in printed(events))
        await debugging.read_until(stream, lambda events: any(isinstance(e, Pong) and e.nonce == b"12345678" for e in events))
        await stream.write(debugging.frames.data(b"exit 7\r"))
        events = await debugging.read_until(stream, ended)
        last = events[-1]
        assert isinstance(last, Exit)
        assert (last.status, last.out_sha256) == (7, hashlib.sha256(printed(events)).digest())
        assert await stream.read() == b""
        assert await stream.read() == b""
        ending = await debugging.state(lambda seen: seen.terminated_at is not None)
        assert ending.exit_code == 7
        assert last.out_sha256.hex() in ending.message
        with pytest.raises(PortError) as caught:
            await write_on(stream)
        assert trouble(caught) is Trouble.TRANSIENT


async def write_on(stream: AttachStream) -> None:
    """Write until it fails: the peer's goodbye may be on its way."""
    async with asyncio.timeout(5):
        while True:
            await stream.write(b"too late")
            await asyncio.sleep(0)


async def test_a_reader_that_stalls_stops_the_sender_loses_nothing_and_starves_no_lease(place: Place) -> None:
    async with granted(place) as debugging, debugging.shell(lease_seconds=3) as stream:
        await stream.write(debugging.frames.data(FLOOD.encode() + b"\rexit\r"))
        pinging = asyncio.create_task(renew(debugging, stream))
        await asyncio.sleep(5)
        assert (await debugging.state(lambda _: True)).running
        assert not pinging.done()
        events = await debugging.read_until(stream, ended)
        pinging.cancel()
        last = events[-1]
        assert isinstance(last, Exit)
        assert last.out_bytes == len(printed(events)) > FLOOD_BYTES * 0.99
        assert last.out_sha256 == hashlib.sha256(printed(events)).digest()
        assert sum(isinstance(event, Pong) for event in events) >= 10


async def renew(debugging: places.Debugging, stream: AttachStream) -> None:
    """Renew the lease, as Tower does, for as long as somebody takes it."""
    with contextlib.suppress(PortError):
        while True:
            await stream.write(debugging.frames.ping(b"12345678"))
            await asyncio.sleep(0.4)


async def test_leaving_closes_the_socket_at_once_and_the_container_ends(place: Place) -> None:
    async with granted(place) as debugging:
        async with debugging.shell() as stream:
            await stream.write(debugging.frames.data(FLOOD.encode() + b"\r"))
            await debugging.read_until(stream, lambda events: b"xxxx" in printed(events))
            left = time.monotonic()
        assert time.monotonic() - left < 1
        await debugging.state(lambda seen: seen.terminated_at is not None)


async def test_deleting_the_grant_does_not_end_the_stream_but_bars_the_next(place: Place) -> None:
    async with granted(place) as debugging, debugging.shell() as stream:
        await place.delete_grant(debugging.sid)
        await places.until(lambda: barred(place, debugging))
        await stream.write(debugging.frames.data(b"echo $((6*7))\r"))
        await debugging.read_until(stream, lambda events: b"42\r\n" in printed(events))


async def barred(place: Place, debugging: places.Debugging) -> bool:
    try:
        await place.ports.workloads.annotate(*debugging.where, None)
    except PortError as error:
        return error.trouble is Trouble.FORBIDDEN
    return False


async def test_a_stream_that_breaks_is_transient_for_reader_and_writer(place: Place) -> None:
    async with granted(place) as debugging, debugging.shell() as stream:
        await place.restart_api()
        with pytest.raises(PortError) as caught:
            await debugging.read_until(stream, lambda _: False)
        assert trouble(caught) is Trouble.TRANSIENT
        with pytest.raises(PortError) as caught:
            await stream.write(b"x")
        assert trouble(caught) is Trouble.TRANSIENT
        await places.until(lambda: answers(place))


async def test_a_container_that_is_not_there_or_over_cannot_be_attached_to(place: Place) -> None:
    async with granted(place) as debugging:
        async with debugging.shell():
            pass
        await debugging.state(lambda seen: seen.terminated_at is not None)
        with pytest.raises(PortError) as caught:
            await enter(place, debugging.pod.name, debugging.container)
        assert trouble(caught) is Trouble.TRANSIENT
        with pytest.raises(PortError) as caught:
            await enter(place, debugging.pod.name, f"debug-{new_sid()}-1")
        assert trouble(caught) is Trouble.INVALID
        with pytest.raises(PortError) as caught:
            await enter(place, "no-such-pod", debugging.container)
        assert trouble(caught) is Trouble.NOT_FOUND
