"""Layer 1 of the relay: one WebSocket a viewer, `tower.v1`. Refuses before the upgrade, in our words; then only carries bytes.

Must never: accept a ticket from a URL, let input pile up without bound, or send output a viewer's window has no room for.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, TypeVar, assert_never

import structlog
from pydantic import Field, TypeAdapter, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from breakglass.core.codes import Code
from breakglass.core.model import Denied
from breakglass.live import Ended, Output, Told, Viewer, ViewerFrame
from breakglass.service import Service
from breakglass.web.errors import internal, refused
from breakglass.web.schemas import AckFrame, HelloFrame, ResizeFrame
from breakglass.web.security import same_origin

log = structlog.get_logger()

PROTOCOL = "tower.v1"
TICKET_PREFIX = "tower.ticket."
INPUT_MAX = 64 << 10
"""Bytes of one binary input frame."""
TEXT_MAX = 4 << 10
"""Characters of one text frame."""
HELLO_SECONDS = 10

CLOSE_ENDED = 4000
"""The shell ended: no reconnect. Every other code invites one."""
CLOSE_POLICY, CLOSE_TOO_BIG, CLOSE_RETRY = 1008, 1009, 1013

AHEAD = 1 << 20
"""Bytes of input a viewer may be ahead of the shell; the CLI stays under a quarter of it."""
TAKEN_EVERY = 32 << 10

_HELLO: TypeAdapter[HelloFrame] = TypeAdapter(HelloFrame)
_CONTROL: TypeAdapter[ResizeFrame | AckFrame] = TypeAdapter(Annotated[ResizeFrame | AckFrame, Field(discriminator="type")])

T = TypeVar("T")


class _ViolationError(Exception):
    """The viewer broke the protocol: close with this code and word."""

    def __init__(self, code: int, word: str) -> None:
        super().__init__(word)
        self.code, self.word = code, word


async def stream(socket: WebSocket, sid: str) -> None:
    """One viewer of a session's shells: refused in HTTP, or upgraded and served until the shell ends.

    1. Refuse, still in HTTP: a foreign Origin, a missing protocol or ticket, whatever the service says to the ticket (its
       holder, session, role and Origin are checked there; it is spent by this one look).
    2. Upgrade; answer the viewer's hello with ours.
    3. Carry both directions until the shell ends, the viewer leaves or breaks the protocol.
    Pings on this hop are the server's (`cli/serve.py`) and the client library's.
    """
    service: Service = socket.app.state.service
    viewer = await _joined(service, socket, sid)  # (1)
    if isinstance(viewer, Denied):
        await socket.send_denial_response(refused(viewer, sid))
        return
    try:
        await socket.accept(PROTOCOL)  # (2)
        await _greet(service, socket, viewer)
        await _carry(socket, viewer)  # (3)
    except _ViolationError as violation:
        await _close(socket, violation.code, violation.word)
    except WebSocketDisconnect:
        pass
    finally:
        await viewer.leave()


async def _joined(service: Service, socket: WebSocket, sid: str) -> Viewer | Denied:
    origin = socket.headers.get("origin", "")
    if origin and not same_origin(origin, socket.headers.get("host", ""), socket.app.state.origins):
        return Denied(
            code=Code.CROSS_SITE,
            sentence="Another site asked for this connection, so it was not made.",
            remedy="Use Tower's own page or the CLI.",
        )
    offered = [word.strip() for word in socket.scope.get("subprotocols", [])]
    tickets = [word.removeprefix(TICKET_PREFIX) for word in offered if word.startswith(TICKET_PREFIX)]
    if PROTOCOL not in offered or len(tickets) != 1:
        return Denied(
            code=Code.TICKET_INVALID,
            sentence=f"This connection needs the subprotocols {PROTOCOL} and {TICKET_PREFIX}<ticket>, one of each.",
            remedy=f"Get a ticket first: POST /api/v1/sessions/{sid[:10]}/tickets.",
        )
    try:
        return await service.join(tickets[0], sid, origin=origin)
    except Exception as error:  # noqa: BLE001 - a defect must not become a bare 500 on an upgrade; the words are ours
        log.error("defect", path="stream", error=type(error).__name__)
        return internal()


async def _greet(service: Service, socket: WebSocket, viewer: Viewer) -> None:
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            message = await _received(socket)
    except TimeoutError:
        raise _ViolationError(CLOSE_POLICY, "no_hello") from None
    hello = _parsed(_HELLO, message.get("text") or "", "no_hello")
    at = viewer.resume(hello.offset)
    await viewer.resize(hello.cols, hello.rows, redraw=hello.offset is not None)
    await socket.send_json(
        {"type": "hello", "sid": viewer.sid, "role": viewer.role, "offset": at, **await _shell(service, viewer)}
    )


async def _shell(service: Service, viewer: Viewer) -> dict[str, str | int | None]:
    """Which shell this is and when its session's time is over."""
    session = await service.seen_by(viewer)
    if isinstance(session, Denied):
        raise _ViolationError(CLOSE_RETRY, session.code.value)
    shell, ends = session.shell, session.hard_stop_at
    return {
        "shell": shell.number if shell else 0,
        "pod": shell.pod if shell else "",
        "hard_stop_at": ends.isoformat() if ends else None,
    }


async def _carry(socket: WebSocket, viewer: Viewer) -> None:
    """Three pumps; the first to finish ends the others."""
    typed = _Typed()
    pumps = [
        asyncio.create_task(_outward(socket, viewer)),
        asyncio.create_task(_inward(socket, viewer, typed)),
        asyncio.create_task(_type(socket, viewer, typed)),
    ]
    try:
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
    for pump in done:
        pump.result()


class _Typed:
    """Input read and not yet taken by the shell.

    The socket is read always, however slow the shell is: acknowledgements and pongs come the same way as input, and output
    waits for them. So a viewer must not run ahead: we say how much the shell took (`taken`), and close on `AHEAD` bytes.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | ResizeFrame] = asyncio.Queue()
        self._ahead = 0

    def put(self, item: bytes | ResizeFrame) -> None:
        self._ahead += _cost(item)
        if self._ahead > AHEAD:
            raise _ViolationError(CLOSE_TOO_BIG, "too_far_ahead")
        self._queue.put_nowait(item)

    async def get(self) -> bytes | ResizeFrame:
        return await self._queue.get()

    def taken(self, item: bytes | ResizeFrame) -> None:
        self._ahead -= _cost(item)


def _cost(item: bytes | ResizeFrame) -> int:
    return 64 + (len(item) if isinstance(item, bytes) else 0)


async def _outward(socket: WebSocket, viewer: Viewer) -> None:
    async for frame in viewer.frames():
        await _send(socket, frame)
        if isinstance(frame, Ended):
            await _close(socket, CLOSE_ENDED, "ended")
            return


async def _send(socket: WebSocket, frame: ViewerFrame) -> None:
    match frame:
        case Output(offset=offset, data=data):
            await socket.send_bytes(offset.to_bytes(8, "big") + data)
        case Told(kind=kind, sentence=sentence, fields=fields):
            await socket.send_json({**fields, "type": "notice", "kind": kind, "sentence": sentence})
        case Ended(reason=reason, sentence=sentence, session_open=session_open):
            await socket.send_json({"type": "ended", "reason": reason, "sentence": sentence, "session_open": session_open})
        case _:
            assert_never(frame)


async def _inward(socket: WebSocket, viewer: Viewer, typed: _Typed) -> None:
    while True:
        message = await _received(socket)
        data = message.get("bytes")
        if data is None:
            _control(viewer, message.get("text") or "", typed)
        elif viewer.role != "drive":
            raise _ViolationError(CLOSE_POLICY, "read_only")
        elif len(data) > INPUT_MAX:
            raise _ViolationError(CLOSE_TOO_BIG, "too_big")
        elif data:
            typed.put(data)


async def _type(socket: WebSocket, viewer: Viewer, typed: _Typed) -> None:
    total = told = 0
    while True:
        item = await typed.get()
        match item:
            case ResizeFrame(cols=cols, rows=rows):
                await viewer.resize(cols, rows)
            case data:
                await viewer.input(data)
                total += len(data)
        typed.taken(item)
        if total - told >= TAKEN_EVERY:
            told = total
            await socket.send_json({"type": "taken", "bytes": total})


def _control(viewer: Viewer, text: str, typed: _Typed) -> None:
    frame = _parsed(_CONTROL, text, "bad_frame")
    match frame:
        case ResizeFrame():
            typed.put(frame)
        case AckFrame(offset=offset):
            viewer.acknowledge(offset)
        case _:
            assert_never(frame)


async def _received(socket: WebSocket) -> Message:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    return message


def _parsed(adapter: TypeAdapter[T], text: str, word: str) -> T:
    if len(text) > TEXT_MAX:
        raise _ViolationError(CLOSE_TOO_BIG, "too_big")
    try:
        return adapter.validate_json(text)
    except ValidationError:
        raise _ViolationError(CLOSE_POLICY, word) from None


async def _close(socket: WebSocket, code: int, word: str) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(code, word)
