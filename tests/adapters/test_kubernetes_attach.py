"""What the attached stream makes of a server that floods, stalls, lies or goes silent: every byte in order, or an error."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from breakglass.adapters.kubernetes_attach import KubernetesAttach
from breakglass.core.channel import SUBPROTOCOL
from breakglass.ports import AttachStream, PortError, Trouble
from tests.adapters.portal import enter, portal
from tests.simulators.wire import Asked, Wire, frame, message, served, upgraded


def attached(folder: Path, wire: Wire, **seconds: float):
    return KubernetesAttach(portal(wire, folder), **seconds).attach("checkout", "p", "debug-abcdefghij-1")


def script(*messages: bytes, subprotocol: str | None = SUBPROTOCOL):
    """Open the WebSocket, send these, then wait for the client to leave."""

    async def reply(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(upgraded(asked, subprotocol) + b"".join(messages))
        await writer.drain()
        await reader.read()

    return reply


HELLO = message(b"\x01")


async def test_the_attach_asks_for_stdin_and_stdout_and_nothing_else(tmp_path) -> None:
    async with served(tmp_path, script(HELLO, message(b"\x01abc"))) as wire:
        async with attached(tmp_path, wire) as stream:
            assert await stream.read() == b"abc"
        assert wire.asked[0].target == (
            "/api/v1/namespaces/checkout/pods/p/attach?container=debug-abcdefghij-1&stdin=true&stdout=true&stderr=false&tty=false"
        )
        assert wire.asked[0].headers["sec-websocket-protocol"] == SUBPROTOCOL
        assert "sec-websocket-extensions" not in wire.asked[0].headers


@pytest.mark.parametrize("chosen", [None, "v4.channel.k8s.io"])
async def test_a_server_that_does_not_choose_v5_is_left(tmp_path, chosen) -> None:
    async with served(tmp_path, script(HELLO, subprotocol=chosen)) as wire:
        with pytest.raises(PortError) as caught:
            await enter(portal(wire, tmp_path))
        assert caught.value.trouble is Trouble.FATAL


@pytest.mark.parametrize("wrong", [message(b""), message(b"\x02oops"), message(b"\x00in"), message(b"\x09x"), message(b"\x03{}")])
async def test_what_is_not_the_protocol_is_not_passed_on(tmp_path, wrong) -> None:
    lies = script(HELLO, message(b"\x01good"), wrong, message(b"\x01bad"))
    async with served(tmp_path, lies) as wire, attached(tmp_path, wire) as stream:
        assert await stream.read() == b"good"
        with pytest.raises(PortError) as caught:
            await stream.read()
        assert caught.value.trouble is Trouble.FATAL


async def test_a_message_beyond_the_limit_breaks_the_stream(tmp_path) -> None:
    async with (
        served(tmp_path, script(HELLO, message(b"\x01" + bytes(1 << 20)))) as wire,
        attached(tmp_path, wire, ping_seconds=0.1) as stream,
    ):
        with pytest.raises(PortError) as caught:
            await stream.read()
        assert caught.value.trouble is Trouble.TRANSIENT


async def test_a_status_ends_the_stream_and_is_kept(tmp_path) -> None:
    last = b'\x03{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}'
    async with served(tmp_path, script(HELLO, message(b"\x01x"), message(last))) as wire, attached(tmp_path, wire) as stream:
        assert [await stream.read() for _ in range(3)] == [b"x", b"", b""]
        assert stream.status is not None
        assert stream.status.exit_code == 7


async def test_a_stream_that_fails_is_not_one_that_ended(tmp_path) -> None:
    last = b'\x03{"status":"Failure","message":"error dialing\\nbackend"}'
    async with served(tmp_path, script(HELLO, message(last))) as wire, attached(tmp_path, wire) as stream:
        with pytest.raises(PortError, match="error dialing backend") as caught:
            await stream.read()
        assert caught.value.trouble is Trouble.TRANSIENT
    async with served(tmp_path, script(message(last))) as wire:
        with pytest.raises(PortError, match="error dialing backend"):
            await enter(portal(wire, tmp_path))


async def test_a_connection_cut_without_a_status_is_not_an_end(tmp_path) -> None:
    async def cut(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(upgraded(asked, SUBPROTOCOL) + HELLO + message(b"\x01last"))
        await writer.drain()
        await frame(reader)
        raise EOFError

    async with served(tmp_path, cut) as wire, attached(tmp_path, wire) as stream:
        assert await stream.read() == b"last"
        await stream.write(b"x")
        with pytest.raises(PortError) as caught:
            await stream.read()
        assert caught.value.trouble is Trouble.TRANSIENT


async def test_input_arrives_whole_and_in_order_however_large(tmp_path) -> None:
    sent = bytes(range(256)) * 2000
    got = bytearray()

    async def sink(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(upgraded(asked, SUBPROTOCOL) + HELLO)
        while len(got) < len(sent):
            opcode, payload = await frame(reader)
            assert (opcode, payload[:1]) == (2, b"\x00")
            got.extend(payload[1:])
        writer.write(message(b"\x01done"))
        await reader.read()

    async with served(tmp_path, sink) as wire, attached(tmp_path, wire) as stream:
        await stream.write(sent)
        assert await stream.read() == b"done"
        assert bytes(got) == sent


async def test_a_writer_waits_for_a_peer_that_does_not_read(tmp_path) -> None:
    async with served(tmp_path, deaf) as wire, attached(tmp_path, wire) as stream:
        written = [0]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(write_on(stream, written), 1)
        assert written[0] < 32 << 20


async def write_on(stream: AttachStream, written: list[int]) -> None:
    while True:
        await stream.write(bytes(1 << 16))
        written[0] += 1 << 16


async def deaf(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Open, and never read again."""
    writer.write(upgraded(asked, SUBPROTOCOL) + HELLO)
    await writer.drain()
    await asyncio.Event().wait()


class Flood:
    """A server that sends 32 KiB messages as fast as it may; `sent` counts them."""

    def __init__(self, total: int) -> None:
        self.total, self.sent, self.digest = total, 0, hashlib.sha256()

    async def __call__(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(upgraded(asked, SUBPROTOCOL) + HELLO)
        for number in range(self.total):
            data = number.to_bytes(4, "big") * 8191
            writer.write(message(b"\x01" + data))
            await writer.drain()
            self.digest.update(data)
            self.sent += 1
        writer.write(message(b'\x03{"status":"Success"}') + message((1000).to_bytes(2, "big"), 8))
        await reader.read()


async def test_a_reader_that_stalls_stops_the_sender_and_then_gets_every_byte(tmp_path) -> None:
    flood = Flood(2000)
    async with served(tmp_path, flood) as wire, attached(tmp_path, wire, ping_seconds=0.05, pong_seconds=0.2) as stream:
        got = hashlib.sha256(await stream.read())
        stalled = -1
        while stalled != flood.sent:  # until nothing moves any more, longer than a lost pong would be put up with
            stalled = flood.sent
            await asyncio.sleep(0.5)
        assert stalled < 1000
        while data := await stream.read():
            got.update(data)
        assert got.digest() == flood.digest.digest()


async def test_leaving_closes_the_socket_under_a_flood(tmp_path) -> None:
    flood = Flood(1 << 30)
    async with served(tmp_path, flood) as wire:
        async with attached(tmp_path, wire) as stream:
            await stream.read()
        async with asyncio.timeout(5):
            await wire.closed.wait()


async def test_a_peer_that_gives_no_sign_of_life_breaks_the_stream(tmp_path) -> None:
    async with served(tmp_path, deaf) as wire, attached(tmp_path, wire, ping_seconds=0.05, pong_seconds=0.2) as stream:
        with pytest.raises(PortError, match="no sign of life") as caught:
            await stream.read()
        assert caught.value.trouble is Trouble.TRANSIENT


async def test_a_quiet_peer_that_answers_pings_is_waited_for(tmp_path) -> None:
    async def quiet(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(upgraded(asked, SUBPROTOCOL) + HELLO)
        for _ in range(10):
            opcode, payload = await frame(reader)
            assert opcode == 9
            writer.write(message(payload, 10))
        writer.write(message(b"\x01at last"))
        await reader.read()

    async with served(tmp_path, quiet) as wire, attached(tmp_path, wire, ping_seconds=0.05, pong_seconds=0.2) as stream:
        assert await stream.read() == b"at last"
