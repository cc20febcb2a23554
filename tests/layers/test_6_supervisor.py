"""Layer 6 on a real node, the layers above it switched off: what a shell's user, a second attacher and a cut line cannot do.

The debug container has the exact form of `core/workload.py`, but another name, in a namespace that no policy looks at. Whatever
ends it, `terminated` is seen in the API, no process of it is left on the node, and the app beside it runs on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Namespace, Pod, ServiceAccount

from breakglass.adapters.kubernetes import connected
from breakglass.adapters.kubernetes_api import Api, endpoint, path
from breakglass.core import workload
from breakglass.core.facts import DebugContainerFacts
from breakglass.core.frames import DATA_MAX, Data, Exit, ExitReason, FrameViolation, Pong, TowerEvent, TowerFrames
from breakglass.core.model import Sid, Tier
from breakglass.ports import AttachStream, PortError
from breakglass.ports import Cluster as Ports
from lab import processes
from lab.api import Cluster

pytestmark = pytest.mark.lab

PATIENCE = 30.0
QUIET = "stty -echo; PS1= exec bash --noprofile --norc --noediting -ic 'echo ready; exec bash --noprofile --norc --noediting'"
LOOPS = (
    "(setsid sh -c 'trap \"\" HUP TERM INT; while :; do sleep 1; done' &); "
    "python3 -c 'import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(3600)'"
)
"""Two that mean to outlive their shell: a loop in a session of its own, and a daemon forked twice."""
BOTH = pytest.mark.parametrize("process_access", [False, True], ids=["alone", "process access"])


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of no app, with its service account."""
    name = f"layer-6-{secrets.token_hex(4)}"
    with cluster.client() as client:
        client.apply(from_dict({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        processes.wait_until("service account", lambda: any(True for _ in client.list(ServiceAccount, namespace=name)), 30)
        yield name
        client.delete(Namespace, name)


@pytest.fixture
def target(cluster: Cluster, namespace: str) -> Iterator[tuple[str, str, str]]:
    """A pod of the demo app's image: namespace, name, UID."""
    name = f"target-{secrets.token_hex(4)}"
    spec = {
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000},
        "containers": [{"name": "app", "image": cluster.app_image}],
    }
    metadata = {"name": name, "namespace": namespace}

    def running() -> bool:
        status = client.get(Pod, name, namespace=namespace).status
        return status is not None and status.phase == "Running"

    with cluster.client() as client:
        made = client.apply(from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})).metadata
        assert made is not None
        assert made.uid is not None
        processes.wait_until("the target pod's start", running, 60)
        yield namespace, name, made.uid
        client.delete(Pod, name, namespace=namespace, grace_period=0)


class Shell:
    """One debug container of the pod, and Tower's end of its stream."""

    def __init__(self, lab: Cluster, ports: Ports, api: Api, where: tuple[str, str, str]) -> None:
        self.lab, self.ports, self.api, self.where = lab, ports, api, where
        self.frames = TowerFrames(secrets.token_bytes(32))
        self.name = ""
        self.events: list[TowerEvent] = []
        self.screen = bytearray()
        self.container_id = ""
        self._stack = AsyncExitStack()
        self._stream: AttachStream

    # as Tower does it

    async def add(self, *, process_access: bool, seconds: int) -> None:
        sid = Sid("".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(10)))
        manifest = workload.debug_container(
            name=workload.container_name(sid, 1),
            image=self.lab.debug_image,
            target_container="app" if process_access else None,
            uid=1000,
            gid=1000,
            start_sha256=self.frames.start_sha256,
            max_seconds=seconds,
        )
        self.name = manifest["name"] = f"shell-{sid}"
        await self.ports.workloads.add_debug_container(*self.where, manifest)
        async with asyncio.timeout(PATIENCE):
            async for seen in self.ports.workloads.watch(*self.where, self.name):
                assert seen is not None
                if seen.running:
                    break
        for status in (await self._pod())["status"]["ephemeralContainerStatuses"]:
            if status["name"] == self.name:
                self.container_id = status["containerID"]

    async def attach(self) -> None:
        self._stream = await self._stack.enter_async_context(self.another())

    async def start(self, lease: int) -> None:
        await self.send(self.frames.start(80, 24, lease))
        await self.say(QUIET)
        await self.until(b"ready\r\n")

    async def send(self, data: bytes) -> None:
        await self._stream.write(data)

    async def say(self, line: str) -> None:
        await self.send(self.frames.data(line.encode() + b"\n"))

    async def ask(self, line: str) -> str:
        """What a command prints."""
        self.screen.clear()
        await self.say(f"{line}; echo do''ne")
        return (await self.until(b"done\r\n")).decode().removesuffix("done\r\n")

    async def read(self) -> bool:
        """Take what is there; False at the end, however it came."""
        try:
            async with asyncio.timeout(PATIENCE):
                data = await self._stream.read()
        except PortError:
            return False
        for event in self.frames.feed(data):
            self.events.append(event)
            if isinstance(event, Data):
                self.screen += event.data
        return bool(data)

    async def until(self, mark: bytes) -> bytes:
        while mark not in self.screen:
            assert await self.read(), f"ended; the screen: {bytes(self.screen[-500:])!r}"
        return bytes(self.screen[: self.screen.index(mark) + len(mark)])

    async def pong(self) -> Pong:
        nonce = secrets.token_bytes(8)
        await self.send(self.frames.ping(nonce))
        while not (found := [event for event in self.events if isinstance(event, Pong) and event.nonce == nonce]):
            assert await self.read(), "no answer to a ping"
        return found[0]

    async def flood(self) -> None:
        """Send until nobody takes it any more."""
        with suppress(PortError):
            for _ in range(400):
                async with asyncio.timeout(PATIENCE):
                    await self.send(self.frames.data(bytes(DATA_MAX)))

    async def rest(self) -> list[TowerEvent]:
        """Everything until the end of the stream."""
        self.events.clear()
        while await self.read():
            pass
        return self.events

    async def cut(self) -> None:
        """Tower is gone, without a goodbye."""
        await self._stack.aclose()

    # as others see it

    def another(self) -> AbstractAsyncContextManager[AttachStream]:
        """Somebody attaches who may: a cluster admin, or whoever has pods/attach where layer 5 is off."""
        return self.ports.attach.attach(self.where[0], self.where[1], self.name)

    async def loops(self) -> None:
        """Start what means to outlive the shell, and see it on the node."""
        before = len(self.lab.container_pids(self.container_id))
        await self.ask(LOOPS)
        async with asyncio.timeout(PATIENCE):
            while len(self.lab.container_pids(self.container_id)) < before + 3:  # loop, its sleep, daemon
                await asyncio.sleep(0.05)

    async def terminated(self) -> DebugContainerFacts:
        """Its end in the API, with nothing of it left on the node, and the app as it was."""
        async with asyncio.timeout(PATIENCE):
            async for seen in self.ports.workloads.watch(*self.where, self.name):
                assert seen is not None, "the pod is gone"
                if seen.terminated_at is not None:
                    assert self.lab.container_pids(self.container_id) == []
                    [app] = (await self._pod())["status"]["containerStatuses"]
                    assert (app["restartCount"], "running" in app["state"]) == (0, True)
                    return seen
        raise AssertionError("the watch ended")

    async def witness(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads((await self.terminated()).message)
        return message

    async def log(self) -> bytes:
        """What the node has written down of it, as anybody with pods/log reads it."""
        where = f"{path('namespaces', self.where[0], 'pods', self.where[1])}/log?container={self.name}"
        return (await self.api.answer("read the log", "GET", where)).content

    async def _pod(self) -> dict[str, Any]:
        return await self.api.get("read the pod", path("namespaces", self.where[0], "pods", self.where[1]))


Open = Callable[..., AbstractAsyncContextManager[Shell]]


@pytest.fixture
async def shell(cluster: Cluster, target: tuple[str, str, str]) -> AsyncIterator[Open]:
    """Opens shells in the pod; ends what a test left running."""
    api = Api(endpoint("lab", cluster.admin_kubeconfig))
    async with connected("lab", Tier.FLIGHT, kubeconfig=cluster.admin_kubeconfig) as ports:

        @asynccontextmanager
        async def one(*, process_access: bool = False, seconds: int = 120, lease: int | None = 120) -> AsyncIterator[Shell]:
            made = Shell(cluster, ports, api, target)
            await made.add(process_access=process_access, seconds=seconds)
            try:
                await made.attach()
                if lease is not None:
                    await made.start(lease)
                yield made
            finally:
                await made.cut()

        yield one
    await api.close()


# --- ends that nothing in the container can prevent -------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("how", ["cut", "end", "exit", "lease", "deadline"])
async def test_setsid_loops_and_forked_daemons_die_with_the_shell(shell: Open, process_access: bool, how: str) -> None:
    seconds, lease = 5 if how == "deadline" else 120, 3 if how == "lease" else 120
    async with shell(process_access=process_access, seconds=seconds, lease=lease) as open_shell:
        await open_shell.loops()
        match how:
            case "cut":
                await open_shell.cut()
            case "end":
                await open_shell.send(open_shell.frames.end())
            case "exit":
                await open_shell.say("exit 7")
            case _:
                pass  # time does it
        seen = await open_shell.terminated()
        by_the_kernel = 137 if process_access else 14
        assert seen.exit_code == {"cut": 0, "end": 0, "exit": 7}.get(how, by_the_kernel)
        final = json.loads(seen.message)
        reason = {"cut": "eof", "end": "ended", "exit": "shell_exited"}.get(how, "running")
        assert (final["reason"], final["final"]) == (reason, reason != "running")


@pytest.mark.parametrize(
    ("how", "limit"),
    [("deadline", ""), ("cut", ""), ("lease", ""), ("lease", "sigpending=0:0"), ("lease", "nofile=0:0"), ("lease", "fsize=0:0")],
)
async def test_a_supervisor_its_user_froze_is_killed_by_the_kernel(shell: Open, how: str, limit: str) -> None:
    """With process access: SIGSTOP, after taking its limits away. No PING, END or end of stdin reaches it any more."""
    async with shell(
        process_access=True, seconds=5 if how == "deadline" else 120, lease=120 if how == "deadline" else 3
    ) as frozen:
        await frozen.loops()
        await frozen.say((f"prlimit --pid $PPID --{limit}; " if limit else "") + "kill -STOP $PPID")
        if how == "cut":
            await frozen.cut()
        assert (await frozen.terminated()).exit_code == 137


async def test_a_supervisor_its_user_killed_takes_all_along_and_leaves_the_app(shell: Open) -> None:
    async with shell(process_access=True) as killed:
        await killed.loops()
        await killed.say("kill -KILL $PPID")
        assert (await killed.terminated()).exit_code == 137


async def test_a_supervisor_out_of_cpu_time_dies_early_at_worst(shell: Open) -> None:
    async with shell(process_access=True, seconds=5) as starved:
        await starved.loops()
        await starved.say("prlimit --pid $PPID --cpu=1:1; yes")
        await starved.rest()
        assert (await starved.terminated()).exit_code in {137, 128 + 24}


async def test_without_process_access_it_can_neither_be_stopped_nor_killed(shell: Open) -> None:
    async with shell() as first:
        assert await first.ask("echo $PPID") == "1\r\n"
        await first.ask("for s in STOP KILL TSTP HUP QUIT; do kill -$s 1; done")
        assert await first.ask("echo still") == "still\r\n"
        await first.send(first.frames.end())
        assert (await first.terminated()).exit_code == 0


@BOTH
async def test_nobody_sends_start_and_nothing_ever_runs(shell: Open, process_access: bool) -> None:
    async with shell(process_access=process_access, seconds=2, lease=None) as waiting:
        assert len(waiting.lab.container_pids(waiting.container_id)) == 1
        assert (await waiting.terminated()).exit_code == (137 if process_access else 14)
        assert await waiting.log() == b""


# --- the same uid -----------------------------------------------------------------------------------------------------


@BOTH
async def test_its_user_cannot_look_into_it(shell: Open, process_access: bool) -> None:
    async with shell(process_access=process_access) as inside:
        assert (await inside.ask("id -u; id -g")).split() == ["1000", "1000"]
        for file in ("mem", "environ", "maps", "auxv", "stack", "fd/0", "fd/1", "root/etc/passwd", "cwd/etc/passwd"):
            assert "ermission denied" in await inside.ask(f"head -c 1 /proc/$PPID/{file}"), file
        assert "ermission denied" in await inside.ask("echo forged > /proc/$PPID/fd/1")
        assert "ermission denied" in await inside.ask("ls /proc/$PPID/fd")
        await inside.send(inside.frames.end())
        await inside.terminated()


@BOTH
async def test_its_user_cannot_trace_it_but_their_own_processes(shell: Open, process_access: bool) -> None:
    async with shell(process_access=process_access) as tracer:
        assert "Operation not permitted" in await tracer.ask("timeout 5 strace -p $PPID")
        assert "Operation not permitted" in await tracer.ask("timeout 5 gdb -nx -batch -p $PPID 2>&1 | head -3")
        assert "exited with 0" in await tracer.ask("strace -e trace=exit_group true")
        await tracer.send(tracer.frames.end())
        await tracer.terminated()


async def test_process_access_reaches_the_app_and_nothing_less(shell: Open) -> None:
    async with shell(process_access=True) as inside:
        assert await inside.ask("cat /proc/1/comm") == "serve\r\n"
        assert await inside.ask("test -r /proc/1/root/etc/passwd -o -d /proc/1/root/ && echo root") == "root\r\n"
        await inside.send(inside.frames.end())
        await inside.terminated()


async def test_without_process_access_the_app_is_out_of_reach(shell: Open) -> None:
    async with shell() as alone:
        assert set((await alone.ask("cat /proc/[0-9]*/comm 2>/dev/null")).split()) == {"python3", "bash"}
        await alone.send(alone.frames.end())
        await alone.terminated()


# --- the line ---------------------------------------------------------------------------------------------------------


async def test_a_foreign_start_gets_no_shell_and_no_word(shell: Open) -> None:
    async with shell(lease=None) as target:
        thief = TowerFrames(secrets.token_bytes(32))
        await target.send(thief.start(80, 24, 120) + thief.data(b"echo mine\n"))
        assert (await target.witness())["reason"] == "violation:foreign_start"
        assert (await target.terminated()).exit_code == 65
        assert await target.log() == b""


async def test_a_second_attacher_sees_only_ciphertext(shell: Open) -> None:
    async with shell() as victim:
        async with victim.another() as second, asyncio.timeout(PATIENCE):
            reading = asyncio.ensure_future(second.read())
            while not reading.done():  # the runtime gives it output from some moment after the attach on
                assert await victim.ask("echo tower-''clear-text") == "tower-clear-text\r\n"
                await asyncio.wait([reading], timeout=0.1)
            seen = reading.result()
        assert seen
        assert b"clear-text" not in seen
        with pytest.raises(FrameViolation):
            TowerFrames(secrets.token_bytes(32)).feed(seen)


async def injected(shell: Shell) -> bytes:
    return b"touch /dev/shm/mine\n"


async def forged(shell: Shell) -> bytes:
    thief = TowerFrames(secrets.token_bytes(32))
    return thief.data(b"touch /dev/shm/mine\n")


async def started_again(shell: Shell) -> bytes:
    return TowerFrames(secrets.token_bytes(32)).start(80, 24, 120)


@pytest.mark.parametrize("attack", [injected, forged, started_again])
async def test_a_second_attacher_cannot_inject_input(shell: Open, attack: Callable[[Shell], Any]) -> None:
    async with shell() as victim:
        await victim.pong()
        async with victim.another() as second:
            await second.write(await attack(victim))
            events = await victim.rest()
        assert not any(isinstance(event, Data | Exit) for event in events)
        assert (await victim.terminated()).exit_code == 65
        assert (await victim.witness())["in_bytes"] == len(QUIET) + 1


async def replayed(shell: Shell) -> bytes:
    frame = shell.frames.data(b"echo o''ne\n")
    return frame + frame


async def dropped(shell: Shell) -> bytes:
    shell.frames.data(b"echo o''ne\n")
    return shell.frames.data(b"echo tw''o\n")


async def flipped(shell: Shell) -> bytes:
    frame = shell.frames.data(b"echo tw''o\n")
    return frame[:-1] + bytes([frame[-1] ^ 1])


@BOTH
@pytest.mark.parametrize("attack", [replayed, dropped, flipped])
async def test_a_frame_that_was_tampered_with_ends_it(shell: Open, process_access: bool, attack: Callable[[Shell], Any]) -> None:
    async with shell(process_access=process_access) as victim:
        await victim.loops()
        await victim.send(await attack(victim))
        assert not any(isinstance(event, Exit) for event in await victim.rest())
        assert b"two" not in victim.screen
        assert (await victim.terminated()).exit_code == 65
        assert (await victim.witness())["reason"] == "violation:bad_seal"


async def test_a_shell_that_reads_nothing_holds_up_no_ping_until_the_window_is_broken(shell: Open) -> None:
    async with shell() as flooded:
        await flooded.say("stty raw -echo; echo sle''ep; sleep 1000")
        await flooded.until(b"sleep")
        for _ in range(4):
            await flooded.send(flooded.frames.data(bytes(DATA_MAX)))
        assert (await flooded.pong()).taken < 4 * DATA_MAX
        await flooded.flood()
        assert (await flooded.witness())["reason"] == "violation:flood"


# --- what is left of it -----------------------------------------------------------------------------------------------


@BOTH
async def test_the_nodes_log_holds_no_clear_text(shell: Open, process_access: bool) -> None:
    async with shell(process_access=process_access) as logged:
        await logged.ask("echo tower-''clear-text; head -c 200000 /dev/zero | tr '\\0' A")
        assert b"tower-clear-text" in logged.screen
        await logged.send(logged.frames.end())
        await logged.terminated()
        log = await logged.log()
        assert len(log) > 200_000
        assert b"clear-text" not in log
        assert b"AAAA" not in log


async def test_three_witnesses_agree_on_what_passed(shell: Open) -> None:
    async with shell() as witnessed:
        screen, typed = hashlib.sha256(), hashlib.sha256()
        await witnessed.say("seq 10000; exit 3")
        typed.update(QUIET.encode() + b"\nseq 10000; exit 3\n")
        said = (await witnessed.rest())[-1]
        screen.update(witnessed.screen)
        assert isinstance(said, Exit)
        assert (said.reason, said.status) == (ExitReason.SHELL_EXITED, 3)
        assert (said.in_sha256, said.out_sha256) == (typed.digest(), screen.digest())
        left = await witnessed.witness()
        assert (left["in_sha256"], left["out_sha256"]) == (typed.hexdigest(), screen.hexdigest())
        assert (left["final"], left["exit"]) == (True, 3)


async def test_a_killed_supervisor_leaves_digests_that_claim_no_end(shell: Open) -> None:
    async with shell(process_access=True) as killed:
        while (await killed.pong()).taken == 0:
            pass
        await asyncio.sleep(1.2)  # its own clock: the message is rewritten about once a second
        await killed.say("kill -KILL $PPID")
        left = await killed.witness()
        assert (left["final"], left["reason"]) == (False, "running")
        assert left["in_bytes"] >= len(QUIET) + 1
