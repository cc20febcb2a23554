"""Layer 1: the HTTP face of Tower. One table says every route, its permission and its handler; nothing is routed beside it.

Must never: have a route that is not a row of `ROUTES` (a test walks both), or a default permission.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import Response

from breakglass.core.permissions import Permission
from breakglass.ports import Identity
from breakglass.service import Service
from breakglass.web import errors, handlers, schemas
from breakglass.web.security import Fence
from breakglass.web.stream import stream

Rule = Permission | Literal["own", "open", "ticket"]
"""Who: a permission on the app; `own`, the signed-in person about themselves; `open`, anybody; `ticket`, its holder, once."""

Handler = Callable[..., Awaitable[Response]]

API = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row: what is asked, under which rule, who answers. `service.py` decides by the same permission, again."""

    method: str
    path: str
    rule: Rule
    handler: Callable[..., Awaitable[Any]]
    answer: type[BaseModel] | None
    status: int = 200


def _row(
    method: str, path: str, rule: Rule, handler: Callable[..., Awaitable[Any]], answer: type[BaseModel] | None, status: int = 200
) -> Route:
    return Route(method=method, path=path, rule=rule, handler=handler, answer=answer, status=status)


_SID = API + "/sessions/{sid}"

ROUTES: tuple[Route, ...] = (
    _row("GET", f"{API}/me", "own", handlers.me, schemas.MeOut),
    _row("GET", f"{API}/apps", "own", handlers.apps, schemas.AppsOut),
    _row("GET", API + "/apps/{ref:path}/capabilities", "own", handlers.capabilities, schemas.CapabilitiesOut),
    _row("GET", f"{API}/sessions", Permission.SESSION_READ, handlers.sessions, schemas.SessionsOut),
    _row("POST", f"{API}/sessions", Permission.REQUEST, handlers.request_session, schemas.SessionOut, 201),
    _row("GET", _SID, Permission.SESSION_READ, handlers.session, schemas.SeenOut),
    _row("POST", f"{_SID}/approve", Permission.APPROVE, handlers.approve, schemas.SessionOut),
    _row("POST", f"{_SID}/deny", Permission.APPROVE, handlers.deny, schemas.SessionOut),
    _row("POST", f"{_SID}/withdraw", "own", handlers.withdraw, schemas.SessionOut),
    _row("POST", f"{_SID}/break", Permission.BREAK, handlers.break_glass, schemas.SessionOut),
    _row("POST", f"{_SID}/open", "own", handlers.open_shell, schemas.SessionOut),
    _row("POST", f"{_SID}/end", Permission.REVOKE, handlers.end, schemas.SessionOut),
    _row("POST", f"{_SID}/tickets", Permission.SESSION_READ, handlers.ticket, schemas.TicketOut, 201),
    _row("WS", f"{_SID}/stream", "ticket", stream, None),
    _row("GET", f"{_SID}/record", Permission.REPLAY, handlers.record, schemas.RecordOut),
    _row("GET", _SID + "/record/{key:path}", Permission.REPLAY, handlers.record_object, None),
    _row("GET", f"{_SID}/audit", Permission.SESSION_READ, handlers.audit, schemas.AuditOut),
    _row("GET", "/healthz", "open", handlers.healthz, schemas.AliveOut),
    _row("GET", "/readyz", "open", handlers.readyz, schemas.HealthOut),
)
"""Every route there is. `/openapi.json` is the only one beside it: the framework's own, open, and made from this table."""


def create_app(service: Service, identity: Identity, *, origins: Iterable[str] = ()) -> FastAPI:
    """The ASGI app. `origins` are the browser origins Tower is reached under beside its own Host (site.yaml)."""
    app = FastAPI(
        title="Tower Break-glass",
        version="1",
        summary="A shell next to a misbehaving pod in seconds, and proof for everybody else.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.identity = identity
    app.state.origins = frozenset(origins)
    app.state.stopping = False
    for route in ROUTES:
        _add(app, route)
    errors.install(app)
    app.add_middleware(Fence)
    return app


def _add(app: FastAPI, route: Route) -> None:
    if route.method == "WS":
        app.add_api_websocket_route(route.path, route.handler)
        return
    failures: dict[int | str, dict[str, Any]] = {"4XX": {"model": schemas.ErrorOut}, "5XX": {"model": schemas.ErrorOut}}
    app.add_api_route(
        route.path,
        route.handler,
        methods=[route.method],
        response_model=None,
        status_code=route.status,
        responses={**failures, **({route.status: {"model": route.answer}} if route.answer else {})},
        openapi_extra={"x-permission": str(route.rule)},
    )
