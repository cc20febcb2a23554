"""One HTTP client for every command: the server's answers as dicts, its refusals as values, its absence as one error.

Must never: put the token into a URL, an argument, a message or a repr, or send it in clear text to another machine.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import secrets
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx2
from httpx2.websockets import AsyncWebSocketSession

from breakglass.cli.codes import UsageError

API = "/api/v1"
PROTOCOL = "tower.v1"
TOKEN_FILE = Path("~/.config/breakglass/token")
DEFAULT_URL = "http://127.0.0.1:8443"

LONG_POLL_SECONDS = 45.0
OPEN_SECONDS = 150.0
MESSAGE_MAX = 1 << 20
PING_SECONDS = 10.0

Answer = dict[str, Any]


class UnreachableError(Exception):
    """Tower did not answer, or not like Tower. `str()` says what failed; it never holds a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The server's refusal, in its own words."""

    code: str
    sentence: str
    remedy: str
    status: int
    sid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which server, as whom."""

    url: str
    token: str = field(repr=False)


def where(url: str | None, token_file: Path | None) -> Where:
    """Server and token from flags, environment and `~/.config/breakglass/token`; `UsageError` says what is missing."""
    found = (url or os.environ.get("BREAKGLASS_URL") or DEFAULT_URL).rstrip("/")
    parts = urlsplit(found)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None or parts.query or parts.fragment:
        raise UsageError(
            "the server's address is not an http(s) URL without user, query and fragment: set --url or BREAKGLASS_URL"
        )
    if parts.scheme == "http" and not _this_machine(parts.hostname):
        raise UsageError(f"your token would cross the network in clear text to {parts.hostname}: use https")
    return Where(url=found, token=_token(token_file))


def _this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(token_file: Path | None) -> str:
    """From --token-file, else BREAKGLASS_TOKEN, else the file in the home directory. A file others can read is refused."""
    if token_file is None and (token := os.environ.get("BREAKGLASS_TOKEN", "").strip()):
        return token
    path = (token_file or TOKEN_FILE).expanduser()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4097)
    except OSError as error:
        raise UsageError(f"no token: set BREAKGLASS_TOKEN or write one to {path} with mode 0600 ({error.strerror})") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise UsageError(f"others can read your token: chmod 600 {path}")
    token = text.decode("ascii", errors="replace").strip()
    if not token or not token.isascii() or len(text) > 4096 or any(c.isspace() for c in token):
        raise UsageError(f"{path} does not hold a token")
    return token


class Client:
    """Tower, as one person. Use as an async context manager; requests may overlap."""

    def __init__(self, at: Where, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url = at.url
        self._http = httpx2.AsyncClient(
            base_url=at.url,
            headers={"Authorization": f"Bearer {at.token}", "Accept": "application/json", "User-Agent": "breakglass-cli"},
            timeout=httpx2.Timeout(LONG_POLL_SECONDS, connect=5.0),
            transport=transport,
        )
        self._ahead = timedelta(0)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    def now(self) -> datetime:
        """The server's clock, as its last answer's Date header told it."""
        return datetime.now(tz=UTC) + self._ahead

    async def get(self, path: str, **query: str | int | bool | None) -> Answer | Refused:
        """One read."""
        params = {
            name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items() if value is not None
        }
        return await self._json("GET", path, params=params)

    async def post(self, path: str, body: Answer | None = None, *, seconds: float = LONG_POLL_SECONDS) -> Answer | Refused:
        """One change."""
        return await self._json("POST", path, json=body or {}, timeout=httpx2.Timeout(seconds, connect=5.0))

    async def raw(self, path: str) -> bytes | Refused:
        """One object's bytes."""
        response = await self._send("GET", path)
        return response.content if response.status_code == 200 else _refused(response)

    async def _json(self, method: str, path: str, **arguments: Any) -> Answer | Refused:
        response = await self._send(method, path, **arguments)
        if not response.is_success:
            return _refused(response)
        return _object(response)

    async def _send(self, method: str, path: str, **arguments: Any) -> httpx2.Response:
        try:
            response = await self._http.request(method, API + path, **arguments)
        except httpx2.HTTPError as error:
            raise UnreachableError(f"cannot reach Tower at {self.url} ({_why(error)})") from None
        self._learn(response)
        return response

    def _learn(self, response: httpx2.Response) -> None:
        try:
            self._ahead = parsedate_to_datetime(response.headers.get("date", "")) - datetime.now(tz=UTC)
        except (ValueError, TypeError):
            return

    @asynccontextmanager
    async def stream(self, sid: str, ticket: str) -> AsyncIterator[AsyncWebSocketSession | Refused]:
        """The WebSocket, pinged every 10 s, or the refusal the upgrade met. The ticket travels in the subprotocol only.

        Entering raises `UnreachableError`. The caller handles what the socket raises inside the block.
        """
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": f"{PROTOCOL}, tower.ticket.{ticket}",
        }
        request = self._http.build_request("GET", f"{API}/sessions/{sid}/stream", headers=headers)
        try:
            response = await self._http.send(request, stream=True)
        except httpx2.HTTPError as error:
            raise UnreachableError(f"cannot reach Tower at {self.url} ({_why(error)})") from None
        try:
            if response.status_code != 101:
                await response.aread()
                yield _refused(response)
                return
            if response.headers.get("sec-websocket-accept") != _accepts(key):
                raise UnreachableError(
                    "something answered the upgrade, but it is no WebSocket server: check the URL and what is before it"
                )
            async with AsyncWebSocketSession(
                response.extensions["network_stream"],
                max_message_size_bytes=MESSAGE_MAX,
                keepalive_ping_interval_seconds=PING_SECONDS,
                keepalive_ping_timeout_seconds=2 * PING_SECONDS,
                response=response,
            ) as socket:
                yield socket
        finally:
            await response.aclose()


def _accepts(key: str) -> str:
    """RFC 6455 section 4.2.2: what a WebSocket server answers to this key."""
    return base64.b64encode(
        hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
    ).decode()


def segment(text: str) -> str:
    """A user's word as one URL path segment or more: `/` and `:` stay, the rest is quoted."""
    return quote(text, safe=":/")


def _refused(response: httpx2.Response) -> Refused:
    error = _object(response).get("error")
    if not isinstance(error, dict) or not all(isinstance(error.get(k), str) for k in ("code", "sentence", "remedy")):
        raise UnreachableError(f"something answered {response.status_code}, but it is not Tower: check the URL")
    sid = error.get("sid")
    return Refused(
        code=error["code"],
        sentence=error["sentence"],
        remedy=error["remedy"],
        status=response.status_code,
        sid=sid if isinstance(sid, str) else None,
    )


def _object(response: httpx2.Response) -> Answer:
    try:
        value = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UnreachableError(f"something answered {response.status_code}, but it is not Tower: check the URL")
    return value


def _why(error: httpx2.HTTPError) -> str:
    return str(error) or type(error).__name__
