"""The WebSocket, over a real socket: refused in HTTP, byte-exact once upgraded, closed on the first broken rule."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx2
import pytest
import wsproto.events
from httpx2.websockets import AsyncWebSocketSession, WebSocketDisconnect

from breakglass.core.model import EndReason, Sid
from breakglass.live import WINDOW_BYTES
from breakglass.web.stream import AHEAD, INPUT_MAX
from tests.simulators.service import ASK, SimulatedService
from tests.simulators.tower import ListeningTower, listening


@pytest.fixture
async def tower() -> AsyncIterator[ListeningTower]:
    async with listening(SimulatedService()) as running:
        yield running


@pytest.fixture
async def ana(tower: ListeningTower) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=tower.url, headers={"Authorization": "Bearer token-ana"}) as client:
        yield client


@pytest.fixture
async def sid(tower: ListeningTower, ana: httpx2.AsyncClient) -> Sid:
    return await _opened(ana)


async def _opened(ana: httpx2.AsyncClient) -> Sid:
    session = (await ana.post("/api/v1/sessions", json=ASK)).json()
    ben = {"Authorization": "Bearer token-ben"}
    await ana.post(f"/api/v1/sessions/{session['sid']}/approve", json={"request_digest": session["request_digest"]}, headers=ben)
    assert (await ana.post(f"/api/v1/sessions/{session['sid']}/open", json={})).json()["state"] == "active"
    return Sid(session["sid"])


async def _ticket(ana: httpx2.AsyncClient, sid: str, *, role: str = "drive", origin: str | None = None) -> str:
    headers = {"Origin": origin} if origin else {}
    answer = await ana.post(f"/api/v1/sessions/{sid}/tickets", json={"role": role}, headers=headers)
    assert answer.status_code == 201, answer.text
    ticket: str = answer.json()["ticket"]
    return ticket


async def _upgrade(ana: httpx2.AsyncClient, sid: str, protocols: list[str], **headers: str) -> httpx2.Response:
    """The bare handshake, to see what is said before there is a WebSocket."""
    return await ana.get(
        f"/api/v1/sessions/{sid}/stream",
        headers={
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version": "13",
            **({"Sec-WebSocket-Protocol": ", ".join(protocols)} if protocols else {}),
            **headers,
        },
    )


@contextlib.asynccontextmanager
async def _joined(
    ana: httpx2.AsyncClient, sid: str, *, role: str = "drive", offset: int | None = None
) -> AsyncIterator[AsyncWebSocketSession]:
    ticket = await _ticket(ana, sid, role=role)
    async with ana.websocket(
        f"/api/v1/sessions/{sid}/stream",
        subprotocols=["tower.v1", f"tower.ticket.{ticket}"],
        max_message_size_bytes=1 << 20,
        keepalive_ping_interval_seconds=None,
    ) as socket:
        assert socket.subprotocol == "tower.v1"
        await socket.send_json({"type": "hello", "cols": 80, "rows": 24, "offset": offset})
        yield socket


async def _hello(socket: AsyncWebSocketSession) -> dict[str, object]:
    word: dict[str, object] = json.loads(await socket.receive_text(5))
    assert word["type"] == "hello"
    return word


async def _output(socket: AsyncWebSocketSession, until: bytes) -> tuple[int, bytes]:
    """Offset of the first byte and everything up to `until`; frames follow each other without a hole."""
    begin, seen = -1, b""
    while until not in seen:
        event = await socket.receive(5)
        if not isinstance(event, wsproto.events.BytesMessage):
            continue
        offset = int.from_bytes(event.data[:8], "big")
        begin = offset if begin < 0 else begin
        assert offset == begin + len(seen)
        seen += bytes(event.data[8:])
    return begin, seen


async def _closed(socket: AsyncWebSocketSession) -> WebSocketDisconnect:
    async def drain() -> None:
        while True:
            await socket.receive(5)

    with pytest.raises(WebSocketDisconnect) as caught:
        await drain()
    return caught.value


# --- before the upgrade -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocols",
    [[], ["tower.v1"], ["tower.ticket.00"], ["tower.v2", "tower.ticket.00"], ["tower.v1", "tower.ticket.0", "tower.ticket.1"]],
)
async def test_without_protocol_and_ticket_the_refusal_is_plain_http(
    ana: httpx2.AsyncClient, sid: Sid, protocols: list[str]
) -> None:
    answer = await _upgrade(ana, sid, protocols)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "ticket_invalid")
    assert answer.headers["content-type"] == "application/json"
    assert "upgrade" not in answer.headers


async def test_a_guessed_ticket_is_refused_before_the_upgrade(ana: httpx2.AsyncClient, sid: Sid) -> None:
    answer = await _upgrade(ana, sid, ["tower.v1", "tower.ticket." + "0" * 32])
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "ticket_invalid")


async def test_a_ticket_works_once(ana: httpx2.AsyncClient, sid: Sid) -> None:
    ticket = await _ticket(ana, sid)
    async with ana.websocket(f"/api/v1/sessions/{sid}/stream", subprotocols=["tower.v1", f"tower.ticket.{ticket}"]):
        again = await _upgrade(ana, sid, ["tower.v1", f"tower.ticket.{ticket}"])
    assert (again.status_code, again.json()["error"]["code"]) == (403, "ticket_invalid")


async def test_a_ticket_of_another_session_opens_nothing(ana: httpx2.AsyncClient, sid: Sid) -> None:
    ticket = await _ticket(ana, sid)
    answer = await _upgrade(ana, "abcdefghij", ["tower.v1", f"tower.ticket.{ticket}"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "ticket_invalid")


async def test_a_page_of_another_origin_is_refused_and_the_ticket_stays(ana: httpx2.AsyncClient, sid: Sid) -> None:
    ticket = await _ticket(ana, sid)
    answer = await _upgrade(ana, sid, ["tower.v1", f"tower.ticket.{ticket}"], Origin="https://evil.example")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")


async def test_a_ticket_for_one_origin_is_no_ticket_for_another(ana: httpx2.AsyncClient, sid: Sid) -> None:
    ticket = await _ticket(ana, sid, origin="https://tower.example")
    answer = await _upgrade(ana, sid, ["tower.v1", f"tower.ticket.{ticket}"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "ticket_invalid")


async def test_a_ticket_in_the_url_is_not_looked_at(ana: httpx2.AsyncClient, sid: Sid) -> None:
    ticket = await _ticket(ana, sid)
    answer = await _upgrade(ana, f"{sid}/stream?ticket={ticket}#", ["tower.v1"])
    assert answer.status_code in {403, 404}


# --- the bytes --------------------------------------------------------------------------------------------------------


async def test_a_first_viewer_sees_the_prompt_that_was_there_before_it_came(ana: httpx2.AsyncClient, sid: Sid) -> None:
    async with _joined(ana, sid) as socket:
        hello = await _hello(socket)
        assert (hello["sid"], hello["role"], hello["offset"], hello["shell"], hello["pod"]) == (sid, "drive", 0, 1, "checkout-1")
        assert await _output(socket, b"$ ") == (0, b"$ ")


async def test_what_is_typed_reaches_the_shell_byte_for_byte_and_its_size_first(
    tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid
) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await socket.send_bytes(bytes(range(5, 256)) + b"\n")
        await _output(socket, b"\xff")
        await socket.send_json({"type": "resize", "cols": 132, "rows": 50})
        await socket.send_bytes(b"x\n")
        await _output(socket, b"x\r\n$ ")
    assert bytes(tower.service.typed) == bytes(range(5, 256)) + b"\nx\n"
    assert tower.service.sizes == [(80, 24), (132, 50)]


async def test_a_reconnecting_viewer_goes_on_at_the_exact_byte(tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await socket.send_bytes(b"one\n")
        begin, seen = await _output(socket, b"one\r\n$ ")
    tower.service.lives[sid].show(b"shown while nobody looked")
    async with _joined(ana, sid, offset=begin + len(seen)) as socket:
        assert (await _hello(socket))["offset"] == begin + len(seen)
        assert await _output(socket, b"looked") == (begin + len(seen), b"shown while nobody looked")


async def test_a_viewer_that_does_not_acknowledge_is_given_no_more_than_the_window(
    tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid
) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await _output(socket, b"$ ")
        await socket.send_bytes(b"flood 80\n")
        got, last = 0, 0
        with contextlib.suppress(TimeoutError):
            while True:
                event = await socket.receive(0.5)
                if isinstance(event, wsproto.events.BytesMessage):
                    assert len(event.data) <= (64 << 10) + 8
                    got += len(event.data) - 8
                    last = int.from_bytes(event.data[:8], "big") + len(event.data) - 8
        assert WINDOW_BYTES - (64 << 10) <= got <= WINDOW_BYTES + (64 << 10)
        behind = tower.service.lives[sid].ring.end - last
        assert behind < 4 * (64 << 10), "the shell itself was held back"
        await socket.send_json({"type": "ack", "offset": last})
        event = await socket.receive(5)
        assert isinstance(event, wsproto.events.BytesMessage)
        assert int.from_bytes(event.data[:8], "big") == last


async def test_a_slow_shell_does_not_make_the_server_deaf_to_acknowledgements(
    tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid
) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        _, seen = await _output(socket, b"$ ")
        tower.service.reading.clear()
        for _ in range(40):
            await socket.send_bytes(b"x" * 16_384)
        await socket.send_json({"type": "ack", "offset": len(seen)})
        viewer = tower.service.lives[sid].driver
        assert viewer is not None
        async with asyncio.timeout(5):
            while viewer.unacknowledged:
                await asyncio.sleep(0.01)


async def test_the_server_says_how_much_the_shell_took(ana: httpx2.AsyncClient, sid: Sid) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await socket.send_bytes(b"y" * 40_000)
        async with asyncio.timeout(5):
            while True:
                event = await socket.receive(5)
                if isinstance(event, wsproto.events.TextMessage):
                    assert json.loads(event.data) == {"type": "taken", "bytes": 40_000}
                    return


async def test_a_flood_of_input_ahead_of_the_shell_is_cut_off(tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        tower.service.reading.clear()
        sent = 0
        with contextlib.suppress(Exception):
            while sent < 4 * AHEAD:
                await socket.send_bytes(b"z" * INPUT_MAX)
                sent += INPUT_MAX
        closed = await _closed(socket)
    assert (closed.code, closed.reason) == (1009, "too_far_ahead")


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_the_last_word_says_why_and_the_close_says_do_not_reconnect(
    tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid
) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await _output(socket, b"$ ")
        tower.service.finish(sid, EndReason.IDLE, None)
        word = json.loads(await socket.receive_text(5))
        assert word == {"type": "ended", "reason": "idle", "sentence": "Ten minutes without a keystroke.", "session_open": False}
        closed = await _closed(socket)
    assert (closed.code, closed.reason) == (4000, "ended")


async def test_a_warning_reaches_the_person_as_words_beside_the_output(ana: httpx2.AsyncClient, sid: Sid) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await socket.send_bytes(b"warn\n")
        while not isinstance(event := await socket.receive(5), wsproto.events.TextMessage):
            pass
        assert json.loads(event.data) == {"type": "notice", "kind": "time", "sentence": "Ten minutes are left."}


async def test_a_viewer_that_goes_is_noticed_at_once_even_when_the_shell_does_not_read(
    tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid
) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        tower.service.reading.clear()
        for _ in range(30):
            await socket.send_bytes(b"x" * 1000)
        assert tower.service.lives[sid].driver is not None
    async with asyncio.timeout(5):
        while tower.service.lives[sid].driver is not None:
            await asyncio.sleep(0.01)


# --- broken rules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "code", "word"),
    [
        ("{", 1008, "bad_frame"),
        ('{"type":"resize","cols":0,"rows":24}', 1008, "bad_frame"),
        ('{"type":"resize","cols":80,"rows":24,"shell":2}', 1008, "bad_frame"),
        ('{"type":"ack","offset":-1}', 1008, "bad_frame"),
        ('{"type":"ack","offset":"1"}', 1008, "bad_frame"),
        ('{"type":"exec","command":"id"}', 1008, "bad_frame"),
        ('{"type":"hello","cols":80,"rows":24}', 1008, "bad_frame"),
        ("[" * 3000, 1008, "bad_frame"),
        (" " * 5000, 1009, "too_big"),
        (b"x" * (INPUT_MAX + 1), 1009, "too_big"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_frame_that_is_none_of_ours_closes_the_connection_with_a_word(
    ana: httpx2.AsyncClient, sid: Sid, frame: str | bytes, code: int, word: str
) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await (socket.send_text(frame) if isinstance(frame, str) else socket.send_bytes(frame))
        closed = await _closed(socket)
    assert (closed.code, closed.reason) == (code, word)


async def test_a_message_far_over_the_limit_is_refused_by_the_protocol_itself(ana: httpx2.AsyncClient, sid: Sid) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await socket.send_bytes(b"x" * (200 << 10))
        assert (await _closed(socket)).code == 1009


@pytest.mark.parametrize("first", ['{"type":"ack","offset":1}', "x", b"ls\n"], ids=repr)
async def test_nothing_happens_before_hello(tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid, first: str | bytes) -> None:
    ticket = await _ticket(ana, sid)
    async with ana.websocket(f"/api/v1/sessions/{sid}/stream", subprotocols=["tower.v1", f"tower.ticket.{ticket}"]) as socket:
        await (socket.send_text(first) if isinstance(first, str) else socket.send_bytes(first))
        closed = await _closed(socket)
    assert (closed.code, closed.reason) == (1008, "no_hello")
    assert bytes(tower.service.typed) == b""


async def test_a_watcher_cannot_type(tower: ListeningTower, ana: httpx2.AsyncClient, sid: Sid) -> None:
    async with _joined(ana, sid, role="watch") as socket:
        assert (await _hello(socket))["role"] == "watch"
        await socket.send_bytes(b"rm -rf /\n")
        closed = await _closed(socket)
    assert (closed.code, closed.reason) == (1008, "read_only")
    assert bytes(tower.service.typed) == b""


async def test_the_server_answers_a_viewers_pings(ana: httpx2.AsyncClient, sid: Sid) -> None:
    async with _joined(ana, sid) as socket:
        await _hello(socket)
        await _output(socket, b"$ ")
        pong = await socket.ping()
        async with asyncio.timeout(5):
            await pong.wait()


async def test_a_viewer_whose_machine_fell_asleep_is_noticed_by_its_missing_pong() -> None:
    async with (
        listening(SimulatedService(), ping=(0.1, 0.2)) as tower,
        httpx2.AsyncClient(base_url=tower.url, headers={"Authorization": "Bearer token-ana"}) as client,
    ):
        sid = await _opened(client)
        async with _joined(client, sid) as socket:
            await _hello(socket)  # and read nothing more: this client library answers pings only while it is read
            async with asyncio.timeout(5):
                while tower.service.lives[sid].driver is not None:
                    await asyncio.sleep(0.01)
