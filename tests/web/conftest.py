"""The real app over a simulated service, in this process; no socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.types import ASGIApp

from tests.simulators.service import SimulatedService
from tests.simulators.tower import app_over


@pytest.fixture
def service() -> SimulatedService:
    return SimulatedService()


@pytest.fixture
def app(service: SimulatedService) -> ASGIApp:
    return app_over(service)


@pytest.fixture
async def anybody(app: ASGIApp) -> AsyncIterator[httpx2.AsyncClient]:
    """A client without a credential. An exception that reaches the server's edge becomes the 500 a person would get."""
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://tower.test"
    ) as client:
        yield client


@pytest.fixture
async def ana(app: ASGIApp) -> AsyncIterator[httpx2.AsyncClient]:
    async with _as(app, "ana") as client:
        yield client


@pytest.fixture
async def ben(app: ASGIApp) -> AsyncIterator[httpx2.AsyncClient]:
    async with _as(app, "ben") as client:
        yield client


@pytest.fixture
async def oz(app: ASGIApp) -> AsyncIterator[httpx2.AsyncClient]:
    async with _as(app, "oz") as client:
        yield client


def _as(app: ASGIApp, name: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app, raise_app_exceptions=False),
        base_url="http://tower.test",
        headers={"Authorization": f"Bearer token-{name}"},
    )
