"""The route table is the whole truth about the HTTP face, and every refusal has one shape."""

from __future__ import annotations

import json

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute

from breakglass.core.codes import Code
from breakglass.core.permissions import Permission
from breakglass.ports import PortError, Trouble
from breakglass.web.app import ROUTES
from breakglass.web.errors import STATUS
from breakglass.web.security import SECURITY_HEADERS
from tests.simulators.service import ASK, SimulatedService


async def _asked(ana: httpx2.AsyncClient) -> dict[str, str]:
    answer = await ana.post("/api/v1/sessions", json=ASK)
    assert answer.status_code == 201
    session: dict[str, str] = answer.json()
    return session


def test_no_route_exists_beside_the_table(app: FastAPI) -> None:
    served = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, APIRoute | APIWebSocketRoute)
        for method in (route.methods if isinstance(route, APIRoute) else {"WS"})
    }
    others = {getattr(route, "path", "?") for route in app.routes if not isinstance(route, APIRoute | APIWebSocketRoute)}
    assert served == {(row.method, row.path) for row in ROUTES}
    assert others == {"/openapi.json"}


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_a_route_without_a_permission_row_cannot_be_added_quietly(row: object) -> None:
    rule = row.rule  # type: ignore[attr-defined]
    assert isinstance(rule, Permission) or rule in {"own", "open", "ticket"}


def test_only_health_is_open_to_anybody() -> None:
    assert {row.path for row in ROUTES if row.rule == "open"} == {"/healthz", "/readyz"}


@pytest.mark.parametrize(
    "row",
    [row for row in ROUTES if row.method in {"GET", "POST"} and row.rule != "open"],
    ids=lambda row: f"{row.method} {row.path}",
)
@pytest.mark.parametrize(
    "header",
    [None, "Bearer", "Bearer ", "Bearer nonsense", "Basic dG9rZW4tYW5hOg==", "Bearer " + "x" * 5000, "Bearer t\u00f6ken"],
)
async def test_without_a_good_credential_no_route_answers_more_than_401(
    anybody: httpx2.AsyncClient, row: object, header: str | None
) -> None:
    path = row.path.replace("{sid}", "abcdefghij").replace("{ref:path}", "checkout").replace("{key:path}", "00000.cast")  # type: ignore[attr-defined]
    headers = {"Authorization": header.encode("latin-1")} if header else {}
    body = {"GET": {}, "POST": {"json": _body(path)}}[row.method]  # type: ignore[attr-defined]
    answer = await anybody.request(row.method, path, headers=headers, **body)  # type: ignore[attr-defined, arg-type]
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "not_signed_in")
    assert answer.headers["www-authenticate"] == "Bearer"


def _body(path: str) -> dict[str, object]:
    if path.endswith("/sessions"):
        return dict(ASK)
    return {"request_digest": "sha256:0"} if path.endswith("/approve") else {}


def test_every_refusal_code_has_a_status_and_no_status_lies_about_success() -> None:
    assert set(STATUS) == set(Code)
    assert all(400 <= status < 600 for status in STATUS.values())


@pytest.mark.parametrize("code", Code)
async def test_a_refusal_of_any_code_arrives_in_the_one_shape(
    service: SimulatedService, ana: httpx2.AsyncClient, code: Code
) -> None:
    from breakglass.core.model import Denied
    from breakglass.web.errors import RefusedError

    service.failing = RefusedError(Denied(code=code, sentence="No.", remedy="Ask."))
    answer = await ana.post("/api/v1/sessions", json=ASK)
    assert answer.status_code == STATUS[code]
    assert answer.json() == {"error": {"code": code.value, "sentence": "No.", "remedy": "Ask."}}


async def test_the_way_from_request_to_end_over_http(ana: httpx2.AsyncClient, ben: httpx2.AsyncClient) -> None:
    session = await _asked(ana)
    sid = session["sid"]
    own = await ana.post(f"/api/v1/sessions/{sid}/approve", json={"request_digest": session["request_digest"]})
    assert (own.status_code, own.json()["error"]["code"], own.json()["error"]["sid"]) == (403, "self_approval", sid)
    wrong = await ben.post(f"/api/v1/sessions/{sid}/approve", json={"request_digest": "sha256:" + "0" * 64})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (409, "digest_mismatch")
    yes = await ben.post(f"/api/v1/sessions/{sid}/approve", json={"request_digest": session["request_digest"]})
    assert (yes.status_code, yes.json()["state"], yes.json()["approval"]["approver"]) == (200, "approved", "user:default/ben")
    opened = await ana.post(f"/api/v1/sessions/{sid}/open", json={"cols": 100, "rows": 30})
    assert (opened.json()["state"], opened.json()["shells"][0]["pod"]) == ("active", "checkout-1")
    ended = await ana.post(f"/api/v1/sessions/{sid}/end", json={})
    assert (ended.json()["state"], ended.json()["ended"]["sentence"]) == ("sealed", "Ended by its requester.")


async def test_a_long_poll_answers_at_the_change_it_waits_for(ana: httpx2.AsyncClient, ben: httpx2.AsyncClient) -> None:
    import asyncio

    session = await _asked(ana)
    waiting = asyncio.create_task(ana.get(f"/api/v1/sessions/{session['sid']}", params={"newer_than": 1}))
    await asyncio.sleep(0)
    await ben.post(f"/api/v1/sessions/{session['sid']}/deny", json={})
    seen = (await waiting).json()
    assert (seen["session"]["state"], seen["session"]["version"]) == ("closed", 2)


@pytest.mark.parametrize("field", ["tier", "role", "image", "namespace", "cluster", "uid"])
async def test_a_field_that_is_towers_to_find_is_refused_by_name(ana: httpx2.AsyncClient, field: str) -> None:
    answer = await ana.post("/api/v1/sessions", json={**ASK, field: "ground"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_request"
    assert answer.json()["error"]["sentence"] == f"This route takes no field {field} in its body. Tower finds that out itself."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"minutes": "30"}, "The field minutes in the body is not in order: input should be a valid integer."),
        ({"minutes": True}, "The field minutes in the body is not in order: input should be a valid integer."),
        ({"process_access": 1}, "The field process_access in the body is not in order: input should be a valid boolean."),
        ({"reason": None}, "The field reason in the body is not in order: input should be a valid string."),
        ({"app": ["checkout"]}, "The field app in the body is not in order: input should be a valid string."),
        ({"mode": "exec"}, "The field mode in the body is not in order: input should be 'live' or 'copy'."),
    ],
)
async def test_a_field_of_the_wrong_kind_is_named_and_not_coerced(
    ana: httpx2.AsyncClient, change: dict[str, object], sentence: str
) -> None:
    answer = await ana.post("/api/v1/sessions", json={**ASK, **change})
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["sentence"]) == (
        400,
        "bad_request",
        sentence,
    )


async def test_an_unknown_field_cannot_smuggle_control_characters_into_the_answer(ana: httpx2.AsyncClient) -> None:
    answer = await ana.post("/api/v1/sessions", json={**ASK, "\x1b]0;owned\x07\u202e": 1})
    assert answer.status_code == 400
    assert b"\x1b" not in answer.content
    assert "\x1b" not in answer.json()["error"]["sentence"]
    assert "\u202e" not in answer.json()["error"]["sentence"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"app": "\xff"}',
        b"[" * 40_000,
        b'{"minutes": ' + b"9" * 5000 + b"}",
        b'{"app":"checkout","environment":"prod","reason":"\\ud800 lone surrogate"}',
        b'{"\\ud800":1,"app":"checkout","environment":"prod","reason":"surrogate name"}',
        b'{"app":"checkout","environment":"prod","reason":"long enough","minutes":NaN}',
        b'{"app":"checkout","environment":"prod","reason":"long enough","minutes":1e400}',
    ],
)
async def test_a_body_that_is_no_request_is_a_400_in_our_shape(ana: httpx2.AsyncClient, body: bytes) -> None:
    answer = await ana.post("/api/v1/sessions", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "reason",
    ["\x1b[2Jowned by me", "tab\tis fine? no", "line\nbreak", "bidi \u202e here", "nul \x00 byte", "x", "y" * 501, " " * 40],
)
async def test_a_reason_people_could_not_read_is_refused_before_anything_happens(
    service: SimulatedService, ana: httpx2.AsyncClient, reason: str
) -> None:
    answer = await ana.post("/api/v1/sessions", json={**ASK, "reason": reason})
    assert (answer.status_code, answer.json()["error"]["code"]) in {(400, "reason_missing"), (400, "bad_request")}
    assert service.rows == {}


@pytest.mark.parametrize(
    "path",
    ["/api/v1/sessions/ABCDEFGHIJ", "/api/v1/sessions/abc", "/api/v1/sessions/..%2f..%2fme", "/api/v1/sessions/%00%00%00%00"],
)
async def test_a_sid_of_the_wrong_form_is_refused_at_the_door(ana: httpx2.AsyncClient, path: str) -> None:
    answer = await ana.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) in {(400, "bad_request"), (404, "not_found")}


@pytest.mark.parametrize("key", ["../other/00000.cast", "a//b", "%2e%2e/x", "/etc/passwd", ".hidden"])
async def test_a_record_key_cannot_climb(ana: httpx2.AsyncClient, key: str) -> None:
    session = await _asked(ana)
    answer = await ana.get(f"/api/v1/sessions/{session['sid']}/record/{key}")
    assert answer.status_code in {400, 404}


async def test_a_path_or_method_that_is_not_there_answers_in_our_shape(ana: httpx2.AsyncClient) -> None:
    for method, path in (("GET", "/nothing"), ("DELETE", "/api/v1/me"), ("OPTIONS", "/api/v1/sessions"), ("GET", "/api/v1/me/")):
        answer = await ana.request(method, path, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_port_that_fails_is_a_503_in_words_and_a_defect_is_a_500_without_any(
    service: SimulatedService, ana: httpx2.AsyncClient
) -> None:
    service.failing = PortError(Trouble.TRANSIENT, "the catalog does not answer")
    answer = await ana.post("/api/v1/sessions", json=ASK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "cannot_decide")
    service.failing = RuntimeError("token-ana leaked here")
    answer = await ana.post("/api/v1/sessions", json=ASK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "leaked" not in answer.text


async def test_every_answer_carries_the_security_headers(anybody: httpx2.AsyncClient, ana: httpx2.AsyncClient) -> None:
    for answer in (
        await anybody.get("/healthz"),
        await anybody.get("/nothing"),
        await ana.get("/api/v1/me"),
        await ana.post("/api/v1/sessions"),
    ):
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


async def test_readiness_is_a_503_that_says_which_check_fails(service: SimulatedService, anybody: httpx2.AsyncClient) -> None:
    assert (await anybody.get("/readyz")).status_code == 200
    service.failing = RuntimeError()
    answer = await anybody.get("/readyz")
    assert (answer.status_code, answer.json()["ready"], answer.json()["checks"][0]["ok"]) == (503, False, False)


async def test_openapi_describes_every_route_and_the_one_error_shape(anybody: httpx2.AsyncClient) -> None:
    api = (await anybody.get("/openapi.json")).json()
    described = {(method.upper(), path) for path, methods in api["paths"].items() for method in methods}
    assert described == {(row.method, row.path.replace(":path", "")) for row in ROUTES if row.method != "WS"}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            assert "422" not in operation["responses"], f"{method} {path} answers in a second error shape"
            assert operation["x-permission"]
    assert "HTTPValidationError" not in json.dumps(api)


async def test_an_outsider_sees_nothing(ana: httpx2.AsyncClient, oz: httpx2.AsyncClient) -> None:
    session = await _asked(ana)
    for path in ("", "/record", "/audit", "/record/00000.cast"):
        answer = await oz.get(f"/api/v1/sessions/{session['sid']}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_entitled")
    assert (await oz.get("/api/v1/sessions")).json() == {"sessions": []}


async def test_a_record_object_is_bytes_and_never_a_page(ana: httpx2.AsyncClient) -> None:
    session = await _asked(ana)
    listed = (await ana.get(f"/api/v1/sessions/{session['sid']}/record")).json()
    assert [each["key"] for each in listed["objects"]] == ["00000.cast"]
    answer = await ana.get(f"/api/v1/sessions/{session['sid']}/record/00000.cast")
    assert answer.content.startswith(b'{"version":3')
    assert (answer.headers["content-type"], answer.headers["content-disposition"]) == ("application/octet-stream", "attachment")
