"""What the cluster adapter makes of an API server that refuses, lies, stalls, dies or redirects; its credential stays with it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from breakglass.adapters.kubernetes import KubernetesFacts, KubernetesGrants, KubernetesWorkloads
from breakglass.adapters.kubernetes_api import Api, Endpoint, TokenFile, endpoint
from breakglass.adapters.kubernetes_attach import KubernetesAttach
from breakglass.core.channel import SUBPROTOCOL
from breakglass.core.model import Sid, Tier
from breakglass.ports import AttachStream, PortError, Trouble
from tests.simulators.wire import Asked, Wire, frame, message, no, served, status, upgraded

TOKEN = "the-portals-own-token"
SID = Sid("abcdefghij")
POD = {"metadata": {"name": "p", "namespace": "checkout", "uid": "u-1", "resourceVersion": "7"}, "spec": {}, "status": {}}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def portal(wire: Wire, folder: Path, **changes: object) -> Endpoint:
    (folder / "token").write_text(TOKEN + "\n")
    usual: dict[str, object] = {"cluster": "demo", "server": wire.url, "tls": wire.tls, "auth": TokenFile(folder / "token")}
    return Endpoint(**usual | changes)  # type: ignore[arg-type]


@asynccontextmanager
async def api(wire: Wire, folder: Path, **changes: object) -> AsyncIterator[Api]:
    made = Api(portal(wire, folder, **changes))
    try:
        yield made
    finally:
        await made.close()


def always(answer: bytes):
    async def reply(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    return reply


def facts(api: Api) -> KubernetesFacts:
    return KubernetesFacts(api, Tier.FLIGHT, lambda: datetime.now(UTC))


BINDING = {"metadata": {"name": "tower-breakglass-abcdefghij", "namespace": "checkout"}}


# --- what an answer means -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "read", "write"),
    [
        (301, Trouble.INVALID, Trouble.INVALID),
        (400, Trouble.INVALID, Trouble.INVALID),
        (401, Trouble.UNAUTHORIZED, Trouble.UNAUTHORIZED),
        (403, Trouble.FORBIDDEN, Trouble.FORBIDDEN),
        (409, Trouble.CONFLICT, Trouble.CONFLICT),
        (410, Trouble.TRANSIENT, Trouble.TRANSIENT),
        (422, Trouble.INVALID, Trouble.INVALID),
        (429, Trouble.TRANSIENT, Trouble.TRANSIENT),
        (500, Trouble.TRANSIENT, Trouble.UNKNOWN),
        (503, Trouble.TRANSIENT, Trouble.UNKNOWN),
        (504, Trouble.TRANSIENT, Trouble.UNKNOWN),
    ],
)
async def test_a_refusal_says_whether_it_happened_and_in_the_servers_own_words(tmp_path, code, read, write) -> None:
    async with served(tmp_path, always(no(code, "policy says:\n\x1b[31m not today"))) as wire, api(wire, tmp_path) as client:
        with pytest.raises(PortError) as caught:
            await facts(client).pods("checkout")
        assert caught.value.trouble is read
        assert "cluster demo: could not list the pods of checkout: policy says: [31m not today;" in str(caught.value)
        with pytest.raises(PortError) as caught:
            await KubernetesGrants(client).create(BINDING)
        assert caught.value.trouble is write
        assert "create grant tower-breakglass-abcdefghij in checkout: policy says: [31m not today;" in str(caught.value)


async def test_a_proxys_error_page_is_not_repeated(tmp_path) -> None:
    page = status(502, "<html>token=abc</html>", "text/html")
    async with served(tmp_path, always(page)) as wire, api(wire, tmp_path) as client:
        with pytest.raises(PortError, match="HTTP 502") as caught:
            await facts(client).pods("checkout")
        assert "html" not in str(caught.value)


async def test_an_answer_that_is_no_object_is_an_error_not_a_fact(tmp_path) -> None:
    async with served(tmp_path, always(status(200, "[1]"))) as wire, api(wire, tmp_path) as client:
        with pytest.raises(PortError) as caught:
            await facts(client).pod("checkout", "p")
        assert caught.value.trouble is Trouble.TRANSIENT
        with pytest.raises(PortError) as caught:
            await KubernetesGrants(client).create(BINDING)
        assert caught.value.trouble is Trouble.UNKNOWN


async def test_a_lost_answer_to_a_write_is_unknown_and_to_a_read_transient(tmp_path) -> None:
    async def cut(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise EOFError

    async with served(tmp_path, cut) as wire, api(wire, tmp_path) as client:
        with pytest.raises(PortError) as caught:
            await facts(client).pod("checkout", "p")
        assert caught.value.trouble is Trouble.TRANSIENT
        with pytest.raises(PortError) as caught:
            await KubernetesGrants(client).create(BINDING)
        assert caught.value.trouble is Trouble.UNKNOWN
        assert [asked.method for asked in wire.asked] == ["GET", "POST"]


async def test_a_server_that_drips_is_given_up_on(tmp_path) -> None:
    async def drip(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with served(tmp_path, drip) as wire, api(wire, tmp_path, request_seconds=0.2) as client:
        with pytest.raises(PortError, match="gave no answer") as caught:
            await KubernetesGrants(client).create(BINDING)
        assert caught.value.trouble is Trouble.UNKNOWN


async def test_nobody_listening_is_transient_and_another_authoritys_certificate_is_fatal(tmp_path) -> None:
    async with served(tmp_path, always(status(200, POD))) as wire:
        async with api(wire, tmp_path, tls=ssl.create_default_context()) as client:
            with pytest.raises(PortError, match="certificate") as caught:
                await KubernetesGrants(client).create(BINDING)
            assert caught.value.trouble is Trouble.FATAL
            with pytest.raises(PortError, match="certificate") as caught:
                await enter(client.endpoint)
            assert caught.value.trouble is Trouble.FATAL
        assert wire.asked == []
    async with api(wire, tmp_path) as client:
        with pytest.raises(PortError, match="cannot be reached") as caught:
            await KubernetesGrants(client).create(BINDING)
        assert caught.value.trouble is Trouble.TRANSIENT
        with pytest.raises(PortError, match="cannot be reached") as caught:
            await enter(client.endpoint)
        assert caught.value.trouble is Trouble.TRANSIENT


async def enter(where: Endpoint) -> None:
    async with KubernetesAttach(where).attach("checkout", "p", "debug-abcdefghij-1"):
        pass


@pytest.mark.parametrize("name", ["..", "../secrets", "a/b", "a?x=1", "a%2fb", "", "A", "a\n"])
async def test_a_name_cannot_leave_its_place_in_the_path(tmp_path, name) -> None:
    async with served(tmp_path, always(status(200, POD))) as wire, api(wire, tmp_path) as client:
        for call in (
            lambda: facts(client).pod("checkout", name),
            lambda: facts(client).pods(name),
            lambda: KubernetesWorkloads(client).delete_pod("checkout", name, "u-1", grace_seconds=1),
        ):
            with pytest.raises(PortError) as caught:
                await call()
            assert caught.value.trouble is Trouble.INVALID
        assert wire.asked == []


# --- the credential -----------------------------------------------------------------------------------------------------


async def test_the_token_is_in_no_error_and_in_no_log(tmp_path, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    for answer in (no(401, "Unauthorized"), status(302, "", Location="https://127.0.0.1:1/else")):
        async with served(tmp_path, always(answer)) as wire, api(wire, tmp_path) as client:
            for call in (lambda: facts(client).pods("checkout"), lambda: enter(client.endpoint)):
                with pytest.raises(PortError) as caught:
                    await call()
                assert TOKEN not in f"{caught.value!r} {caught.value.__cause__!r} {client.endpoint!r}"
            assert [asked.headers["authorization"] for asked in wire.asked] == [f"Bearer {TOKEN}"] * 2
    assert TOKEN not in caplog.text


async def test_a_renewed_token_is_used_from_the_next_request_on(tmp_path) -> None:
    async with served(tmp_path, always(no(403, "no"))) as wire, api(wire, tmp_path) as client:
        for token in ("first", "second"):
            (tmp_path / "token").write_text(token)
            for call in (lambda: facts(client).pods("checkout"), lambda: enter(client.endpoint)):
                with pytest.raises(PortError):
                    await call()
        assert [asked.headers["authorization"] for asked in wire.asked] == ["Bearer first"] * 2 + ["Bearer second"] * 2


async def test_a_token_that_cannot_be_read_sends_nothing(tmp_path) -> None:
    async with served(tmp_path, always(status(200, POD))) as wire, api(wire, tmp_path) as client:
        (tmp_path / "token").unlink()
        for call in (lambda: facts(client).pods("checkout"), lambda: enter(client.endpoint)):
            with pytest.raises(PortError) as caught:
                await call()
            assert caught.value.trouble is Trouble.UNAUTHORIZED
        assert wire.asked == []


KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}, {name: nobody, context: {cluster: k}}]
clusters: [{name: k, cluster: {server: "SERVER"}}]
users: [{name: u, user: {token: very-secret}}]
"""


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (KUBECONFIG.replace('"SERVER"', "http://10.0.0.1"), None),
        (KUBECONFIG.replace('"SERVER"', "https://10.0.0.1, insecure-skip-tls-verify: true"), None),
        (KUBECONFIG.replace('"SERVER"', "https://10.0.0.1"), "nobody"),
        (KUBECONFIG.replace('"SERVER"', "https://10.0.0.1"), "no-such-context"),
        ("users: [very-secret", None),
        ("users: very-secret", None),
        ("", None),
    ],
)
def test_a_kubeconfig_that_would_not_be_safe_is_refused_without_quoting_it(tmp_path, text, context) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    with pytest.raises(PortError, match="cluster demo: kubeconfig") as caught:
        endpoint("demo", tmp_path / "kubeconfig", context)
    assert caught.value.trouble is Trouble.FATAL
    assert "very-secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_kubeconfigs_token_file_is_found_beside_it(tmp_path) -> None:
    text = KUBECONFIG.replace('"SERVER"', "https://10.0.0.1").replace("token: very-secret", "tokenFile: token")
    (tmp_path / "kubeconfig").write_text(text)
    (tmp_path / "token").write_text("renewed")
    headers = asyncio.run(endpoint("demo", tmp_path / "kubeconfig").authorization())
    assert headers == {"Authorization": "Bearer renewed"}


def test_outside_a_cluster_there_is_no_service_account(tmp_path) -> None:
    with pytest.raises(PortError, match="the service account Tower runs under cannot be used"):
        endpoint("demo")


# --- grants and watches -------------------------------------------------------------------------------------------------


async def test_a_grant_that_a_finalizer_holds_is_not_gone_until_it_is(tmp_path) -> None:
    kept = BINDING["metadata"] | {"uid": "g-1", "deletionTimestamp": "2026-12-01T00:00:00Z"}
    answers = iter(
        [status(200, {"metadata": kept}), status(200, {"metadata": kept}), status(200, {"metadata": kept}), no(404, "gone")]
    )

    async def reply(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))

    async with served(tmp_path, reply) as wire, api(wire, tmp_path) as client:
        await KubernetesGrants(client).delete("checkout", SID)
        assert [asked.method for asked in wire.asked] == ["GET", "DELETE", "GET", "GET"]
        assert wire.asked[1].body == b'{"preconditions": {"uid": "g-1"}}'


async def test_all_grants_are_read_page_by_page_and_others_bindings_left_out(tmp_path) -> None:
    def binding(name: str) -> dict[str, object]:
        return {"metadata": {"name": name, "namespace": "checkout", "uid": name, "creationTimestamp": "2026-12-01T00:00:00Z"}}

    pages = iter(
        [
            {"metadata": {"continue": "more"}, "items": [binding("tower-breakglass-abcdefghij"), binding("admins")]},
            {"metadata": {}, "items": [binding("tower-breakglass-zzzzzzzzzz")]},
        ]
    )

    async def reply(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(status(200, next(pages)))

    async with served(tmp_path, reply) as wire, api(wire, tmp_path) as client:
        assert [found.sid for found in await KubernetesGrants(client).all()] == ["abcdefghij", "zzzzzzzzzz"]
        assert wire.asked[1].target.endswith("/rolebindings?limit=500&continue=more")


async def test_a_watch_reads_again_after_gone_garbage_a_cut_and_a_refusal(tmp_path) -> None:
    def pod(version: str, **state: object) -> dict[str, object]:
        statuses = [{"name": "debug-abcdefghij-1", "state": state}]
        note = {"annotations": {"note": "next\u0085line\u2028here"}}
        return POD | {
            "metadata": POD["metadata"] | note | {"resourceVersion": version},
            "status": {"ephemeralContainerStatuses": statuses},
        }

    waiting, running = pod("7", waiting={"reason": "ContainerCreating"}), pod("8", running={})
    ended = pod("9", terminated={"exitCode": 0, "finishedAt": "2026-12-01T00:00:00Z"})
    script = iter(
        [
            (waiting, event("MODIFIED", running)),
            (running, event("ERROR", {"kind": "Status", "code": 410})),
            (running, status(200, "{not json\n")),
            (running, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"),
            (running, no(403, "RBAC is not ready")),
            (running, no(500, "oops")),
            (running, event("BOOKMARK", {})),
            (ended, event("DELETED", ended)),
        ]
    )
    watching: list[bytes] = []

    async with served(tmp_path, close_after_watch(script, watching)) as wire, api(wire, tmp_path) as client:
        async with asyncio.timeout(20):
            watch = KubernetesWorkloads(client).watch("checkout", "p", "u-1", "debug-abcdefghij-1")
            seen = [state async for state in watch]
        assert [(s.running, s.exit_code, s.waiting_reason) if s else None for s in seen] == [
            (False, None, "ContainerCreating"),
            (True, None, None),
            (False, 0, None),
            None,
        ]
        assert "fieldSelector=metadata.name%3Dp&resourceVersion=7" in wire.asked[1].target


def event(kind: str, item: object) -> bytes:
    """A watch's answer with one event; characters beyond ASCII as Go writes them."""
    return status(200, json.dumps({"type": kind, "object": item}, ensure_ascii=False) + "\n")


def close_after_watch(script, watching):
    """Answer a read with the next pod of the script, a watch with what belongs to it, and close."""

    async def reply(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "watch=true" not in asked.target:
            found, then = next(script)
            watching.append(then)
            writer.write(status(200, found))
            return
        writer.write(watching[-1])
        await writer.drain()
        raise EOFError

    return reply


async def test_a_watch_that_stays_forbidden_ends_with_the_refusal(tmp_path) -> None:
    async with served(tmp_path, always(no(400, "no such field"))) as wire, api(wire, tmp_path) as client:
        with pytest.raises(PortError) as caught:
            await anext(KubernetesWorkloads(client).watch("checkout", "p", "u-1", "debug-abcdefghij-1"))
        assert caught.value.trouble is Trouble.INVALID
        assert len(wire.asked) == 1


async def test_a_pod_that_keeps_changing_is_tried_again_and_then_transient(tmp_path) -> None:
    async def reply(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(status(200, POD) if asked.method == "GET" else no(409, "the object has been modified"))

    async with served(tmp_path, reply) as wire, api(wire, tmp_path) as client:
        with pytest.raises(PortError, match="keeps changing") as caught:
            await KubernetesWorkloads(client).add_debug_container("checkout", "p", "u-1", {"name": "debug-abcdefghij-1"})
        assert caught.value.trouble is Trouble.TRANSIENT
        assert [asked.method for asked in wire.asked] == ["GET", "PATCH"] * 5


# --- the attached stream ------------------------------------------------------------------------------------------------


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
