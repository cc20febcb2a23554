"""The HTTP face over the real service on simulators, in virtual time: each route asks for the permission its row names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from breakglass.core.codes import Code
from breakglass.core.model import Actor, Denied, EntityRef, State
from breakglass.core.permissions import Permission
from breakglass.core.verify import verify
from breakglass.web.app import ROUTES, create_app
from breakglass.web.errors import STATUS
from tests.life import Life
from tests.virtual_time import in_virtual_time

ASK = {"app": "checkout", "environment": "production", "reason": "checkout answers 500 since the deploy"}


class _Names:
    """`token-ana` is ana, as the life's own world has her."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def actor(self, credential: str) -> Actor | Denied:
        return self._life.actor(credential.removeprefix("token-"))


class Edge:
    """People's HTTP clients before one Tower; `asked` is what layer 2 was asked since it was last emptied."""

    def __init__(self, directory: Path) -> None:
        self.life = Life(directory)
        self.asked: list[Permission] = []
        self.life.tower.permissions.decide = self._decide  # type: ignore[method-assign]
        self.app = create_app(self.life.service, _Names(self.life))

    async def _decide(self, actor: Actor, permission: Permission, app: EntityRef) -> Denied | None:
        self.asked.append(permission)
        return None

    async def call(self, name: str, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        """One call as this person."""
        arguments: dict[str, Any] = {} if method == "GET" else {"json": body or {}}
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=self.app, raise_app_exceptions=False),
            base_url="http://tower.test",
            headers={"Authorization": f"Bearer token-{name}"},
        ) as client:
            return await client.request(method, f"/api/v1{path}", **arguments)

    async def requested(self) -> dict[str, Any]:
        """Ana's request, waiting."""
        answer = await self.call("ana", "POST", "/sessions", ASK)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def sealed(self) -> dict[str, Any]:
        """A session of ana's that is over and locked."""
        session = await self.requested()
        await self.call("ben", "POST", f"/sessions/{session['sid']}/approve", {"request_digest": session["request_digest"]})
        opened = await self.call("ana", "POST", f"/sessions/{session['sid']}/open")
        assert opened.status_code == 200, opened.text
        await self.call("ana", "POST", f"/sessions/{session['sid']}/end")
        await self.life.reaches(self.life.store.sessions[session["sid"]], State.SEALED)
        return session


@in_virtual_time
async def test_the_whole_way_over_http_ends_in_a_record_that_verifies(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    session = await edge.requested()
    sid = session["sid"]
    own = await edge.call("ana", "POST", f"/sessions/{sid}/approve", {"request_digest": session["request_digest"]})
    assert (own.status_code, own.json()["error"]["code"]) == (403, "self_approval")
    second = await edge.call("ana", "POST", "/sessions", ASK)
    assert (second.status_code, second.json()["error"]["code"]) == (409, "session_open_elsewhere")
    await edge.call("ana", "POST", f"/sessions/{sid}/withdraw")
    session = await edge.sealed()
    sid = session["sid"]
    listed = (await edge.call("carla", "GET", f"/sessions/{sid}/record")).json()
    keys = [each["key"] for each in listed["objects"]]
    objects = {key: (await edge.call("carla", "GET", f"/sessions/{sid}/record/{key}")).content for key in keys}
    found = verify(objects)
    assert found.consistent, found.steps
    assert found.sid == sid
    names = [event["name"] for event in (await edge.call("ben", "GET", f"/sessions/{sid}/audit")).json()["events"]]
    assert names.count("record.read") == len(objects)
    assert "session.sealed" in names


def _requests(session: dict[str, Any]) -> dict[tuple[str, str], tuple[str, str, dict[str, Any]]]:
    """How to reach every route that names a permission: who, the path, the body."""
    sid = session["sid"]
    at = "/api/v1/sessions/{sid}"
    return {
        ("GET", "/api/v1/sessions"): ("ben", "/sessions", {}),
        ("POST", "/api/v1/sessions"): ("ben", "/sessions", ASK),
        ("GET", at): ("ben", f"/sessions/{sid}", {}),
        ("POST", f"{at}/approve"): ("ben", f"/sessions/{sid}/approve", {"request_digest": session["request_digest"]}),
        ("POST", f"{at}/deny"): ("ben", f"/sessions/{sid}/deny", {}),
        ("POST", f"{at}/break"): ("carla", f"/sessions/{sid}/break", {}),
        ("POST", f"{at}/end"): ("ben", f"/sessions/{sid}/end", {}),
        ("POST", f"{at}/tickets"): ("ben", f"/sessions/{sid}/tickets", {"role": "watch"}),
        ("GET", f"{at}/record"): ("ben", f"/sessions/{sid}/record", {}),
        ("GET", at + "/record/{key:path}"): ("ben", f"/sessions/{sid}/record/manifest.json", {}),
        ("GET", f"{at}/audit"): ("ben", f"/sessions/{sid}/audit", {}),
    }


RULED = [row for row in ROUTES if isinstance(row.rule, Permission)]


@pytest.mark.parametrize("row", RULED, ids=lambda row: f"{row.method} {row.path}")
def test_a_route_asks_for_exactly_the_permission_its_row_names(tmp_path: Path, row: Any) -> None:
    @in_virtual_time
    async def test() -> None:
        edge = Edge(tmp_path)
        session = await edge.requested()
        name, path, body = _requests(session)[row.method, row.path]
        edge.asked.clear()
        await edge.call(name, row.method, path, body)
        assert set(edge.asked) == {row.rule} | ({Permission.APPROVE} if row.path.endswith("/end") else set())

    test()


@pytest.mark.parametrize("row", RULED, ids=lambda row: f"{row.method} {row.path}")
def test_somebody_who_is_nothing_to_the_app_is_refused_on_every_route(tmp_path: Path, row: Any) -> None:
    @in_virtual_time
    async def test() -> None:
        edge = Edge(tmp_path)
        session = await edge.requested()
        _, path, body = _requests(session)[row.method, row.path]
        answer = await edge.call("oz", row.method, path, body)
        if row.path == "/api/v1/sessions" and row.method == "GET":
            assert answer.json() == {"sessions": []}
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_entitled"), answer.text

    test()


@in_virtual_time
async def test_the_catalogs_absence_is_a_no_in_words_on_every_route(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    session = await edge.requested()
    edge.life.world.down = True
    for (method, _), (name, path, body) in _requests(session).items():
        answer = await edge.call(name, method, path, body)
        if (method, path) != ("GET", "/sessions"):
            assert answer.status_code == STATUS[Code.CANNOT_DECIDE], (method, path, answer.text)
            assert answer.json()["error"]["code"] == "cannot_decide"


@in_virtual_time
async def test_a_stopping_tower_begins_nothing_new(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    edge.app.state.stopping = True
    answer = await edge.call("ana", "POST", "/sessions", ASK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "tower_stopping")


@in_virtual_time
async def test_what_a_person_may_do_is_said_for_every_environment(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    found = (await edge.call("oz", "GET", "/apps/checkout/capabilities")).json()
    assert [each["name"] for each in found["environments"]] == ["production"]
    actions = {each["action"]: each for each in found["environments"][0]["capabilities"]}
    assert {"request", "break", "approve", "open", "end", "watch", "replay", "replay_input", "review"} == set(actions)
    assert json.dumps(found)
