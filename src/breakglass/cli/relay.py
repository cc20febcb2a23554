"""One person in one shell: keys out, output in, acknowledged as it is painted; reconnects by itself, byte-exact, for two minutes.

Must never: paint a byte twice or out of order, send a typed byte twice, or go on after the server said the shell ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpcore2
import wsproto.events
import wsproto.utilities
from httpx2.websockets import AsyncWebSocketSession, HTTPXWSException, WebSocketDisconnect

from breakglass.cli.client import Client, Refused, UnreachableError
from breakglass.cli.escapes import HELP, Escape, Escapes
from breakglass.cli.rawtty import Screen
from breakglass.cli.say import voice

RECONNECT_SECONDS = 120.0
"""Tower keeps a shell without a viewer for two minutes; trying longer would be a lie."""
PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)
ACK_BYTES = 64 << 10
INPUT_WINDOW = 256 << 10
"""Typed bytes the shell has not taken yet, at most; Tower says how far it is (`taken`)."""
HELLO_SECONDS = 15.0
END_OF_FILE = b"\x04"
INTERRUPT = b"\x03"

_TROUBLE = (HTTPXWSException, wsproto.utilities.ProtocolError, httpcore2.NetworkError, httpcore2.TimeoutException, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The shell ended, in Tower's words; `session_open` when the session has time for another one."""

    reason: str
    sentence: str
    session_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The person left; the session goes on for two minutes without a viewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No connection for two minutes, or the server will not have us back (`refused`)."""

    why: str
    refused: Refused | None = None


Outcome = Over | Left | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """One connection ended without a last word; try again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What the server says of the shell when we join."""

    offset: int
    shell: int
    pod: str
    hard_stop_at: datetime | None


class _Resized:
    """The terminal has a new size: ask for it when it is sent."""


class Relay:
    """One session's shells as this CLI sees them. `run` once per shell; the output offset goes on from shell to shell."""

    def __init__(
        self, client: Client, sid: str, screen: Screen, *, joined: Callable[[Hello], Awaitable[None]], end_on_eof: bool = False
    ) -> None:
        self._client, self._sid, self._screen = client, sid, screen
        self._joined, self._end_on_eof = joined, end_on_eof
        self._escapes = Escapes()
        self._keys: asyncio.Queue[bytes | _Resized] = asyncio.Queue(4096 if screen.interactive else 16)
        self._painting: asyncio.Queue[tuple[int, bytes] | str] = asyncio.Queue()
        self._socket: AsyncWebSocketSession | None = None
        self._leaving = asyncio.Event()
        self._room = asyncio.Event()
        self._next: int | None = None
        self._acknowledged = 0
        self._sent = self._taken = 0
        self._broken = False
        self._hello: Hello | None = None

    async def run(self) -> Outcome:
        """Until the shell ends, the person leaves, or the connection is lost for good."""
        self._screen.resized = lambda: self._offer(_Resized())
        self._hello, self._broken = None, False
        helpers = [asyncio.create_task(self._keyboard()), asyncio.create_task(self._paint())]
        staying, leaving = asyncio.create_task(self._stay()), asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait({staying, leaving, *helpers[1:]}, return_when=asyncio.FIRST_COMPLETED)
            if helpers[1].done():
                helpers[1].result()  # the screen is gone: say why
            return staying.result() if staying.done() else Left()
        finally:
            self._screen.resized = lambda: None
            for task in (staying, leaving, *helpers):
                task.cancel()
            await asyncio.gather(staying, leaving, *helpers, return_exceptions=True)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _stay(self) -> Outcome:
        """Connect; when that breaks, connect again and go on from the first byte not received."""
        lost_at: float | None = None
        tries = 0
        while True:
            before = self._hello
            try:
                got = await self._once()
            except UnreachableError as error:
                got = _Broken(why=str(error))
            if not isinstance(got, _Broken):
                return got
            now = asyncio.get_running_loop().time()
            self._broken = True
            if lost_at is None or self._hello is not before:
                lost_at, tries = now, 0
                await self._screen.line(f"connection lost ({got.why}), reconnecting; what you type now is dropped, ~. leaves")
            if now - lost_at > RECONNECT_SECONDS:
                return Lost(why=got.why)
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    async def _once(self) -> Outcome | _Broken:
        """One ticket, one WebSocket."""
        ticket = await self._client.post(f"/sessions/{self._sid}/tickets", {"role": "drive"}, seconds=15)
        if isinstance(ticket, Refused):
            return _not_now(ticket)
        try:
            async with self._client.stream(self._sid, ticket["ticket"]) as socket:
                return _not_now(socket) if isinstance(socket, Refused) else await self._talk(socket)
        except ExceptionGroup as group:
            if group.split(_TROUBLE)[1] is not None:
                raise
            return _Broken(why="the connection broke")

    async def _talk(self, socket: AsyncWebSocketSession) -> Over | _Broken:
        """Hello both ways, then until the last word."""
        try:
            await self._greet(socket)
        except (*_TROUBLE, TimeoutError, ValueError):
            return _Broken(why="no hello")
        sending = asyncio.create_task(self._send(socket))
        try:
            while True:
                event = await socket.receive()
                if isinstance(event, wsproto.events.BytesMessage):
                    self._output(bytes(event.data))
                elif isinstance(event, wsproto.events.TextMessage) and (over := self._word(event.data)) is not None:
                    await self._painting.join()
                    return over
        except WebSocketDisconnect as closed:
            return _Broken(why=f"closed with {closed.code} {closed.reason}".strip())
        except (*_TROUBLE, ValueError):
            return _Broken(why="the connection broke")
        finally:
            self._socket = None
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _greet(self, socket: AsyncWebSocketSession) -> None:
        cols, rows = self._screen.size()
        await socket.send_json({"type": "hello", "cols": cols, "rows": rows, "offset": self._next})
        word = json.loads(await socket.receive_text(HELLO_SECONDS))
        ends = word.get("hard_stop_at")
        hello = Hello(
            offset=int(word["offset"]),
            shell=int(word["shell"]),
            pod=str(word["pod"]),
            hard_stop_at=datetime.fromisoformat(ends) if ends else None,
        )
        first = self._hello is None
        if self._next is None:
            self._next = self._acknowledged = hello.offset
        self._hello = hello
        self._sent = self._taken = 0
        if first:
            await self._joined(hello)
        else:
            await self._screen.line("connected again")
            while self._screen.interactive and not self._keys.empty():
                self._keys.get_nowait()  # typed before the break was noticed; the screen it was meant for is gone
        self._broken = False
        self._socket = socket

    async def _send(self, socket: AsyncWebSocketSession) -> None:
        """Keys in order, never more ahead of the shell than the window."""
        while True:
            key = await self._keys.get()
            if isinstance(key, _Resized):
                cols, rows = self._screen.size()
                await socket.send_json({"type": "resize", "cols": cols, "rows": rows})
                continue
            while self._sent - self._taken >= INPUT_WINDOW:
                self._room.clear()
                await self._room.wait()
            self._sent += len(key)
            await socket.send_bytes(key)

    # --- what comes ---------------------------------------------------------------------------------------------------

    def _output(self, frame: bytes) -> None:
        """8 bytes of offset, then output; what was received before a reconnect is not painted again."""
        if len(frame) < 8:
            raise ValueError("a frame without an offset")
        offset, data = int.from_bytes(frame[:8], "big"), frame[8:]
        known = (self._next or 0) - offset
        if known > 0:
            offset, data = offset + known, data[known:]
        if data:
            self._next = offset + len(data)
            self._painting.put_nowait((offset, data))

    def _word(self, text: str) -> Over | None:
        word: dict[str, Any] = json.loads(text)
        match word.get("type"):
            case "notice":
                self._painting.put_nowait(voice(str(word.get("sentence", ""))))
            case "taken":
                self._taken = int(word["bytes"])
                self._room.set()
            case "ended":
                return Over(reason=str(word["reason"]), sentence=str(word["sentence"]), session_open=word["session_open"] is True)
            case _:
                pass  # a newer server's word; an old CLI goes on
        return None

    async def _paint(self) -> None:
        """Everything that comes, in its order, then acknowledged."""
        while True:
            item = await self._painting.get()
            try:
                if isinstance(item, str):
                    await self._screen.line(item)
                    continue
                offset, data = item
                await self._screen.write(data)
                await self._painted(offset + len(data))
            finally:
                self._painting.task_done()

    async def _painted(self, until: int) -> None:
        if self._socket is not None and until - self._acknowledged >= ACK_BYTES:
            self._acknowledged = until
            with contextlib.suppress(*_TROUBLE):
                await self._socket.send_json({"type": "ack", "offset": until})

    # --- what is typed ------------------------------------------------------------------------------------------------

    async def _keyboard(self) -> None:
        last = b"\n"
        while data := await self._screen.read():
            last = data[-1:]
            if not self._screen.interactive:
                await self._keys.put(data)
                continue
            for part in self._escapes.feed(data):
                if isinstance(part, Escape):
                    await self._escape(part)
                elif not self._broken:
                    self._offer(part)
                elif INTERRUPT in part:
                    self._leaving.set()
        if self._screen.interactive:
            self._leaving.set()  # the terminal hung up
        elif self._end_on_eof:
            await self._keys.put(END_OF_FILE if last == b"\n" else END_OF_FILE * 2)

    def _offer(self, key: bytes | _Resized) -> None:
        """Queue what a hand did; more than 4096 waiting means nobody takes them, and dropping beats being deaf to `~.`."""
        with contextlib.suppress(asyncio.QueueFull):
            self._keys.put_nowait(key)

    async def _escape(self, escape: Escape) -> None:
        match escape:
            case Escape.HELP:
                for words in HELP:
                    await self._screen.line(words)
            case Escape.TIME:
                await self._screen.line(self._time_left())
            case Escape.END:
                await self._screen.line(f"ending session {self._sid}")
                await self._end()
            case Escape.LEAVE:
                self._leaving.set()

    def _time_left(self) -> str:
        ends = self._hello.hard_stop_at if self._hello else None
        if ends is None:
            return "the session's end is not known yet"
        left = max(0, int((ends - self._client.now()).total_seconds()))
        return f"{left // 60} min {left % 60:02d} s left, until {ends.astimezone():%H:%M}"

    async def _end(self) -> None:
        try:
            answer = await self._client.post(f"/sessions/{self._sid}/end")
        except UnreachableError as error:
            await self._screen.line(f"not ended: {error}")
            return
        if isinstance(answer, Refused):
            await self._screen.line(f"not ended: {voice(answer.sentence)}")


def _not_now(refused: Refused) -> Lost | _Broken:
    """A server in trouble or a ticket that was too old: again. Everything else is an answer."""
    if refused.status >= 500 or refused.code == "ticket_invalid":
        return _Broken(why=voice(refused.sentence))
    return Lost(why=voice(refused.sentence), refused=refused)
