"""What a hostile page, a careless client and a flood meet before any handler runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from breakglass.web.security import BODY_MAX, same_origin
from tests.simulators.service import ASK, SimulatedService


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense", ""])
async def test_another_site_cannot_make_a_browser_ask(service: SimulatedService, ana: httpx2.AsyncClient, site: str) -> None:
    answer = await ana.post("/api/v1/sessions", json=ASK, headers={"Sec-Fetch-Site": site})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")
    assert service.rows == {}


@pytest.mark.parametrize("site", ["same-origin", "none", None])
async def test_towers_own_page_and_a_cli_may(ana: httpx2.AsyncClient, site: str | None) -> None:
    answer = await ana.post("/api/v1/sessions", json=ASK, headers={"Sec-Fetch-Site": site} if site else {})
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "media",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin-1",
        "text/json",
        "",
    ],
)
async def test_what_an_html_form_can_send_is_not_json_and_changes_nothing(
    service: SimulatedService, ana: httpx2.AsyncClient, media: str | None
) -> None:
    answer = await ana.post(
        "/api/v1/sessions", content=b'{"app":"checkout"}', headers={"Content-Type": media} if media is not None else {}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "not_json")
    assert service.rows == {}


async def test_a_body_that_announces_too_much_is_refused_unread(ana: httpx2.AsyncClient) -> None:
    answer = await ana.post("/api/v1/sessions", content=b"x" * (BODY_MAX + 1), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


async def test_a_body_that_announces_nothing_is_cut_off_at_the_limit(ana: httpx2.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * BODY_MAX:
            sent += 4096
            yield b" " * 4096

    answer = await ana.post("/api/v1/sessions", content=endless(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert sent <= BODY_MAX + 4096


async def test_the_largest_honest_body_is_read_whole(ana: httpx2.AsyncClient) -> None:
    answer = await ana.post("/api/v1/sessions", json={**ASK, "reason": "y" * 8192})
    assert answer.json()["error"]["code"] == "bad_request" or answer.json()["error"]["code"] == "reason_missing"


@pytest.mark.parametrize("length", ["-1", "+1", "1_0", "\u0661", "abc", "99999999999"])
async def test_a_content_length_that_is_no_number_is_refused(ana: httpx2.AsyncClient, length: str) -> None:
    answer = await ana.post(
        "/api/v1/sessions", content=b"{}", headers={"Content-Type": "application/json", "Content-Length": length.encode()}
    )
    assert answer.status_code == 413


def test_an_origin_is_this_server_or_named_by_the_site() -> None:
    assert same_origin("http://tower.test:8443", "tower.test:8443")
    assert same_origin("https://tower.example", "10.0.0.1:8443", ["https://tower.example"])


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://tower.test",
        "http://tower.test:8443.evil.example",
        "http://tower.test:8443/",
        "http://[",
        "file://",
        "javascript:tower.test:8443",
    ],
)
def test_any_other_origin_is_foreign(origin: str) -> None:
    assert not same_origin(origin, "tower.test:8443")
