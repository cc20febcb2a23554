"""Notices to a receiver of the site's choice, as signed JSON over HTTP: best effort, bounded in time, tries and memory.

Outside the layers. Must never: raise, follow a redirect, log the secret or the receiver's answer, or make a session wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx2
import structlog

from breakglass.ports import Notice

log = structlog.get_logger()

SECONDS: Final = 3.0
"""One try, from connecting to the answer's head."""
PAUSES: Final = (0.0, 1.0, 3.0)
"""How long to wait before each try, in seconds; as many tries as there are pauses."""
QUEUE: Final = 200
"""Notices that may wait; one more and it is given up, loudly."""
SIGNATURE: Final = "X-Tower-Signature"
"""`t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>." and the body>`: check it, and that t is recent, before believing a notice."""


class NotifyWebhook:
    """Notifier by POST. The receiver answers 2xx, or the notice is tried again; 4xx other than 429 is its definite no.

    `notify` hands over to a queue and returns: nothing waits for the receiver. `X-Tower-Delivery` names a notice, so that one
    that comes twice can be told.
    """

    def __init__(
        self,
        url: str,
        secret_file: Path | None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        pauses: tuple[float, ...] = PAUSES,
        now: Callable[[], datetime] = lambda: datetime.now(tz=UTC),
    ) -> None:
        self._url = url
        self._secret_file = secret_file
        self._pauses = pauses
        self._now = now
        self._client = httpx2.AsyncClient(transport=transport, timeout=SECONDS, follow_redirects=False)
        self._queue: asyncio.Queue[Notice] = asyncio.Queue(maxsize=QUEUE)
        self._sender: asyncio.Task[None] | None = None

    async def notify(self, notice: Notice) -> None:
        """Handed to the queue, or given up when it is full."""
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all(), name="notify")
        try:
            self._queue.put_nowait(notice)
        except asyncio.QueueFull:
            self._lost(notice, f"{QUEUE} notices wait already")

    async def close(self, seconds: float = 5.0) -> None:
        """Send what waits, for at most this long, then stop."""
        if self._sender is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._queue.join()
            self._sender.cancel()
            await asyncio.wait([self._sender])
        await self._client.aclose()

    async def _send_all(self) -> None:
        while True:
            notice = await self._queue.get()
            try:
                await self._send(notice)
            except Exception as error:  # noqa: BLE001 (whatever one notice does, the next one is still sent)
                self._lost(notice, type(error).__name__)
            finally:
                self._queue.task_done()

    async def _send(self, notice: Notice) -> None:
        body = json.dumps(_fields(notice, self._now()), ensure_ascii=False).encode("utf-8", "replace")
        delivery = secrets.token_hex(16)
        why = "no try was allowed"
        for pause in self._pauses:
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(SECONDS):
                    async with self._client.stream(
                        "POST", self._url, content=body, headers=self._headers(delivery, body)
                    ) as answer:
                        status = answer.status_code
            except (httpx2.HTTPError, TimeoutError) as error:
                why = type(error).__name__
                continue
            if 200 <= status < 300:
                return
            why = f"the receiver answered {status}"
            if 300 <= status < 500 and status != 429:
                break
        self._lost(notice, why)

    async def _post(self, body: bytes, delivery: str) -> int:
        """One try: the status of the answer, whose body is not read."""
        headers = self._headers(delivery, body)
        async with asyncio.timeout(SECONDS), self._client.stream("POST", self._url, content=body, headers=headers) as answer:
            return answer.status_code

    def _headers(self, delivery: str, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "X-Tower-Delivery": delivery}
        if self._secret_file is not None:
            secret = self._secret_file.read_bytes().strip()  # each time, so that it can be changed while Tower runs
            at = str(int(self._now().timestamp()))
            headers[SIGNATURE] = f"t={at},v1={hmac.new(secret, at.encode() + b'.' + body, hashlib.sha256).hexdigest()}"
        return headers

    def _lost(self, notice: Notice, why: str) -> None:
        log.error("notice.lost", event_lost=notice.event, sid=notice.sid, app=notice.app, sentence=notice.sentence, why=why)


def _fields(notice: Notice, at: datetime) -> dict[str, object]:
    return {
        "version": 1,
        "event": notice.event,
        "urgency": notice.urgency.value,
        "session": notice.sid,
        "app": notice.app,
        "sentence": notice.sentence,
        "recipients": list(notice.recipients),
        "at": at.isoformat(),
    }
