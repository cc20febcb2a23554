"""A Tower that listens: the real app and the real server over the simulated service, in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from fastapi import FastAPI

from breakglass.web.app import create_app
from breakglass.web.server import server
from tests.simulators.service import SimulatedIdentity, SimulatedService


@functools.cache
def _app() -> FastAPI:
    return create_app(SimulatedService(), SimulatedIdentity(), origins=["https://tower.example"])  # type: ignore[arg-type]


def app_over(service: SimulatedService) -> FastAPI:
    """The real app, made once for all tests (that is half a second), over this test's service."""
    app = _app()
    app.state.service = service
    return app


class ListeningTower:
    """`url` answers until `stop`. `cut` breaks every connection without a word, as a network does."""

    def __init__(self, service: SimulatedService, server: uvicorn.Server, port: int) -> None:
        self.service, self._server = service, server
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def cut(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def stop(self) -> None:
        """Die: nothing answers any more."""
        self._server.should_exit = self._server.force_exit = True
        self.cut()


@contextlib.asynccontextmanager
async def listening(
    service: SimulatedService, *, port: int = 0, ping: tuple[float, float] | None = None
) -> AsyncIterator[ListeningTower]:
    """Runs until the block ends; the port is bound before it begins."""
    with contextlib.closing(socket.create_server(("127.0.0.1", port), reuse_port=False)) as bound:
        made = server(
            app_over(service),
            host="127.0.0.1",
            port=0,
            drain_seconds=1,
        )
        if ping is not None:
            made.config.ws_ping_interval, made.config.ws_ping_timeout = ping
        made.capture_signals = _nothing  # type: ignore[method-assign]  # the test runner owns the signals
        running = asyncio.create_task(made.serve(sockets=[bound]))
        while not made.started and not running.done():
            await asyncio.sleep(0.005)
        tower = ListeningTower(service, made, bound.getsockname()[1])
        try:
            yield tower
        finally:
            tower.stop()
            await running


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield
