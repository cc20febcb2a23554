"""Layers 6 and 7. The one stream to a debug container: its bytes in order, or an error; a reader that stalls stops the sender.

Must never: log or keep a byte, pass on what is not the protocol, or leave a socket open behind it.

The WebSocket is the `websockets` library's, not httpx2's: over TLS it takes a third of the CPU for 32 KiB messages, an eighth
for 512-byte ones, and httpx2's keepalive ends a session whose reader stalls. Only a reader that waits sends pings: one that
stalls could not see the pong behind its unread bytes. Protocol: KEP-4006.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, assert_never
from urllib.parse import urlencode

from lightkube.core.exceptions import ConfigError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from breakglass.adapters.kubernetes_api import Endpoint, path
from breakglass.core.channel import SUBPROTOCOL, ChannelViolation, Status, Stderr, Stdin, Stdout, from_server, render
from breakglass.ports import PortError, Trouble

PING_SECONDS, PONG_SECONDS = 5.0, 20.0
"""A reader that has waited 5 s in vain asks for a sign of life; 20 s later without any the stream is broken."""
MESSAGE_MAX: Final = 1 << 20
"""The API server sends at most 32 KiB at once (Go's io.Copy); more than this is not the protocol."""
QUEUE_MESSAGES = 16
"""Messages read ahead of the reader; one TLS read may add as many as its 256 KiB hold."""
PIECE: Final = 64 << 10
WRITE_LIMIT: Final = 1
"""Wait whenever a byte is unsent. Not 0: CPython 3.11's sslproto pauses at `size >= limit`, so an empty buffer would pause too,
and only another write would wake the writer."""

_SILENT = logging.Logger("attach", level=logging.CRITICAL + 1)  # noqa: LOG001 - on purpose outside the tree: nothing can turn it on
"""At DEBUG the library would log every frame and the Authorization header."""


class _Connect(connect):
    """A redirect is an error: the portal's credential goes to one server."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class KubernetesAttach:
    """`ports.Attach` on the API server's attach subresource."""

    def __init__(self, endpoint: Endpoint, *, ping_seconds: float = PING_SECONDS, pong_seconds: float = PONG_SECONDS) -> None:
        self._endpoint, self._seconds = endpoint, (ping_seconds, pong_seconds)

    @asynccontextmanager
    async def attach(self, namespace: str, pod: str, container: str) -> AsyncIterator[KubernetesStream]:
        """Attach; whatever ends the block, the socket is gone at its end, without a goodbye that could wait."""
        what = f"attach to {container} in pod {namespace}/{pod}"
        asked = {"container": container, "stdin": "true", "stdout": "true", "stderr": "false", "tty": "false"}
        socket = await self._connect(what, f"{path('namespaces', namespace, 'pods', pod)}/attach?{urlencode(asked)}")
        stream = KubernetesStream(self._endpoint, socket, what)
        keeping = asyncio.create_task(stream.keep_alive(*self._seconds))
        try:
            await stream.established()
            yield stream
        finally:
            keeping.cancel()
            socket.transport.abort()
            await socket.wait_closed()

    async def _connect(self, what: str, target: str) -> ClientConnection:
        """The API server decides, in HTTP; a no has a Status for a body."""
        refused = self._endpoint.refused
        try:
            return await _Connect(
                self._endpoint.server.replace("http", "ws", 1) + target,
                additional_headers=await self._endpoint.authorization(),
                ssl=self._endpoint.tls,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,
                max_size=MESSAGE_MAX,
                max_queue=QUEUE_MESSAGES,
                write_limit=WRITE_LIMIT,
                ping_interval=None,
                close_timeout=1,
                open_timeout=self._endpoint.request_seconds,
                proxy=None,
                logger=_SILENT,
            )
        except InvalidStatus as error:
            raise refused(what, error.response.status_code, bytes(error.response.body), mutates=False) from None
        except (OSError, ConfigError, KeyError, ValueError) as error:
            raise self._endpoint.failed(what, error, mutates=True) from None
        except (WebSocketException, EOFError) as error:
            trouble = Trouble.UNKNOWN if isinstance(error.__cause__, EOFError) else Trouble.FATAL
            raise self._endpoint.error(trouble, what, f"no WebSocket was opened ({type(error).__name__})") from None


class KubernetesStream:
    """`ports.AttachStream`. `status` is the API server's last word, once it came."""

    def __init__(self, endpoint: Endpoint, socket: ClientConnection, what: str) -> None:
        self.status: Status | None = None
        self._endpoint, self._socket, self._what = endpoint, socket, what
        self._early = b""
        self._waits, self._heard, self._why = False, 0, "the connection is closed"

    async def established(self) -> None:
        """Wait for the API server's first message: v5 sends an empty one before anything else."""
        if self._socket.subprotocol != SUBPROTOCOL:
            raise self._endpoint.error(Trouble.FATAL, self._what, f"the server did not choose {SUBPROTOCOL}")
        try:
            async with asyncio.timeout(self._endpoint.request_seconds):
                self._early = await self._next() or b""
        except TimeoutError as error:
            raise self._endpoint.failed(self._what, error, mutates=True) from None
        if self.status is not None:
            raise self._over(self.status)

    async def read(self) -> bytes:
        """As the port says; `transient` when the stream breaks or fails instead of ending."""
        if self._early:
            early, self._early = self._early, b""
            return early
        while self.status is None:
            if data := await self._next():
                return data
        if self.status.exit_code is None:
            raise self._over(self.status)
        return b""

    async def write(self, data: bytes) -> None:
        """As the port says."""
        pieces = [data] if len(data) <= PIECE else [data[i : i + PIECE] for i in range(0, len(data), PIECE)]
        try:
            for piece in pieces:
                await self._socket.send(render(Stdin(data=piece)))
        except ConnectionClosed:
            raise self._broken(self._why) from None

    async def _next(self) -> bytes:
        """The bytes of the next message, which may be none; `status` is set when it was the last."""
        try:
            event = from_server(await self._message())
        except ChannelViolation as violation:
            raise self._endpoint.error(Trouble.FATAL, self._what, f"the server sent {violation}") from None
        match event:
            case Stdout():
                return event.data
            case Stderr():
                raise self._endpoint.error(Trouble.FATAL, self._what, "the server sent stderr, which was not asked for")
            case Status():
                self.status = event
                return b""
            case _:
                assert_never(event)

    async def _message(self) -> bytes:
        self._waits = True
        try:
            message = await self._socket.recv(decode=False)
        except ConnectionClosed:
            raise self._broken(self._why) from None
        finally:
            self._waits = False
        self._heard += 1
        return message

    async def keep_alive(self, ping_seconds: float, pong_seconds: float) -> None:
        """Ping for a reader that waits in vain, and break the stream when nothing comes: no pong, no message, no close."""
        with suppress(ConnectionClosed):
            while True:
                heard = self._heard
                await asyncio.sleep(ping_seconds)
                if not self._waits or heard != self._heard:
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(pong_seconds):
                        await (await self._socket.ping())
                    continue
                if self._waits and heard == self._heard:
                    self._why = f"no sign of life for {pong_seconds:.0f} s"
                    self._socket.transport.abort()

    def _broken(self, why: str) -> PortError:
        return self._endpoint.error(Trouble.TRANSIENT, f"go on with the stream ({self._what})", why)

    def _over(self, status: Status) -> PortError:
        return self._broken(" ".join(status.message.split())[:200] or "the API server ended it without a word")
