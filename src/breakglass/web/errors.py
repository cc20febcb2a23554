"""One error shape, and one table from refusal code to HTTP status: whatever goes wrong has a code, a sentence and a remedy.

Layer 1. Must never: echo a body, a token or a traceback, or answer in a second shape.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from breakglass.core.codes import Code
from breakglass.core.model import Denied, is_sid
from breakglass.core.terminal import escape_field
from breakglass.ports import PortError

log = structlog.get_logger()

_BAD, _WHO, _NO, _NONE = HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND
_CONFLICT, _LATER = HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE

STATUS: dict[Code, HTTPStatus] = {
    # the request itself is not in order
    Code.BAD_REQUEST: _BAD,
    Code.MODE_UNAVAILABLE: _BAD,
    Code.NOT_JSON: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Code.REASON_MISSING: _BAD,
    Code.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    # who asks
    Code.NOT_SIGNED_IN: _WHO,
    # never for this person, here
    Code.ACCOUNT_OWED: _NO,
    Code.CROSS_SITE: _NO,
    Code.NOT_ENTITLED: _NO,
    Code.NOT_ENTITLED_ANY_MORE: _NO,
    Code.PROTECTED_NAMESPACE: _NO,
    Code.SELF_APPROVAL: _NO,
    Code.SELF_REVIEW: _NO,
    Code.TICKET_INVALID: _NO,
    Code.TOO_FEW_ADMINS: _NO,
    # there is no such thing
    Code.NOT_FOUND: _NONE,
    Code.UNKNOWN_APP: _NONE,
    Code.UNKNOWN_ENVIRONMENT: _NONE,
    # not as things stand: the session, the app or the cluster is not in the state this needs
    Code.ALREADY_DECIDED: _CONFLICT,
    Code.CLUSTER_TOO_OLD: _CONFLICT,
    Code.CONTAINER_NOT_RUNNING: _CONFLICT,
    Code.CONTAINER_UNCLEAR: _CONFLICT,
    Code.DIGEST_MISMATCH: _CONFLICT,
    Code.HOST_NAMESPACE_POD: _CONFLICT,
    Code.MIRROR_POD: _CONFLICT,
    Code.NAMESPACE_NOT_APPS: _CONFLICT,
    Code.NODE_NOT_READY: _CONFLICT,
    Code.NO_PODS: _CONFLICT,
    Code.OS_WINDOWS: _CONFLICT,
    Code.POD_BUSY: _CONFLICT,
    Code.POD_FINISHED: _CONFLICT,
    Code.POD_PENDING: _CONFLICT,
    Code.REQUEST_EXPIRED: _CONFLICT,
    Code.SESSION_OPEN_ELSEWHERE: _CONFLICT,
    Code.SHARED_PID_POD: _CONFLICT,
    Code.SHELLS_SPENT: _CONFLICT,
    Code.TARGET_GID_ZERO: _CONFLICT,
    Code.TARGET_ROOT: _CONFLICT,
    Code.TIER_CONFLICT: _CONFLICT,
    Code.TIER_UNKNOWN: _CONFLICT,
    Code.TIME_OVER: _CONFLICT,
    Code.USER_NAMESPACE_POD: _CONFLICT,
    Code.WRONG_STATE: _CONFLICT,
    # not now: something Tower needs is away, so the answer is no
    Code.CANNOT_DECIDE: _LATER,
    Code.CLOCK_SKEW: _LATER,
    Code.CLUSTER_UNREACHABLE: _LATER,
    Code.NO_RECORD: _LATER,
    Code.OPEN_FAILED: _LATER,
    Code.PREFLIGHT: _LATER,
    Code.STORE_UNAVAILABLE: _LATER,
    Code.TOWER_STOPPING: _LATER,
    # a defect in Tower; nothing was decided
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""Complete over `Code`, or a test fails."""

_OWN_FIELDS = frozenset({"tier", "role", "image", "namespace", "cluster", "uid", "user", "requester", "approver"})


class RefusedError(Exception):
    """A `Denied` on its way out of a FastAPI dependency, which can stop a request only by raising. Dies in one handler."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.sentence)
        self.denied = denied


def error_body(denied: Denied, sid: str | None = None) -> bytes:
    """The only error body. ASCII, so that no terminal control, bidi mark or lone surrogate travels in it raw."""
    error = {"code": denied.code.value, "sentence": denied.sentence, "remedy": denied.remedy}
    if sid is not None and is_sid(sid):
        error["sid"] = sid
    return json.dumps({"error": error}, ensure_ascii=True).encode("ascii")


def refused(denied: Denied, sid: str | None = None) -> Response:
    """A refusal as HTTP."""
    headers = {"WWW-Authenticate": "Bearer"} if denied.code is Code.NOT_SIGNED_IN else None
    return Response(error_body(denied, sid), status_code=STATUS[denied.code], media_type="application/json", headers=headers)


def install(app: FastAPI) -> None:
    """Make every way a request can fail answer in the one shape."""
    app.exception_handler(RefusedError)(_refused)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(PortError)(_port)
    app.exception_handler(Exception)(_defect)


async def _refused(request: Request, error: RefusedError) -> Response:
    return refused(error.denied, _sid(request))


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    return refused(_bad(error.errors()), _sid(request))


def _bad(problems: Any) -> Denied:
    """Name the first wrong field; never its value."""
    first = problems[0] if problems else {"loc": (), "type": "", "msg": "it is empty"}
    place, *path = [str(part) for part in first["loc"]] or ["body"]
    kind = first["type"]
    if kind == "json_invalid" or not path:
        return Denied(
            code=Code.BAD_REQUEST,
            sentence=f"The {place} is not a JSON object as this route takes it.",
            remedy="See /openapi.json.",
        )
    name = escape_field(".".join(path)[:64])
    if kind == "extra_forbidden":
        more = " Tower finds that out itself." if path[-1] in _OWN_FIELDS else ""
        return Denied(
            code=Code.BAD_REQUEST,
            sentence=f"This route takes no field {name} in its {place}.{more}",
            remedy=f"Leave {name} out.",
        )
    what = str(first["msg"])
    return Denied(
        code=Code.BAD_REQUEST,
        sentence=f"The field {name} in the {place} is not in order: {what[:1].lower()}{what[1:160]}.",
        remedy=f"Mend {name}; /openapi.json says what it may be.",
    )


async def _http(request: Request, error: HTTPException) -> Response:
    """Starlette's own refusals: no such path or method is 404 in one sentence, a body that cannot be read is 400."""
    if error.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
        what = escape_field(f"{request.method} {request.url.path}"[:120])
        return refused(Denied(code=Code.NOT_FOUND, sentence=f"There is no {what} here.", remedy="See /openapi.json."))
    return refused(
        Denied(
            code=Code.BAD_REQUEST,
            sentence="The request cannot be read.",
            remedy="Send one JSON object in UTF-8; see /openapi.json.",
        )
    )


async def _port(request: Request, error: PortError) -> Response:
    log.warning("port error reached the edge", path=request.url.path, trouble=error.trouble.value, error=str(error))
    return refused(
        Denied(
            code=Code.CANNOT_DECIDE,
            sentence=f"Tower cannot decide this now ({error}), so the answer is no.",
            remedy="Repeat in a moment; /readyz says what is away.",
        ),
        _sid(request),
    )


async def _defect(request: Request, error: Exception) -> Response:
    log.error("defect", path=request.url.path, error=type(error).__name__)
    return refused(internal(), _sid(request))


def internal() -> Denied:
    """Tower itself is wrong; the details are in its log and nowhere else."""
    return Denied(
        code=Code.INTERNAL,
        sentence="Tower failed at this request; nothing was decided by it.",
        remedy="Look at the session (breakglass sessions), then repeat; tell the platform team, Tower's log has the details.",
    )


def _sid(request: Request) -> str | None:
    return request.path_params.get("sid")
