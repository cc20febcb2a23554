"""Layer 4. A session's only right in a cluster, as one RoleBinding to one identity for a time the cluster itself keeps.

Pure. Must never: name a second subject or a third role, carry the reason or any other free text, or judge the session:
it says what the session is, and layer 5 (`policies/rolebinding`) refuses what no session should be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from breakglass.core.model import Mode, Session, Sid

PREFIX: Final = "tower-breakglass-"
SESSION_LABEL: Final = "tower.hangar/session"
TTL_LABEL: Final = "cleanup.kyverno.io/ttl"
TTL_MIN, TTL_MAX = 15, 75
ROLES: Final[Mapping[Mode, str]] = {Mode.LIVE: "debug-live", Mode.COPY: "debug-copy"}

_NAME = re.compile(r"tower-breakglass-(?P<sid>[a-z2-7]{10})")
_PORTAL = re.compile(r"system:serviceaccount:(?P<namespace>[a-z0-9][a-z0-9\-]{0,62}):(?P<name>[a-z0-9][a-z0-9.\-]{0,252})")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def name(sid: Sid) -> str:
    """What the grant of this session is called."""
    return PREFIX + sid


def belongs(manifest: Mapping[str, Any]) -> Sid | None:
    """The session a RoleBinding is the grant of, by its name alone: one whose labels were damaged still grants."""
    found = _NAME.fullmatch(str((manifest.get("metadata") or {}).get("name") or ""))
    return Sid(found["sid"]) if found else None


def subject(portal: str) -> dict[str, str]:
    """The portal as a subject, from its user name `system:serviceaccount:<namespace>:<name>`; ValueError for another form."""
    found = _PORTAL.fullmatch(portal)
    if found is None:
        raise ValueError("the portal's name is not that of a service account: write system:serviceaccount:NAMESPACE:NAME")
    return {"kind": "ServiceAccount", "name": found["name"], "namespace": found["namespace"]}


def manifest(session: Session, *, portal: str, ttl_minutes: int, case_digest: str) -> dict[str, Any]:
    """The grant of this session, to be created as it is.

    1. The role follows from the mode, the namespace from the request; the subject is the portal and nobody else.
    2. `cleanup.kyverno.io/ttl` (minutes, 15–75): Kyverno's cleanup controller deletes it even if Tower never comes back.
    3. Annotations say whose yes it rests on: references and digests, never words. Approver and glass-broken each appear
       when the session has them; that exactly one does on Flight, and that nobody approved their own, is layer 5's to refuse.
    4. Whether this session may open at all was decided before (`service.py`); that the API server takes it, it decides.

    ValueError when a value can't be one of a grant: a bug of the caller, never a person's mistake.
    """
    if not TTL_MIN <= ttl_minutes <= TTL_MAX:
        raise ValueError(f"a grant lives {TTL_MIN} to {TTL_MAX} minutes, not {ttl_minutes}")
    if _DIGEST.fullmatch(case_digest) is None:
        raise ValueError("the case file's digest is not of the form sha256:<64 hex digits>")
    request = session.request
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {
            "name": name(session.sid),
            "namespace": request.namespace,
            "labels": {SESSION_LABEL: str(session.sid), TTL_LABEL: f"{ttl_minutes}m"},
            "annotations": _annotations(session, case_digest),
        },
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLES[request.mode]},
        "subjects": [subject(portal)],
    }


def _annotations(session: Session, case_digest: str) -> dict[str, str]:
    request = session.request
    said = {
        "entity": str(request.app),
        "requester": str(request.requester.ref),
        "request": request.digest,
        "case": case_digest,
        "process-access": "true" if request.process_access else "false",
        "minutes": str(request.minutes),
    }
    if session.approval is not None:
        said["approver"] = str(session.approval.approver.ref)
    if session.glass is not None:
        said["glass-broken"] = "true"
    return {f"tower.hangar/{key}": value for key, value in said.items()}
