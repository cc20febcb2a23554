"""A Tower that listens, and people with terminals."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest

from tests.cli.pty_person import Person, at_terminal, environment
from tests.simulators.service import SimulatedService
from tests.simulators.tower import ListeningTower, listening

Sits = Callable[..., contextlib.AbstractAsyncContextManager[Person]]


@pytest.fixture
async def tower() -> AsyncIterator[ListeningTower]:
    async with listening(SimulatedService()) as running:
        yield running


@pytest.fixture
def sits(tower: ListeningTower, tmp_path: Path) -> Sits:
    """Sit a person down at a terminal and start a command there."""

    def sit(name: str, *arguments: str, cols: int = 80, rows: int = 24) -> contextlib.AbstractAsyncContextManager[Person]:
        return at_terminal(list(arguments), environment(tower.url, name, tmp_path), cols=cols, rows=rows)

    return sit


@pytest.fixture
def as_(tower: ListeningTower) -> Callable[[str], httpx2.AsyncClient]:
    """A colleague's HTTP client."""
    return lambda name: httpx2.AsyncClient(base_url=f"{tower.url}/api/v1", headers={"Authorization": f"Bearer token-{name}"})


@pytest.fixture
def approves(tower: ListeningTower) -> Callable[[], object]:
    """Ben approves the only open request."""

    async def approve() -> str:
        row = next(iter(tower.service.rows.values()))
        async with httpx2.AsyncClient(base_url=tower.url, headers={"Authorization": "Bearer token-ben"}) as ben:
            answer = await ben.post(f"/api/v1/sessions/{row.sid}/approve", json={"request_digest": row.request.digest})
            assert answer.status_code == 200, answer.text
        return str(row.sid)

    return approve
