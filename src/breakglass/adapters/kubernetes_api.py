"""Layer 4. One API server under the portal's credential: every answer is JSON, every failure says whether it happened.

Must never: let the credential reach an error, a log or another host; follow a redirect; speak to a server that the registered
authority does not vouch for; repeat a request on its own.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from lightkube import KubeConfig
from lightkube.config.client_adapter import ConnectionParams
from lightkube.core.exceptions import ConfigError

from breakglass.adapters.kubernetes_facts import at, objects
from breakglass.ports import PortError, Trouble

CONNECT_SECONDS, REQUEST_SECONDS = 5.0, 10.0
SERVER_WORDS_MAX = 1000
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_FAILURES = (httpx2.HTTPError, OSError, ConfigError, KeyError, ValueError)
"""What a request may raise: the network's errors (TimeoutError is an OSError), and those of a credential that cannot be had."""
_TROUBLES = {
    401: Trouble.UNAUTHORIZED,
    403: Trouble.FORBIDDEN,
    404: Trouble.NOT_FOUND,
    408: Trouble.TRANSIENT,
    409: Trouble.CONFLICT,
    410: Trouble.TRANSIENT,
    429: Trouble.TRANSIENT,
}
_REMEDIES = {
    Trouble.TRANSIENT: "try again",
    Trouble.UNKNOWN: "it may have happened, look before repeating",
    Trouble.UNAUTHORIZED: "renew the portal's credential",
    Trouble.FORBIDDEN: "see the portal's rights and the policies: breakglass doctor",
    Trouble.NOT_FOUND: "it is gone or never was",
    Trouble.CONFLICT: "read it again",
    Trouble.INVALID: "this is a fault in Tower or in its settings",
    Trouble.FATAL: "check the cluster's entry and its certificate authority",
}


class TokenFile(httpx2.Auth):
    """A bearer token read from its file for every request: the kubelet, or whoever renews it, may replace it at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Sign one request; ConfigError when the file cannot be read."""
        try:
            token = self._path.read_text().strip()
        except (OSError, ValueError):
            raise ConfigError("the token file cannot be read") from None
        request.headers["Authorization"] = f"Bearer {token}"
        yield request


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where one cluster's API server is and how the portal proves itself there."""

    cluster: str
    server: str
    tls: ssl.SSLContext
    auth: httpx2.Auth | None = field(default=None, repr=False)
    request_seconds: float = REQUEST_SECONDS

    async def authorization(self) -> dict[str, str]:
        """The headers that prove the portal, for a request that is not made with httpx2."""
        if self.auth is None:
            return {}
        flow = self.auth.async_auth_flow(httpx2.Request("GET", self.server))
        try:
            return {"Authorization": (await anext(flow)).headers.get("Authorization", "")}
        finally:
            await flow.aclose()

    def error(self, trouble: Trouble, what: str, why: str) -> PortError:
        """An error that names cluster, act and object, in one line."""
        return PortError(trouble, f"cluster {self.cluster}: could not {what}: {why}; {_REMEDIES[trouble]}")

    def refused(self, what: str, status: int, body: bytes, *, mutates: bool) -> PortError:
        """What a status that is not 2xx means. A 5xx leaves open whether a write happened (etcd time-outs, webhooks, proxies)."""
        lost = Trouble.UNKNOWN if mutates else Trouble.TRANSIENT
        trouble = lost if status >= 500 else _TROUBLES.get(status, Trouble.INVALID)
        return self.error(trouble, what, _words(body) or f"HTTP {status}")

    def failed(self, what: str, error: Exception, *, mutates: bool) -> PortError:
        """What a failure without an answer means: before the connection stands nothing has happened, after it who knows."""
        if (fault := _certificate_fault(error)) is not None:
            return self.error(Trouble.FATAL, what, f"no trust in the server's certificate ({fault})")
        name = type(error).__name__
        if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, ConnectionError)):
            return self.error(Trouble.TRANSIENT, what, f"{self.server} cannot be reached ({name})")
        if isinstance(error, (httpx2.HTTPError, OSError)):
            trouble = Trouble.UNKNOWN if mutates else Trouble.TRANSIENT
            return self.error(trouble, what, f"{self.server} gave no answer ({name})")
        return self.error(Trouble.UNAUTHORIZED, what, f"the credential cannot be had ({name})")


def endpoint(cluster: str, kubeconfig: Path | None = None, context: str | None = None) -> Endpoint:
    """The cluster a kubeconfig's context names (the current one when none is said), or the one Tower runs in.

    `fatal` unless it is HTTPS with verification and a user. The file's own words are not repeated: they may be secrets.
    """
    where = f"kubeconfig {kubeconfig}" if kubeconfig else "the service account Tower runs under"
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_service_account()
        config = found.get(context)
        if config is None or config.user is None or config.cluster.insecure or not config.cluster.server.startswith("https://"):
            raise ConfigError("it must name a user, an https server, and an authority to verify it")  # noqa: TRY301 - one way out
        params = ConnectionParams(trust_env=False).httpx_params(config)
        token = config.user.token_file
        auth = TokenFile(Path(config.abs_file(token))) if token else params["auth"]
    except Exception as error:  # noqa: BLE001 - a file of secrets can be wrong in any way
        why = str(error) if isinstance(error, ConfigError) else type(error).__name__
        raise PortError(Trouble.FATAL, f"cluster {cluster}: {where} cannot be used: {why}") from None
    return Endpoint(cluster=cluster, server=config.cluster.server.rstrip("/"), tls=params["verify"], auth=auth)


class Api:
    """Requests to one API server. Every live shell holds one watch, so the pool is not limited."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._client = httpx2.AsyncClient(
            base_url=endpoint.server,
            verify=endpoint.tls,
            auth=endpoint.auth,
            timeout=httpx2.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def answer(self, what: str, method: str, path: str, **request: Any) -> httpx2.Response:
        """One 2xx answer, within `request_seconds` as a whole, or `PortError`. Only GETs are taken to change nothing."""
        mutates = method != "GET"
        try:
            async with asyncio.timeout(self.endpoint.request_seconds):
                response = await self._client.request(method, path, **request)
        except _FAILURES as error:
            raise self.endpoint.failed(what, error, mutates=mutates) from None
        if not response.is_success:
            raise self.endpoint.refused(what, response.status_code, response.content, mutates=mutates)
        return response

    async def get(self, what: str, path: str, **params: str) -> dict[str, Any]:
        """The object at this path."""
        return self._object(what, await self.answer(what, "GET", path, params=params))

    async def find(self, what: str, path: str) -> dict[str, Any] | None:
        """The object at this path, or None when the API server says there is none."""
        try:
            return await self.get(what, path)
        except PortError as error:
            if error.trouble is Trouble.NOT_FOUND:
                return None
            raise

    async def every(self, what: str, path: str) -> list[dict[str, Any]]:
        """Every object of a list, page by page; a list that expires between two pages is `transient`."""
        found: list[dict[str, Any]] = []
        params = {"limit": "500"}
        while True:
            page = await self.get(what, path, **params)
            found += objects(page.get("items"))
            if not (more := at(page, "metadata", "continue")):
                return found
            params["continue"] = str(more)

    async def send(self, what: str, method: str, path: str, body: object, kind: str = "application/json") -> dict[str, Any]:
        """Write `body` and return what the API server made of it."""
        request = {"content": json.dumps(body).encode(), "headers": {"Content-Type": kind}}
        return self._object(what, await self.answer(what, method, path, **request), mutates=True)

    async def events(self, what: str, path: str, seconds: int, **params: str) -> AsyncGenerator[dict[str, Any], None]:
        """Watch events until the API server ends the watch after `seconds`, or the connection breaks: `transient`."""
        params |= {"watch": "true", "timeoutSeconds": str(seconds)}
        read = httpx2.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS, read=seconds + REQUEST_SECONDS)
        try:
            async with self._client.stream("GET", path, params=params, timeout=read) as response:
                if not response.is_success:
                    raise self.endpoint.refused(what, response.status_code, await response.aread(), mutates=False)
                async for line in _lines(response):
                    yield _json(line) or {"type": "ERROR"}
        except _FAILURES as error:
            raise self.endpoint.failed(what, error, mutates=False) from None

    def _object(self, what: str, response: httpx2.Response, *, mutates: bool = False) -> dict[str, Any]:
        found = _json(response.content)
        if found is None:
            raise self.endpoint.error(Trouble.UNKNOWN if mutates else Trouble.TRANSIENT, what, "the answer is not a JSON object")
        return found


def path(*segments: str, api: str = "/api/v1") -> str:
    """A URL path under an API group; `invalid` for a segment that could leave it (`..`, `/`, `?`)."""
    for segment in segments:
        if _NAME.fullmatch(segment) is None:
            raise PortError(Trouble.INVALID, "a name that is no Kubernetes name was asked for: use a-z, 0-9, - and .")
    return "/".join((api, *segments))


def _words(body: bytes) -> str:
    """The server's own sentence on one line: a Status's message, or the kubelet's plain text; nothing of a proxy's HTML page."""
    status = _json(body)
    message = at(status, "message") if status else body.decode(errors="replace")
    if not isinstance(message, str) or message.lstrip().startswith("<"):
        return ""
    return " ".join("".join(c if c.isprintable() else " " for c in message[:SERVER_WORDS_MAX]).split())


def _json(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    r"""Lines end at \n only: `aiter_lines` also breaks at U+0085, which an app's owner may write into an annotation."""
    rest = bytearray()
    async for chunk in response.aiter_bytes():
        rest += chunk
        *whole, last = rest.split(b"\n")
        rest = last
        for line in whole:
            yield bytes(line)


def _certificate_fault(error: BaseException | None) -> str | None:
    """Why TLS itself said no; subclasses that say "cut" or "not yet" are left behind by any connection that breaks."""
    while error is not None:
        if type(error) in {ssl.SSLError, ssl.SSLCertVerificationError}:
            return getattr(error, "reason", None) or type(error).__name__
        error = error.__cause__ or error.__context__
    return None
