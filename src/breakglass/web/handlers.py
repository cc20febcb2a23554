"""One function a route: read what came, ask the service, write what it said. Layer 1's hands; `app.py` has the table.

Must never: decide anything, or reach around `service.py`. Every function here would still be refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.responses import Response

from breakglass.core.codes import Code
from breakglass.core.model import Actor, Denied, Session
from breakglass.judging import AppCapabilities, EnvironmentCapabilities
from breakglass.looking import Health, RecordListing, Seen
from breakglass.ports import AuditEvent, Identity
from breakglass.service import Ask, Service
from breakglass.web import schemas
from breakglass.web.errors import RefusedError, refused

CREDENTIAL_MAX = 4096

T = TypeVar("T")

_bearer = HTTPBearer(auto_error=False, description="A person's token: `breakglass dev token` in the try profile.")


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _actor(request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]) -> Actor:
    """Who asks: from the Authorization header and nothing else (no cookie, no query), so no other site can lend it."""
    identity: Identity = request.app.state.identity
    token = credentials.credentials if credentials is not None else ""
    actor = await identity.actor(token) if 0 < len(token) <= CREDENTIAL_MAX and token.isascii() else _nobody()
    if isinstance(actor, Denied):
        raise RefusedError(actor)
    return actor


def _nobody() -> Denied:
    return Denied(
        code=Code.NOT_SIGNED_IN,
        sentence="Tower does not know who you are.",
        remedy="Send Authorization: Bearer <token>; the CLI takes it from BREAKGLASS_TOKEN or ~/.config/breakglass/token.",
    )


async def _not_stopping(request: Request) -> None:
    """Nothing new begins in a Tower that was told to stop; what runs is ended and sealed."""
    if request.app.state.stopping:
        raise RefusedError(
            Denied(
                code=Code.TOWER_STOPPING, sentence="Tower is being stopped, so nothing new begins.", remedy="Repeat in a minute."
            )
        )


ServiceDep = Annotated[Service, Depends(_service)]
Begins = Annotated[None, Depends(_not_stopping)]
ActorDep = Annotated[Actor, Depends(_actor)]
SidPath = Annotated[
    str, Path(min_length=4, max_length=10, pattern=r"^[a-z2-7]+$", description="a session's id, or ≥ 4 of its first characters")
]
RefPath = Annotated[str, Path(max_length=256, description="component:default/checkout, or just checkout")]
KeyPath = Annotated[
    str,
    Path(
        max_length=512,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$",
        description="a key from the record's listing",
    ),
]


def _json(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status_code=status, media_type="application/json")


def _answer(result: T | Denied, out: Callable[[T], BaseModel], sid: str | None = None, *, status: int = 200) -> Response:
    return refused(result, sid) if isinstance(result, Denied) else _json(out(result), status)


# --- people and apps --------------------------------------------------------------------------------------------------


async def me(service: ServiceDep, actor: ActorDep) -> Response:
    """Who Tower thinks you are, and how it knows."""
    return _answer(await service.whoami(actor), lambda facts: schemas.MeOut.of(facts, actor.proof))


async def apps(service: ServiceDep, actor: ActorDep) -> Response:
    """The catalog's apps with their owners."""
    return _answer(await service.apps(actor), lambda found: schemas.AppsOut(apps=[schemas.AppOut.of(app) for app in found]))


async def capabilities(service: ServiceDep, actor: ActorDep, ref: RefPath) -> Response:
    """What you may do to an app in each environment, why not the rest, and who could."""
    return _answer(await service.can(actor, ref), _capabilities)


def _capabilities(found: AppCapabilities) -> schemas.CapabilitiesOut:
    relations = {name for name in ("owner", "admin", "auditor", "locked") if getattr(found.relations, name)}
    return schemas.CapabilitiesOut(
        app=schemas.AppOut.of(found.app),
        relations=sorted(relations),
        open_session=found.open_session,
        environments=[_environment(each) for each in found.environments],
    )


def _environment(found: EnvironmentCapabilities) -> schemas.EnvironmentOut:
    environment = found.environment
    known = None if isinstance(environment, Denied) else environment
    return schemas.EnvironmentOut(
        name=found.name,
        cluster=known.cluster if known else None,
        namespace=known.namespace if known else None,
        tier=known.tier.value if known else None,
        tier_words=known.tier.words if known else "",
        commit=known.commit if known else None,
        stale=known.stale if known else False,
        error=schemas.ErrorFields.of(environment) if isinstance(environment, Denied) else None,
        capabilities=[
            schemas.CapabilityOut(
                action=each.action.value,
                allowed=each.allowed,
                code=each.code.value if each.code else None,
                sentence=each.sentence,
                remedy=each.remedy,
                who_could=list(each.who_could),
            )
            for each in found.capabilities
        ],
    )


# --- sessions ---------------------------------------------------------------------------------------------------------


async def sessions(service: ServiceDep, actor: ActorDep, query: Annotated[schemas.SessionsQuery, Query()]) -> Response:
    """Sessions you may see, newest first."""
    found = await service.sessions(actor, app=query.app, open_only=query.open)
    return _answer(found, lambda rows: schemas.SessionsOut(sessions=[schemas.SessionOut.of(row) for row in rows]))


async def request_session(service: ServiceDep, actor: ActorDep, body: schemas.AskIn, _: Begins) -> Response:
    """Ask for a session, or break the glass."""
    ask = Ask(
        app=body.app,
        environment=body.environment,
        reason=body.reason,
        container=body.container,
        mode=body.mode,
        minutes=body.minutes,
        process_access=body.process_access,
    )
    return _answer(await service.request(actor, ask, break_glass=body.break_glass), schemas.SessionOut.of, status=201)


async def session(
    service: ServiceDep, actor: ActorDep, sid: SidPath, query: Annotated[schemas.SessionQuery, Query()]
) -> Response:
    """One session, at once or (with `newer_than`) at its next change within 25 s."""
    return _answer(await service.session(actor, sid, newer_than=query.newer_than), _seen, sid)


def _seen(seen: Seen) -> schemas.SeenOut:
    return schemas.SeenOut(
        session=schemas.SessionOut.of(seen.session),
        progress=seen.progress,
        waiting_on=list(seen.waiting_on),
        process_access_sentence=seen.process_access_sentence,
        on_call=seen.on_call,
        entitled=seen.entitled,
    )


def _session_answer(result: Session | Denied, sid: str) -> Response:
    return _answer(result, schemas.SessionOut.of, sid)


async def approve(service: ServiceDep, actor: ActorDep, sid: SidPath, body: schemas.ApproveIn) -> Response:
    """Say yes to one request digest. Never one's own."""
    return _session_answer(await service.approve(actor, sid, body.request_digest), sid)


async def deny(service: ServiceDep, actor: ActorDep, sid: SidPath, body: schemas.Nothing) -> Response:
    """Say no."""
    del body
    return _session_answer(await service.deny(actor, sid), sid)


async def withdraw(service: ServiceDep, actor: ActorDep, sid: SidPath, body: schemas.Nothing) -> Response:
    """Take back one's own request."""
    del body
    return _session_answer(await service.withdraw(actor, sid), sid)


async def break_glass(service: ServiceDep, actor: ActorDep, sid: SidPath, body: schemas.Nothing) -> Response:
    """Approve as an admin without an approver: marked, alarmed, always reviewed."""
    del body
    return _session_answer(await service.break_glass(actor, sid), sid)


async def open_shell(service: ServiceDep, actor: ActorDep, sid: SidPath, body: schemas.OpenIn, _: Begins) -> Response:
    """Open the session's next shell; answers when it is active, within 120 s, or why not."""
    return _session_answer(await service.open(actor, sid, pod=body.pod, cols=body.cols, rows=body.rows), sid)


async def end(service: ServiceDep, actor: ActorDep, sid: SidPath, body: schemas.Nothing) -> Response:
    """End a session; answers when closing has begun."""
    del body
    return _session_answer(await service.end(actor, sid), sid)


async def ticket(service: ServiceDep, actor: ActorDep, sid: SidPath, body: schemas.TicketIn, request: Request) -> Response:
    """A one-time ticket for the WebSocket, bound to you, the session, the role and your Origin."""
    got = await service.ticket(actor, sid, role=body.role, origin=request.headers.get("origin", ""))
    return _answer(got, lambda clear: schemas.TicketOut(ticket=clear, sid=sid, role=body.role), sid, status=201)


# --- record and trail -------------------------------------------------------------------------------------------------


async def record(service: ServiceDep, actor: ActorDep, sid: SidPath) -> Response:
    """What the vault holds of a session. Audited as a replay."""
    return _answer(await service.record(actor, sid), _record, sid)


def _record(listing: RecordListing) -> schemas.RecordOut:
    return schemas.RecordOut(
        sid=listing.sid,
        objects=[schemas.ObjectOut(key=each.key, sha256=each.sha256, size=each.size) for each in listing.objects],
    )


async def record_object(service: ServiceDep, actor: ActorDep, sid: SidPath, key: KeyPath) -> Response:
    """One object's bytes, as they lie in the vault."""
    got = await service.record_object(actor, sid, key)
    if isinstance(got, Denied):
        return refused(got, sid)
    return Response(got, media_type="application/octet-stream", headers={"Content-Disposition": "attachment"})


async def audit(service: ServiceDep, actor: ActorDep, sid: SidPath) -> Response:
    """Everything that happened to a session, refusals included."""
    return _answer(await service.audit(actor, sid), _audit, sid)


def _audit(events: Sequence[AuditEvent]) -> schemas.AuditOut:
    return schemas.AuditOut(events=[schemas.AuditEventOut.of(event) for event in events])


# --- open -------------------------------------------------------------------------------------------------------------


async def healthz() -> Response:
    """The process answers. Says nothing about what it needs."""
    return _json(schemas.AliveOut())


async def readyz(service: ServiceDep) -> Response:
    """Whether sessions can open now, check by check; 503 when not."""
    health: Health = await service.health()
    out = schemas.HealthOut(
        ready=health.ready,
        checks=[schemas.HealthCheckOut(name=name, ok=ok, sentence=sentence) for name, ok, sentence in health.checks],
    )
    return _json(out, 200 if health.ready else 503)
