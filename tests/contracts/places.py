"""Two places for one contract: the model of a cluster, and the real one with the portal's token, its RBAC and its policies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import repeat
from typing import Protocol, TypeVar

from lightkube.resources.core_v1 import Pod
from lightkube.resources.rbac_authorization_v1 import RoleBinding

from breakglass.adapters.kubernetes import connected
from breakglass.core import grant, workload
from breakglass.core.facts import DebugContainerFacts, PodFacts
from breakglass.core.frames import Exit, TowerEvent, TowerFrames
from breakglass.core.model import Approval, Sid, State, Tier
from breakglass.ports import AttachStream, Cluster, Manifest, PortError, Trouble
from lab.api import Cluster as Lab
from tests.installed import PORTAL
from tests.simulators.cluster import SimCluster
from tests.simulators.people import BEN, NOW, a_session

T = TypeVar("T")
NAMESPACE = "checkout"
LAG_SECONDS = 5.0


class Place(Protocol):
    """Where the contract is tried: the ports, and what the world outside them can do."""

    ports: Cluster
    image: str

    async def restart_api(self) -> None:
        """The API server dies and comes back."""

    async def stop_api(self) -> None:
        """The API server dies."""

    async def start_api(self) -> None:
        """It comes back."""

    async def kill_pod(self, pod: PodFacts) -> None:
        """Somebody deletes the pod, with its usual grace."""

    async def delete_grant(self, sid: Sid) -> None:
        """Somebody deletes the grant."""


class Model:
    """The simulator."""

    image = "registry.example.test/tower/debug@sha256:" + "a" * 64

    def __init__(self) -> None:
        self.world = SimCluster(now=lambda: datetime.now(UTC))
        self.world.rbac_lag = 2
        self.world.add_namespace(NAMESPACE, NAMESPACE, "component:default/checkout")
        self.world.commands = {
            FLOOD: lambda: repeat((b"x" * 76 + b"\r\n") * 100, FLOOD_BYTES // 7800),
            "cat": b"",
            "echo $((6*7))": b"42\r\n",
        }
        self.world.policy = lambda item: (
            (str(item).find("'5m'") > 0 and "a grant's label cleanup.kyverno.io/ttl is 15m to 75m") or None
        )
        for number in range(2):
            self.world.add_pod(NAMESPACE, f"checkout-{number}")
        self.ports = self.world.ports

    async def restart_api(self) -> None:
        self.world.stop_api()
        await asyncio.sleep(0.05)
        self.world.start_api()

    async def stop_api(self) -> None:
        self.world.stop_api()

    async def start_api(self) -> None:
        self.world.start_api()

    async def kill_pod(self, pod: PodFacts) -> None:
        self.world.kill_pod(pod.namespace, pod.name)
        self.world.add_pod(pod.namespace, f"checkout-{secrets.token_hex(3)}")

    async def delete_grant(self, sid: Sid) -> None:
        self.world.delete_grant(NAMESPACE, sid)


class Real:
    """The lab's cluster."""

    def __init__(self, lab: Lab, ports: Cluster) -> None:
        self._lab, self.ports, self.image = lab, ports, lab.debug_image

    async def restart_api(self) -> None:
        await asyncio.to_thread(self._lab.restart_apiserver)

    async def stop_api(self) -> None:
        await asyncio.to_thread(self._lab.stop_apiserver)

    async def start_api(self) -> None:
        await asyncio.to_thread(self._lab.start_apiserver)

    async def kill_pod(self, pod: PodFacts) -> None:
        with self._lab.client() as client:
            await asyncio.to_thread(client.delete, Pod, pod.name, namespace=pod.namespace)

    async def delete_grant(self, sid: Sid) -> None:
        with self._lab.client() as client:
            await asyncio.to_thread(client.delete, RoleBinding, grant.name(sid), namespace=NAMESPACE)


@asynccontextmanager
async def real(lab: Lab) -> AsyncIterator[Real]:
    """The lab's cluster as the portal sees it; its grants are cleaned up afterwards."""
    kubeconfig = lab.kubeconfig_with_token(lab.token("tower", "portal"), "portal")
    async with connected(lab.name, Tier.FLIGHT, kubeconfig=kubeconfig, now=lambda: datetime.now(UTC)) as ports:
        place = Real(lab, ports)
        try:
            yield place
        finally:
            for left in await ports.grants.all():
                await ports.grants.delete(left.namespace, Sid(left.sid))


FLOOD = "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c 40000000"
FLOOD_BYTES = 40_000_000


def new_sid() -> Sid:
    """A session's id nobody has had."""
    return Sid("".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(10)))


def a_grant(sid: Sid, **changes: str) -> Manifest:
    """A grant as Tower makes it for an approved session; `changes` are to its labels."""
    session = a_session(sid, State.APPROVED, process_access=True)
    approved = a_session(
        sid, State.APPROVED, process_access=True, approval=Approval(approver=BEN, request_digest=session.request.digest, at=NOW)
    )
    made = grant.manifest(approved, portal=PORTAL, ttl_minutes=45, case_digest="sha256:" + "0" * 64)
    made["metadata"]["labels"] |= {f"cleanup.kyverno.io/{key}": value for key, value in changes.items()}
    return made


async def lagging(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat while `forbidden`, as Tower does after a grant."""
    async with asyncio.timeout(LAG_SECONDS):
        while True:
            try:
                return await call()
            except PortError as error:
                if error.trouble is not Trouble.FORBIDDEN:
                    raise
            await asyncio.sleep(0.02)


async def until(call: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Ask again until it is so."""
    async with asyncio.timeout(seconds):
        while not await call():
            await asyncio.sleep(0.02)


class Debugging:
    """A granted session with one debug container in one pod, and Tower's end of its stream."""

    def __init__(self, place: Place, pod: PodFacts, sid: Sid) -> None:
        self.place, self.pod, self.sid = place, pod, sid
        self.where = pod.namespace, pod.name, pod.uid
        self.container = workload.container_name(sid, 1)
        self.frames = TowerFrames(secrets.token_bytes(32))
        self.events: list[TowerEvent] = []

    @property
    def manifest(self) -> Manifest:
        return workload.debug_container(
            name=self.container,
            image=self.place.image,
            target_container=None,
            uid=1000,
            gid=1000,
            start_sha256=self.frames.start_sha256,
            max_seconds=300,
        )

    async def add(self) -> None:
        await lagging(lambda: self.place.ports.workloads.add_debug_container(*self.where, self.manifest))

    async def state(self, wanted: Callable[[DebugContainerFacts], bool]) -> DebugContainerFacts:
        """The first state the watch shows that is as wanted."""
        async with asyncio.timeout(20):
            async for seen in self.place.ports.workloads.watch(*self.where, self.container):
                if seen is not None and wanted(seen):
                    return seen
        raise AssertionError("the watch ended")

    @asynccontextmanager
    async def attached(self) -> AsyncIterator[AttachStream]:
        async with self.place.ports.attach.attach(self.pod.namespace, self.pod.name, self.container) as stream:
            yield stream

    @asynccontextmanager
    async def shell(self, lease_seconds: int = 60) -> AsyncIterator[AttachStream]:
        """Added, running, attached and started."""
        await self.add()
        await self.state(lambda seen: seen.running)
        async with self.attached() as stream:
            await stream.write(self.frames.start(80, 24, lease_seconds))
            await stream.write(self.frames.data(b"stty -echo; PS1=\r"))
            yield stream

    async def read_until(self, stream: AttachStream, wanted: Callable[[list[TowerEvent]], bool]) -> list[TowerEvent]:
        """Read and decode until it is so."""
        async with asyncio.timeout(30):
            while not wanted(self.events):
                data = await stream.read()
                assert data, "the stream ended"
                self.events += self.frames.feed(data)
        return self.events


def ended(events: list[TowerEvent]) -> bool:
    """Whether the supervisor has said EXIT."""
    return any(isinstance(event, Exit) for event in events[-3:])


def printed(events: list[TowerEvent]) -> bytes:
    """The terminal's output so far."""
    return b"".join(event.data for event in events if hasattr(event, "data"))


@asynccontextmanager
async def granted(place: Place, pod: PodFacts | None = None) -> AsyncIterator[Debugging]:
    """A session whose grant stands until the block ends."""
    sid = new_sid()
    await place.ports.grants.create(a_grant(sid))
    try:
        yield Debugging(place, pod or await a_pod(place), sid)
    finally:
        await until(lambda: removed(place, sid))


async def removed(place: Place, sid: Sid) -> bool:
    """Whether the grant could be removed; an API server that has just started may say no to anybody."""
    try:
        await place.ports.grants.delete(NAMESPACE, sid)
    except PortError:
        return False
    return True


async def a_pod(place: Place) -> PodFacts:
    """A pod of the app that runs and stays; waits for one while a rollout or a deletion is under way."""
    while True:
        for pod in await place.ports.facts.pods(NAMESPACE):
            if pod.ready and not pod.terminating:
                return pod
        await asyncio.sleep(0.1)
