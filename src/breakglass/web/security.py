"""Layer 1's fence, before any handler runs: no cross-site mutation, no body but small JSON, and headers that close the rest.

Must never: read more of a body than `BODY_MAX`, or let a mutation through on a missing Content-Type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from breakglass.core.codes import Code
from breakglass.core.model import Denied
from breakglass.web.errors import refused

BODY_MAX = 64 << 10
"""Bytes of a request body; the largest honest one is under 8 KiB."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Fence:
    """ASGI middleware around the whole app. WebSockets pass: `stream.py` checks Origin and ticket itself.

    1. A mutation that a browser marks as cross-site is refused (Fetch Metadata, `Sec-Fetch-Site`); a missing header is a
       client that is no browser, and has no cookie to abuse.
    2. A mutation is `application/json`, or refused: no HTML form can make one without a preflight, which has no answer here.
    3. A body over `BODY_MAX` is refused by its announced length, and cut off at that many bytes when it announced none.
    4. Every answer carries the security headers.
    Who may is decided in `service.py`, again for every route.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headed = _with_headers(send)
        headers = Headers(scope=scope)
        denied = _cross_site(scope["method"], headers) or _not_json(scope["method"], headers) or _announced(headers)
        if denied is not None:
            await refused(denied)(scope, receive, headed)
            return
        await _Limited(self._app, receive, headed)(scope)


def same_origin(origin: str, host: str, allowed: Iterable[str] = ()) -> bool:
    """Whether a browser's Origin is this server: its host and port are the ones asked for, or site.yaml names it."""
    if origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc) and origin == f"{parts.scheme}://{host}"


def _cross_site(method: str, headers: Headers) -> Denied | None:
    if method in SAFE_METHODS or headers.get("sec-fetch-site", "none") in {"none", "same-origin"}:
        return None
    return Denied(
        code=Code.CROSS_SITE,
        sentence="Another site asked the browser to do this, so it was not done.",
        remedy="Do it on Tower's own page or with the CLI.",
    )


def _not_json(method: str, headers: Headers) -> Denied | None:
    media, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower() in {"", "charset=utf-8", 'charset="utf-8"'}
    if method in SAFE_METHODS or (media.strip().lower() == "application/json" and charset):
        return None
    return Denied(
        code=Code.NOT_JSON,
        sentence="Whatever changes something must be JSON in UTF-8.",
        remedy="Send Content-Type: application/json, with {} where there is nothing to say.",
    )


def _announced(headers: Headers) -> Denied | None:
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= BODY_MAX:
        return None
    return _too_large()


def _too_large() -> Denied:
    return Denied(
        code=Code.TOO_LARGE,
        sentence=f"The body is larger than {BODY_MAX // 1024} KiB.",
        remedy="Say it shorter; no request needs that much.",
    )


def _with_headers(send: Send) -> Send:
    async def headed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
        await send(message)

    return headed


class _TooMuchError(Exception):
    """The body went over `BODY_MAX` while it was read."""


class _Limited:
    """Counts the body as it is read, and answers 413 when it grows over the limit before an answer was begun."""

    def __init__(self, app: ASGIApp, receive: Receive, send: Send) -> None:
        self._app, self._receive, self._send = app, receive, send
        self._read = 0
        self._over = False
        self._begun = False

    async def __call__(self, scope: Scope) -> None:
        with contextlib.suppress(_TooMuchError):
            await self._app(scope, self._counted, self._guarded)
        if self._over and not self._begun:
            await refused(_too_large())(scope, self._receive, self._send)

    async def _counted(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > BODY_MAX:
            self._over = True
            raise _TooMuchError
        return message

    async def _guarded(self, message: Message) -> None:
        if self._over and not self._begun:
            return  # the framework's own answer to the cut-off body; ours follows
        self._begun = True
        await self._send(message)
