"""Whoever hears: a notifier that keeps what it was told, and a webhook receiver that answers as planned."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import httpx2

from breakglass.ports import Notice
from tests.simulators.faults import SLOW_SECONDS


@dataclass(slots=True)
class MemoryNotifier:
    """Notifier; `notices` in the order they came. When `deaf` it waits as long as a slow port does, then gives up."""

    notices: list[Notice] = field(default_factory=list)
    deaf: bool = False

    async def notify(self, notice: Notice) -> None:
        """Keep it."""
        if self.deaf:
            await asyncio.sleep(SLOW_SECONDS)
            return
        self.notices.append(notice)

    def events(self) -> list[str]:
        """The names of what was told."""
        return [notice.event for notice in self.notices]


@dataclass(slots=True)
class Receiver(httpx2.AsyncBaseTransport):
    """The other end of a webhook: each request is answered with the next status of the plan, 204 after its end.

    0 is a connection that breaks, -1 one that never answers.
    """

    plan: deque[int] = field(default_factory=deque)
    requests: list[httpx2.Request] = field(default_factory=list)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Take one request."""
        await request.aread()
        self.requests.append(request)
        status = self.plan.popleft() if self.plan else 204
        if status == 0:
            raise httpx2.ConnectError("the connection broke, as planned")
        if status < 0:
            await asyncio.sleep(SLOW_SECONDS * 1000)
        return httpx2.Response(status, headers={"Location": "https://elsewhere.example.test/"}, text="a long answer " * 10)
