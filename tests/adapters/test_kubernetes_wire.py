"""What the cluster adapter makes of an API server that refuses, lies, stalls, dies or redirects; its credential stays with it."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from breakglass.adapters.kubernetes import KubernetesFacts, KubernetesGrants, KubernetesWorkloads
from breakglass.adapters.kubernetes_api import Api, endpoint
from breakglass.core.model import Sid, Tier
from breakglass.ports import PortError, Trouble
from tests.adapters.portal import TOKEN, enter, portal
from tests.simulators.wire import Asked, Wire, no, served, status

SID = Sid("abcdefghij")
POD = {"metadata": {"name": "p", "namespace": "checkout", "uid": "u-1", "resourceVersion": "7"}, "spec": {}, "status": {}}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
