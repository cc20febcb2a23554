"""The two shells that are compared: one through Tower as the CLI makes it, one attached directly as an administrator may.

Both are read and written the same way: `write` keys, `read` what came next. The direct one has a terminal of its own, of the
same image beside the same pod, and no Tower, policy or record: what `kubectl attach -it` does.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import wsproto.events
from httpx2.websockets import AsyncWebSocketSession
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from bench.standing import NAMESPACE
from breakglass.adapters.kubernetes_api import Api, endpoint, path
from breakglass.cli.client import Answer, Client, Refused, Where
from breakglass.core.channel import SUBPROTOCOL, Resize, Status, Stdin, Stdout, from_server, render
from lab.api import Cluster
from lab.site import Site

ACK_BYTES = 64 << 10
PATIENCE = 60.0
APP, ENVIRONMENT = "checkout", "production"


class Shell(Protocol):
    """Either of the two."""

    async def write(self, data: bytes) -> None:
        """Type."""

    async def read(self) -> bytes:
        """The next output, at least one byte."""


async def until(shell: Shell, mark: bytes) -> bytes:
    """Everything up to and with this mark."""
    seen = bytearray()
    async with asyncio.timeout(PATIENCE):
        while mark not in seen:
            seen += await shell.read()
    return bytes(seen)


# --- through Tower ----------------------------------------------------------------------------------------------------


class TowerShell:
    """A viewer that types, over `tower.v1`, acknowledging as the CLI does."""

    def __init__(self, socket: AsyncWebSocketSession, sid: str) -> None:
        self.sid = sid
        self._socket = socket
        self._acknowledged = 0

    async def greet(self) -> Answer:
        """Hello both ways."""
        await self._socket.send_json({"type": "hello", "cols": 80, "rows": 24, "offset": None})
        hello: Answer = json.loads(await self._socket.receive_text(PATIENCE))
        self._acknowledged = int(hello["offset"])
        return hello

    async def write(self, data: bytes) -> None:
        """Type."""
        await self._socket.send_bytes(data)

    async def read(self) -> bytes:
        """The next output; RuntimeError when the shell ended instead."""
        while True:
            event = await self._socket.receive()
            if isinstance(event, wsproto.events.TextMessage) and json.loads(event.data)["type"] == "ended":
                raise RuntimeError(f"the shell ended: {event.data}")
            if not isinstance(event, wsproto.events.BytesMessage):
                continue
            end = int.from_bytes(event.data[:8], "big") + len(event.data) - 8
            if end - self._acknowledged >= ACK_BYTES:
                self._acknowledged = end
                await self._socket.send_json({"type": "ack", "offset": end})
            return bytes(event.data[8:])


def said(answer: Any) -> Answer:
    """The answer; RuntimeError with Tower's words when it is a refusal."""
    if isinstance(answer, Refused):
        raise RuntimeError(f"{answer.code}: {answer.sentence} {answer.remedy}")  # noqa: TRY004 - a refusal, not a type
    found: Answer = answer.get("session", answer)
    return found


def person(site: Site, name: str) -> Client:
    """The CLI's client as somebody."""
    return Client(Where(url=site.url, token=site.token(name)))


async def approved(site: Site, who: str, *, process_access: bool = False, minutes: int = 10) -> str:
    """Ask as one owner, say yes as another: the session's id."""
    body = {"app": APP, "environment": ENVIRONMENT, "reason": "a bench measures this shell", "minutes": minutes}
    async with person(site, who) as asker, person(site, "ben" if who != "ben" else "ana") as approver:
        asked = said(await asker.post("/sessions", {**body, "process_access": process_access}))
        digest = asked["request_digest"]
        said(await approver.post(f"/sessions/{asked['sid']}/approve", {"request_digest": digest}))
        return str(asked["sid"])


@asynccontextmanager
async def joined(client: Client, sid: str) -> AsyncIterator[TowerShell]:
    """A ticket, a WebSocket, hello: the shell as the CLI has it."""
    ticket = said(await client.post(f"/sessions/{sid}/tickets", {"role": "drive"}))
    async with client.stream(sid, ticket["ticket"]) as socket:
        if isinstance(socket, Refused):
            raise RuntimeError(f"{socket.code}: {socket.sentence}")  # noqa: TRY004 - a refusal, not a type
        shell = TowerShell(socket, sid)
        await shell.greet()
        yield shell


async def opened(client: Client, sid: str, pod: str) -> Answer:
    """The session's next shell, in this pod."""
    return said(await client.post(f"/sessions/{sid}/open", {"pod": pod, "cols": 80, "rows": 24}, seconds=150))


async def ended(client: Client, sid: str, *, sealed: bool = True) -> Answer:
    """End the session and wait until its record is sealed."""
    state = said(await client.post(f"/sessions/{sid}/end"))
    async with asyncio.timeout(PATIENCE):
        while sealed and state["state"] not in {"sealed", "account_due", "closed"}:
            state = said(await client.get(f"/sessions/{sid}", newer_than=state["version"]))
    return state


@asynccontextmanager
async def tower_shell(site: Site, who: str, pod: str) -> AsyncIterator[TowerShell]:
    """Ask, approve, open, join; end and seal at the end."""
    sid = await approved(site, who)
    async with person(site, who) as client:
        await opened(client, sid, pod)
        try:
            async with joined(client, sid) as shell:
                yield shell
        finally:
            await ended(client, sid)


# --- without Tower ----------------------------------------------------------------------------------------------------


class DirectShell:
    """An attached terminal, over `v5.channel.k8s.io`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def write(self, data: bytes) -> None:
        """Type."""
        await self._socket.send(render(Stdin(data=data)))

    async def resize(self) -> None:
        """80 by 24, as the other one."""
        await self._socket.send(render(Resize(cols=80, rows=24)))

    async def read(self) -> bytes:
        """The next output; RuntimeError when the shell ended instead."""
        while True:
            match from_server(await self._socket.recv(decode=False)):
                case Stdout(data=data) if data:
                    return data
                case Status() as status:
                    raise RuntimeError(f"the direct shell ended: {status.message}")
                case _:
                    continue


class Direct:
    """The administrator's way: patch an ephemeral container with a terminal into the pod, attach to it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._endpoint = endpoint("direct", cluster.admin_kubeconfig)
        self.api = Api(self._endpoint)

    def manifest(self, name: str) -> dict[str, Any]:
        """The same image, uid and security context as Tower's; a terminal, and bash as the supervisor starts it."""
        return {
            "name": name,
            "image": self._cluster.debug_image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["bash", "--noprofile", "--norc", "-i"],
            "stdin": True,
            "stdinOnce": True,
            "tty": True,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }

    @asynccontextmanager
    async def shell(self, pod: str, started: Callable[[str], Awaitable[None]] | None = None) -> AsyncIterator[DirectShell]:
        """Add, wait until it runs, attach. `started` is given the container's name once it runs."""
        name = f"direct-{secrets.token_hex(4)}"
        where = path("namespaces", NAMESPACE, "pods", pod)
        body = {"spec": {"ephemeralContainers": [self.manifest(name)]}}
        kind = "application/strategic-merge-patch+json"
        found = await self.api.send("add a container", "PATCH", f"{where}/ephemeralcontainers", body, kind)
        await self._running(pod, name, found["metadata"]["resourceVersion"])
        if started is not None:
            await started(name)
        query = f"container={name}&stdin=true&stdout=true&stderr=false&tty=true"
        async with connect(
            self._endpoint.server.replace("http", "ws", 1) + f"{where}/attach?{query}",
            ssl=self._endpoint.tls,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            max_size=1 << 24,
            proxy=None,
            close_timeout=1,
        ) as socket:
            shell = DirectShell(socket)
            await shell.resize()
            yield shell
            await shell.write(b"\x03\x04exit\n")

    async def _running(self, pod: str, name: str, version: str) -> None:
        """Watch from the patch's own version on: no read that could be saved."""
        pods = path("namespaces", NAMESPACE, "pods")
        selector = {"fieldSelector": f"metadata.name={pod}", "resourceVersion": version}
        async for event in self.api.events("watch", pods, 60, **selector):
            for status in event["object"].get("status", {}).get("ephemeralContainerStatuses", []):
                if status["name"] == name and "running" in status["state"]:
                    return
        raise RuntimeError("the direct shell did not start")
