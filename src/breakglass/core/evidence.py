"""Layer 7. The case file (who asked, who said yes, on which facts) and the manifest (what the record consists of). Pure.

Must never: hold a secret, a keystroke or a start key; both files are locked for a year and read by auditors.
Not yet here: signatures and anchors. Until then they prove consistency, not origin, and `verify` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from breakglass.core.model import Person, Session, Shell, Sid
from breakglass.core.targets import Target

CASE_FORMAT = "tower.hangar/case/v1"
MANIFEST_FORMAT = "tower.hangar/manifest/v1"


def prefix(sid: Sid) -> str:
    """Where everything of a session lies in the vault."""
    return f"sessions/{sid}/"


def case_key(sid: Sid, shell: int) -> str:
    """The case file's key: one a shell, for each pins its own pod."""
    return f"{prefix(sid)}case-{shell}.json"


def manifest_key(sid: Sid) -> str:
    """The manifest's key; it is written last."""
    return f"{prefix(sid)}manifest.json"


def case_file(
    session: Session, shell: Shell, target: Target, *, image: str, evidence: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The facts of a session before its shell exists; `evidence` is what preflight and the tier's three sources said."""
    request = session.request
    return {
        "format": CASE_FORMAT,
        "sid": session.sid,
        "written_at": now.isoformat(),
        "request": {
            "digest": request.digest,
            "app": request.app,
            "environment": request.environment,
            "container": request.container,
            "mode": request.mode.value,
            "minutes": request.minutes,
            "process_access": request.process_access,
            "after_process_access": request.after_process_access.value,
            "reason": request.reason,
            "asked_at": request.asked_at.isoformat(),
            "requester": _person(request.requester),
        },
        "approval": _approval(session),
        "target": {
            "cluster": request.cluster,
            "namespace": request.namespace,
            "tier": request.tier.value,
            "cicd_commit": request.commit,
            "pod": target.pod,
            "pod_uid": target.pod_uid,
            "node": target.node,
            "container": target.container,
            "uid": target.uid,
            "gid": target.gid,
        },
        "shell": {"number": shell.number, "debug_container": shell.container, "image": image},
        "evidence": dict(evidence),
    }


def manifest(session: Session, *, objects: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> dict[str, Any]:
    """What the sealed record consists of: each object's key, version, SHA-256 and size, the chain's head, every shell's end."""
    return {
        "format": MANIFEST_FORMAT,
        "sid": session.sid,
        "request_digest": session.request.digest,
        "objects": [dict(item) for item in objects],
        "record": dict(record),
        "shells": [_shell(shell) for shell in session.shells],
        "ended": None
        if session.ended is None
        else {"reason": session.ended.reason.value, "at": session.ended.at.isoformat(), "by": session.ended.by},
        "glass_broken": session.glass is not None,
        "flags": sorted(flag.value for flag in session.flags),
    }


def _approval(session: Session) -> dict[str, Any]:
    if session.glass is not None:
        return {"kind": "glass_broken", "breaker": _person(session.glass.breaker), "at": session.glass.at.isoformat()}
    if session.approval is not None:
        return {
            "kind": "approved",
            "approver": _person(session.approval.approver),
            "at": session.approval.at.isoformat(),
            "request_digest": session.approval.request_digest,
        }
    return {"kind": "ground"}


def _person(person: Person) -> dict[str, Any]:
    return {"ref": person.ref, "aliases": sorted(person.aliases)}


def _shell(shell: Shell) -> dict[str, Any]:
    return {
        "number": shell.number,
        "pod": shell.pod,
        "pod_uid": shell.pod_uid,
        "debug_container": shell.container,
        "grant_uid": shell.grant_uid,
        "active_at": _time(shell.active_at),
        "ended_at": _time(shell.ended_at),
        "terminated_at": _time(shell.terminated_at),
        "end": None if shell.end is None else shell.end.value,
        "exit_code": shell.exit_code,
        "supervisor": shell.witness,
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
