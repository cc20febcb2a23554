"""What only the model of the cluster is asked to do: fail on demand, lose its node, and be attacked from inside the shell."""

from __future__ import annotations

import asyncio

import pytest

from breakglass.ports import AttachStream, PortError, Trouble
from tests.contracts import places
from tests.contracts.places import NAMESPACE, a_grant, a_pod, granted, new_sid
from tests.simulators.faults import Fault

pytestmark = pytest.mark.looptime


async def read_on(stream: AttachStream) -> None:
    while True:
        await stream.read()


async def write_on(stream: AttachStream) -> None:
    while True:
        await stream.write(bytes(4096))


async def test_a_planned_failure_did_not_happen_and_a_lost_answer_did() -> None:
    place = places.Model()
    for fault, trouble, grants in ((Fault.FAIL, Trouble.TRANSIENT, 0), (Fault.FAIL_BUT_HAPPENED, Trouble.UNKNOWN, 1)):
        place.world.faults.at("grants.create", fault)
        with pytest.raises(PortError) as caught:
            await place.ports.grants.create(a_grant(new_sid()))
        assert caught.value.trouble is trouble
        assert len(place.world.grants) == grants


async def test_a_call_that_hangs_ends_only_with_its_caller() -> None:
    place = places.Model()
    place.world.faults.at("facts.pods", Fault.HANG)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await place.ports.facts.pods(NAMESPACE)


async def test_on_a_dead_node_the_stream_falls_silent_and_the_status_stands_still() -> None:
    place = places.Model()
    async with granted(place) as debugging, debugging.shell() as stream:
        await debugging.read_until(stream, bool)
        place.world.kill_node()
        await stream.write(b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read_on(stream), 3600)
        assert (await debugging.state(lambda _: True)).running
        await place.ports.workloads.delete_pod(*debugging.where, grace_seconds=1)
        await asyncio.sleep(3600)
        found = await place.ports.facts.pod(NAMESPACE, debugging.pod.name)
        assert found is not None
        assert (found.terminating, found.node_ready) == (True, False)


@pytest.mark.parametrize("attack", ["freeze", "ignore"])
async def test_a_supervisor_that_no_longer_listens_is_killed_by_its_lease(attack) -> None:
    place = places.Model()
    async with granted(place) as debugging:
        async with debugging.shell(lease_seconds=15) as stream:
            await debugging.read_until(stream, bool)
            supervisor = place.world.supervisor(debugging.container)
            supervisor.frozen, supervisor.ignores_eof = attack == "freeze", True
            left = asyncio.get_running_loop().time()
        seen = await debugging.state(lambda state: state.terminated_at is not None)
        assert seen.exit_code == 137
        assert 10 < asyncio.get_running_loop().time() - left <= 15


async def test_a_frozen_supervisor_makes_the_writer_wait() -> None:
    place = places.Model()
    async with granted(place) as debugging, debugging.shell(lease_seconds=120) as stream:
        await debugging.read_until(stream, bool)
        place.world.supervisor(debugging.container).freeze()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(write_on(stream), 10)


async def test_a_container_that_does_not_start_says_why() -> None:
    place = places.Model()
    place.world.starts = "ErrImagePull"
    async with granted(place, await a_pod(place)) as debugging:
        await debugging.add()
        seen = await debugging.state(lambda state: state.waiting_reason is not None)
        assert (seen.running, seen.waiting_reason) == (False, "ErrImagePull")
