"""Layer 7, afterwards: what a manifest and a case file must say, field by field, and what follows from a case file. Pure.

Must never: take a field for another type, or an approval for another request's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from breakglass.core.model import Tier, canonical_json, digest_of

MANIFEST_FIELDS: Final = {
    "format": (str,),
    "sid": (str,),
    "request_digest": (str,),
    "objects": (list,),
    "record": (dict,),
    "shells": (list,),
    "ended": (dict, type(None)),
    "glass_broken": (bool,),
    "flags": (list,),
}
OBJECT_FIELDS: Final = {"key": (str,), "version": (str,), "sha256": (str,), "bytes": (int,)}
RECORD_FIELDS: Final = {"segments": (int,), "chain": (str,), "output_bytes": (int,), "cut": (bool,)}
SHELL_FIELDS: Final = {
    "number": (int,),
    "pod": (str,),
    "pod_uid": (str,),
    "debug_container": (str,),
    "grant_uid": (str, type(None)),
    "active_at": (str, type(None)),
    "supervisor": (str,),
}
CASE_FIELDS: Final = {
    "format": (str,),
    "sid": (str,),
    "request": (dict,),
    "approval": (dict,),
    "target": (dict,),
    "shell": (dict,),
}
_WITNESS: Final = {"out_bytes": (int,), "out_sha256": (str,)}


def has(value: object, shape: Mapping[str, tuple[type, ...]]) -> bool:
    """Whether these fields are there with exactly these types; `type` and not `isinstance`, for a bool is no number."""
    return isinstance(value, dict) and all(type(value.get(name, ...)) in types for name, types in shape.items())


def is_case(value: dict[str, Any]) -> bool:
    """Whether the parts of a case file that others are compared with are there."""
    requester = value["request"].get("requester")
    return (
        has(value["request"], {"digest": (str,), "requester": (dict,)})
        and has(requester, {"ref": (str,)})
        and has(value["target"], {"pod": (str,), "pod_uid": (str,), "tier": (str,)})
        and has(value["shell"], {"number": (int,), "debug_container": (str,)})
    )


def approval(case: dict[str, Any]) -> tuple[bool, str]:
    """Who said yes, as far as the case file says; a case file that says nobody did is no case for a shell."""
    request, said = case["request"], case["approval"]
    requester, kind = request["requester"], said.get("kind")
    asked = f"{requester['ref']} asked"
    if kind == "approved" and has(said, {"approver": (dict,), "request_digest": (str,)}):
        approver = said["approver"]
        if not has(approver, {"ref": (str,)}) or said["request_digest"] != request["digest"]:
            return False, "the approval is of another request"
        if not _names(requester).isdisjoint(_names(approver)):
            return False, "the requester approved their own request"
        return True, f"{asked}, {approver['ref']} approved"
    if kind == "glass_broken" and has(said, {"breaker": (dict,)}) and has(said["breaker"], {"ref": (str,)}):
        return True, f"{asked}, {said['breaker']['ref']} broke the glass"
    if kind == "ground" and case["target"]["tier"] == Tier.GROUND:
        return True, f"{asked}; on Ground nobody approves"
    return False, "nobody approved it"


def _names(person: dict[str, Any]) -> set[str]:
    """Every name of a person, as `model.Person.names`."""
    aliases = person.get("aliases")
    return {person["ref"], *(str(alias).casefold() for alias in (aliases if isinstance(aliases, list) else ()))}


def request_digest(case: dict[str, Any]) -> str:
    """The request's digest, made again from what the case file says of it (`model.Request.digest`)."""
    request, target = case["request"], case["target"]
    fields = {name: request.get(name) for name in _ASKED} | {name: target.get(name) for name in ("cluster", "namespace", "tier")}
    return digest_of(fields | {"commit": target.get("cicd_commit"), "requester": request["requester"]["ref"], "sid": case["sid"]})


_ASKED: Final = (
    "after_process_access",
    "app",
    "asked_at",
    "container",
    "environment",
    "minutes",
    "mode",
    "process_access",
    "reason",
)


def canonical(data: bytes) -> dict[str, Any] | None:
    """A JSON object in its one canonical form, else None."""
    try:
        value = json.loads(data.decode())
        return value if isinstance(value, dict) and canonical_json(value) == data else None
    except (ValueError, RecursionError):
        return None


def last_words(text: str) -> dict[str, Any] | None:
    """The supervisor's last words (`spec/frames.md`, section 4), None when they are none. The pod wrote them: only compared."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and has(value, _WITNESS) and value["out_bytes"] >= 0 else None
