"""A model of one API server and one node, as the four cluster ports see them. In memory, on the event loop's own time.

What it keeps of the real thing, most of it shown there by `tests/contracts/test_cluster_contract.py`: a write needs a grant in
the namespace, and right after one the API server may not know it yet; a grant that is deleted ends no stream; a debug container
is appended, started by the kubelet and never removed; it dies when its stream drops (`stdinOnce`); a pod's UID is not its name;
an API server that goes down cuts streams and fails calls; a dead node's statuses stand still.
What it leaves out: policies (give it `policy`), a second attacher, volumes, and every pod that is not told to it.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from breakglass.core.facts import ClusterFacts, ContainerFacts, DebugContainerFacts, NamespaceFacts, PodFacts
from breakglass.core.grant import PREFIX
from breakglass.core.model import Sid, Tier
from breakglass.ports import AttachStream, Cluster, Grant, Manifest, PortError, Trouble
from tests.simulators.faults import Faults, around
from tests.simulators.supervisor import Reply, SimSupervisor

READ_BYTES = 32 << 10
"""The API server copies 32 KiB at a time, wherever a frame begins or ends."""


class SimCluster:
    """The world: its state is public, its methods are what happens in it. Faults name calls as `grants.create`, …"""

    def __init__(self, name: str = "demo", tier: Tier = Tier.FLIGHT, *, now: Callable[[], datetime]) -> None:
        self.name, self.tier, self.now = name, tier, now
        self.labelled_tier: str | None = tier.value
        self.version, self.skew = (1, 37), timedelta()
        self.faults = Faults()
        self.namespaces: dict[str, NamespaceFacts] = {}
        self.pods: dict[tuple[str, str], PodFacts] = {}
        self.grants: dict[tuple[str, str], Grant] = {}
        self.supervisors: dict[tuple[str, str], SimSupervisor] = {}
        """By pod UID and container name."""
        self.policy: Callable[[Manifest], str | None] = lambda _: None
        """Judges a grant or a debug container: a sentence refuses it."""
        self.rbac_lag = 0
        """How many calls after a grant are still forbidden: the RBAC authorizer learns of it through a watch."""
        self.starts: str | None = None
        """Why the kubelet does not start debug containers (`ErrImagePull`); None: it does, after `start_seconds`."""
        self.start_seconds = self.stop_seconds = 0.0
        self.commands: dict[str, Reply] = {"hello": b"hello yourself\r\n"}
        self.api_up = self.node_up = True
        self._lagging: Counter[str] = Counter()
        self._streams: set[SimStream] = set()
        self._changed = asyncio.Event()

    @property
    def ports(self) -> Cluster:
        """The cluster as Tower knows it."""
        return Cluster(name=self.name, facts=_Facts(self), grants=_Grants(self), workloads=_Workloads(self), attach=_Attach(self))

    # --- what happens in the world ------------------------------------------------------------------------------------

    def add_namespace(self, name: str, app: str | None = None, entity: str | None = None) -> NamespaceFacts:
        """A namespace, of an app or of nobody."""
        self.namespaces[name] = NamespaceFacts(name=name, app_label=app, entity=entity)
        return self.namespaces[name]

    def add_pod(self, namespace: str, name: str, **changes: Any) -> PodFacts:
        """A running pod as most are: one container, uid and gid 1000; `changes` say what is different."""
        container = ContainerFacts(name=namespace, image=f"registry.example.test/{namespace}", running=True, uid=1000, gid=1000)
        facts: dict[str, Any] = {
            "name": name,
            "uid": str(uuid.uuid4()),
            "namespace": namespace,
            "phase": "Running",
            "node": "node-1",
            "node_ready": self.node_up,
            "ready": True,
            "terminating": False,
            "created_at": self.now().replace(microsecond=0),
            "containers": (container,),
        }
        return self._put(PodFacts(**facts | changes))

    def kill_pod(self, namespace: str, name: str) -> None:
        """The pod and all its processes are gone, now."""
        pod = self.pods.pop((namespace, name))
        for container in pod.debug_containers:
            if supervisor := self.supervisors.get((pod.uid, container.name)):
                supervisor.kill()
        self.moved()

    def delete_grant(self, namespace: str, sid: str) -> None:
        """Somebody deletes the grant behind Tower's back. Streams go on: rights are checked when one opens."""
        del self.grants[namespace, PREFIX + sid]
        self.moved()

    def stop_api(self) -> None:
        """The API server dies: calls fail and streams break, so debug containers lose their stdin. What is stored stays."""
        self.api_up = False
        for stream in list(self._streams):
            stream.cut()
        self.moved()

    def start_api(self) -> None:
        """The API server is back."""
        self.api_up = True
        self.moved()

    def kill_node(self) -> None:
        """The node loses its power: streams fall silent, statuses stand still, and it is not ready (in truth 40 s later)."""
        self.node_up = False
        for supervisor in self.supervisors.values():
            supervisor.kill()
        for pod in list(self.pods.values()):
            self._put(replace(pod, node_ready=False))

    def supervisor(self, container: str) -> SimSupervisor:
        """The supervisor of the debug container of this name."""
        return next(supervisor for (_, name), supervisor in self.supervisors.items() if name == container)

    def moved(self) -> None:
        """Wake everybody who waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self) -> None:
        """Wait until anything changes."""
        await self._changed.wait()

    # --- the kubelet --------------------------------------------------------------------------------------------------

    def start_container(self, pod: PodFacts, manifest: Manifest) -> None:
        """Start a debug container, unless something keeps it from starting."""
        if not self.node_up or (pod.namespace, pod.name) not in self.pods:
            return
        name, command = str(manifest["name"]), list(manifest.get("command", []))
        if self.starts is not None:
            self.tell(pod, name, waiting_reason=self.starts)
            return
        self.supervisors[pod.uid, name] = SimSupervisor(
            start_sha256=command[command.index("--start-sha256") + 1],
            max_seconds=int(command[command.index("--max-seconds") + 1]),
            commands=self.commands,
            ended=lambda code, message: self.tell(
                pod, name, running=False, terminated_at=self.now().replace(microsecond=0), exit_code=code, message=message
            ),
            changed=self.moved,
        )
        self.tell(pod, name, running=True, waiting_reason=None)

    def tell(self, pod: PodFacts, name: str, **changes: Any) -> None:
        """Report a debug container's state to the API server; a dead node reports nothing."""
        current = self.pods.get((pod.namespace, pod.name))
        if self.node_up and current is not None and current.uid == pod.uid:
            told = tuple(replace(c, **changes) if c.name == name else c for c in current.debug_containers)
            self._put(replace(current, debug_containers=told))

    def end_pod(self, pod: PodFacts, grace_seconds: float) -> None:
        """TERM now, gone when the app has stopped or its grace is over. On a dead node nobody does it."""
        self._put(replace(pod, terminating=True))
        if not self.node_up:
            return
        supervisors = [s for (uid, _), s in self.supervisors.items() if uid == pod.uid]
        for supervisor in supervisors:
            supervisor.terminate()
        frozen = any(supervisor.exit_code is None for supervisor in supervisors)
        seconds = grace_seconds if frozen else min(grace_seconds, self.stop_seconds)
        asyncio.get_running_loop().call_later(seconds, self._gone, pod)

    def _gone(self, pod: PodFacts) -> None:
        current = self.pods.get((pod.namespace, pod.name))
        if self.node_up and current is not None and current.uid == pod.uid:
            self.kill_pod(pod.namespace, pod.name)

    def _put(self, pod: PodFacts) -> PodFacts:
        self.pods[pod.namespace, pod.name] = pod
        self.moved()
        return pod

    # --- the API server -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def call(self, name: str) -> AsyncIterator[None]:
        """One request: its planned fault, then the API server's own health."""
        await asyncio.sleep(0)
        fault = await self.faults.before(name)
        self.reachable()
        with around(fault, name):
            yield

    def reachable(self) -> None:
        """`transient` while the API server is down."""
        if not self.api_up:
            raise self.no(Trouble.TRANSIENT, "cannot be reached")

    def allowed(self, namespace: str, act: str) -> None:
        """`forbidden` without a grant in the namespace (a terminating one still grants), or while RBAC has not seen it."""
        if not any(where == namespace for where, _ in self.grants) or self._lagging[namespace] > 0:
            self._lagging[namespace] -= 1
            raise self.no(Trouble.FORBIDDEN, f"the portal may not {act} in {namespace}")

    def judged(self, manifest: Manifest) -> None:
        """`forbidden` in the policy's own words."""
        if (sentence := self.policy(manifest)) is not None:
            raise self.no(Trouble.FORBIDDEN, sentence)

    def pinned(self, namespace: str, name: str, uid: str) -> PodFacts | None:
        """The pod, None when there is none; `not_found` when another pod has its name."""
        pod = self.pods.get((namespace, name))
        if pod is not None and pod.uid != uid:
            raise self.no(Trouble.NOT_FOUND, f"another pod is called {name} now")
        return pod

    def granted(self, grant: Grant) -> None:
        """Keep a new grant; the authorizer learns of it `rbac_lag` calls later."""
        self.grants[grant.namespace, PREFIX + grant.sid] = grant
        self._lagging[grant.namespace] = self.rbac_lag
        self.moved()

    @contextmanager
    def joined(self, stream: SimStream) -> Iterator[None]:
        """Keep a stream for as long as it is attached; at its end the container's stdin closes."""
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)
            stream.cut()

    def no(self, trouble: Trouble, why: str) -> PortError:
        """An error in the cluster's name."""
        return PortError(trouble, f"cluster {self.name}: {why}")


class _Facts:
    def __init__(self, world: SimCluster) -> None:
        self._world = world

    async def cluster(self) -> ClusterFacts:
        world = self._world
        async with world.call("facts.cluster"):
            return ClusterFacts(
                name=world.name,
                registered_tier=world.tier,
                labelled_tier=world.labelled_tier,
                version=world.version,
                server_time=world.now() + world.skew,
                read_at=world.now(),
            )

    async def namespace(self, name: str) -> NamespaceFacts | None:
        async with self._world.call("facts.namespace"):
            return self._world.namespaces.get(name)

    async def pods(self, namespace: str) -> Sequence[PodFacts]:
        async with self._world.call("facts.pods"):
            found = [pod for (where, _), pod in self._world.pods.items() if where == namespace]
            return sorted(found, key=lambda pod: (pod.created_at, pod.name))

    async def pod(self, namespace: str, name: str) -> PodFacts | None:
        async with self._world.call("facts.pod"):
            return self._world.pods.get((namespace, name))


class _Grants:
    def __init__(self, world: SimCluster) -> None:
        self._world = world

    async def create(self, manifest: Manifest) -> Grant:
        world = self._world
        async with world.call("grants.create"):
            stored = copy.deepcopy(dict(manifest))
            meta = stored["metadata"]
            if meta["namespace"] not in world.namespaces:
                raise world.no(Trouble.NOT_FOUND, f"there is no namespace {meta['namespace']}")
            world.judged(manifest)
            if (meta["namespace"], meta["name"]) in world.grants:
                raise world.no(Trouble.CONFLICT, f"there is a grant {meta['name']} already")
            created = world.now().replace(microsecond=0)
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": created.isoformat()}
            sid = meta["name"].removeprefix(PREFIX)
            grant = Grant(sid=sid, namespace=meta["namespace"], uid=meta["uid"], created_at=created, manifest=stored)
            world.granted(grant)
            return grant

    async def delete(self, namespace: str, sid: Sid) -> None:
        async with self._world.call("grants.delete"):
            self._world.grants.pop((namespace, PREFIX + sid), None)
            self._world.moved()

    async def all(self) -> Sequence[Grant]:
        async with self._world.call("grants.all"):
            return list(self._world.grants.values())


class _Workloads:
    def __init__(self, world: SimCluster) -> None:
        self._world = world

    async def annotate(self, namespace: str, pod: str, uid: str, sid: Sid | None) -> None:
        world = self._world
        async with world.call("workloads.annotate"):
            world.allowed(namespace, "patch pods")
            found = world.pinned(namespace, pod, uid)
            if found is None:
                raise world.no(Trouble.NOT_FOUND, f"there is no pod {pod}")
            world._put(replace(found, process_access=sid))

    async def add_debug_container(self, namespace: str, pod: str, uid: str, container: Manifest) -> None:
        world, name = self._world, str(container["name"])
        async with world.call("workloads.add_debug_container"):
            world.allowed(namespace, "patch pods/ephemeralcontainers")
            found = world.pinned(namespace, pod, uid)
            if found is None:
                raise world.no(Trouble.NOT_FOUND, f"there is no pod {pod}")
            if any(other.name == name for other in found.debug_containers):
                raise world.no(Trouble.CONFLICT, f"pod {pod} has a debug container {name} already")
            world.judged(container)
            added = DebugContainerFacts(name=name, running=False, targets_process="targetContainerName" in container)
            world._put(replace(found, debug_containers=(*found.debug_containers, added)))
            asyncio.get_running_loop().call_later(world.start_seconds, world.start_container, found, container)

    async def watch(self, namespace: str, pod: str, uid: str, container: str) -> AsyncIterator[DebugContainerFacts | None]:
        """Waits out an API server that is down, as the real watch does by reconnecting."""
        world, last = self._world, None
        await world.faults.before("workloads.watch")
        while True:
            if world.api_up:
                found = world.pods.get((namespace, pod))
                if found is None or found.uid != uid:
                    yield None
                    return
                absent = DebugContainerFacts(name=container, running=False)
                seen = next((c for c in found.debug_containers if c.name == container), absent)
                if seen != last:
                    last = seen
                    yield seen
                    continue
            await world.change()

    async def delete_pod(self, namespace: str, pod: str, uid: str, *, grace_seconds: int | None) -> None:
        world = self._world
        async with world.call("workloads.delete_pod"):
            world.allowed(namespace, "delete pods")
            if (found := world.pinned(namespace, pod, uid)) is not None:
                world.end_pod(found, found.grace_seconds if grace_seconds is None else grace_seconds)


class _Attach:
    def __init__(self, world: SimCluster) -> None:
        self._world = world

    @asynccontextmanager
    async def attach(self, namespace: str, pod: str, container: str) -> AsyncIterator[AttachStream]:
        world = self._world
        async with world.call("attach.attach"):
            world.allowed(namespace, "get pods/attach")
            found = world.pods.get((namespace, pod))
            facts = next((c for c in found.debug_containers if c.name == container), None) if found else None
            if found is None or facts is None:
                raise world.no(Trouble.NOT_FOUND if found is None else Trouble.INVALID, f"no container {container} in pod {pod}")
            if not facts.running:
                raise world.no(Trouble.TRANSIENT, f"container {container} does not run")
            stream = SimStream(world, world.supervisors[found.uid, container])
        with world.joined(stream):
            yield stream


class SimStream:
    """One attached stream. The pipes are the supervisor's own; the stream is whether they are still connected."""

    def __init__(self, world: SimCluster, supervisor: SimSupervisor) -> None:
        self._world, self._supervisor = world, supervisor
        self._connected = True

    async def read(self) -> bytes:
        """Pull the supervisor's output; what it said before its end is read to the end. A dead node says nothing."""
        async with self._world.call("stream.read"):
            while True:
                self._check()
                if self._world.node_up:
                    if data := self._supervisor.take(READ_BYTES):
                        return data
                    if self._supervisor.exit_code is not None:
                        return b""
                await self._world.change()

    async def write(self, data: bytes) -> None:
        """Push into stdin; waits while the supervisor does not read. To a dead node it goes nowhere."""
        async with self._world.call("stream.write"):
            self._check()
            if self._world.node_up and self._supervisor.exit_code is not None:
                raise self._world.no(Trouble.TRANSIENT, "the stream is over")
            while self._supervisor.full:
                await self._world.change()
                self._check()
            self._supervisor.feed(data)

    def cut(self) -> None:
        """The connection is gone; a living kubelet closes the container's stdin."""
        if self._connected:
            self._connected = False
            self._world.moved()
            if self._world.node_up:
                self._supervisor.eof()

    def _check(self) -> None:
        if not self._connected:
            raise self._world.no(Trouble.TRANSIENT, "the stream is broken")
