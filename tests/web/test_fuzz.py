"""Whatever is thrown at a route, it is answered: never a 500, never a second error shape, never a raw control character."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breakglass.web.app import ROUTES
from tests.simulators.service import ASK, SimulatedService
from tests.simulators.tower import app_over

POSTS = [row.path for row in ROUTES if row.method == "POST"]
GETS = [row.path for row in ROUTES if row.method == "GET"]
FIELDS = [
    "app",
    "environment",
    "reason",
    "container",
    "mode",
    "minutes",
    "process_access",
    "break_glass",
    "request_digest",
    "pod",
]
FIELDS += ["cols", "rows", "role", "tier", "namespace", "\ud800", "\x1b[31m", "", "__proto__", "a" * 300]

NASTY = st.sampled_from(
    [
        "\x00",
        "\x1b]0;x\x07",
        "\u202e",
        "\ud800",
        "component:default/checkout",
        "checkout",
        "prod",
        "flight",
        "ground",
        "kube-system",
        "..",
        "%00",
        "y" * 9000,
    ]
)
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | NASTY
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12
)
BODY = st.one_of(
    st.dictionaries(st.sampled_from(FIELDS), LEAF, max_size=8),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4).map(lambda change: {**ASK, **change}),
    JSON,
)
RAW = BODY.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=400)
PIECE = st.text(max_size=30) | NASTY | st.sampled_from(["abcdefghij", "abcd"])
LIMITS = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def _sent(method: str, path: str, **arguments: Any) -> httpx2.Response:
    async def send() -> httpx2.Response:
        service = SimulatedService()
        transport = httpx2.ASGITransport(app=app_over(service), raise_app_exceptions=False)
        headers = {"Authorization": "Bearer token-ana", "Content-Type": "application/json"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://tower.test", headers=headers) as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(send())


def _sound(answer: httpx2.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert {"code", "sentence", "remedy"} <= set(error) <= {"code", "sentence", "remedy", "sid"}
        assert all(32 <= byte < 127 for byte in answer.content)
        assert len(answer.content) < 2048


def _filled(path: str, piece: str) -> str:
    quoted = quote(piece.encode("utf-8", "surrogatepass"), safe="")
    for name in ("{sid}", "{ref:path}", "{key:path}"):
        path = path.replace(name, quoted)
    return path


@pytest.mark.slow
@LIMITS
@given(st.sampled_from(POSTS), PIECE, RAW)
def test_no_body_makes_a_mutation_fail_without_words(path: str, piece: str, body: bytes) -> None:
    _sound(_sent("POST", _filled(path, piece), content=body))


@LIMITS
@given(st.dictionaries(st.sampled_from(FIELDS), LEAF, max_size=6))
def test_no_request_with_a_changed_field_fails_without_words(change: dict[str, object]) -> None:
    _sound(_sent("POST", "/api/v1/sessions", content=json.dumps({**ASK, **change}).encode()))


@LIMITS
@given(st.sampled_from(GETS), PIECE, st.dictionaries(st.sampled_from(["app", "open", "newer_than", "x"]), PIECE, max_size=3))
def test_no_path_and_no_query_makes_a_read_fail_without_words(path: str, piece: str, query: dict[str, str]) -> None:
    encoded = "&".join(f"{name}={quote(value.encode('utf-8', 'surrogatepass'), safe='')}" for name, value in query.items())
    _sound(_sent("GET", f"{_filled(path, piece)}?{encoded}"))


@LIMITS
@given(st.text(st.characters(codec="latin-1", exclude_characters="\r\n\x00"), max_size=200))
def test_no_credential_makes_a_route_fail_without_words(credential: str) -> None:
    answer = _sent("GET", "/api/v1/me", headers={"Authorization": credential.encode("latin-1")})
    _sound(answer)
    assert answer.status_code in {401, 200}
