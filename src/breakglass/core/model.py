"""The nouns every layer speaks in: frozen values that cannot be made wrong. Pure; decides nothing, fetches nothing."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType

from breakglass.core.codes import Code

EntityRef = NewType("EntityRef", str)
"""A canonical catalog reference, `kind:namespace/name` in lower case (Backstage entity reference, full form)."""

Sid = NewType("Sid", str)
"""A session's id: ten characters of `[a-z2-7]`, 50 bits, unguessable."""

_ENTITY = re.compile(r"(?P<kind>[a-z0-9.\-]{1,63}):(?P<namespace>[a-z0-9.\-_]{1,63})/(?P<name>[a-z0-9.\-_]{1,63})")
_SID = re.compile(r"[a-z2-7]{10}")
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9\-]{0,61}[a-z0-9])?")

MINUTES_MIN, MINUTES_MAX, MINUTES_DEFAULT = 10, 60, 30
REASON_MIN, REASON_MAX = 5, 500
SHELLS_MAX = 9


class Tier(StrEnum):
    """What a cluster is for. Only cicd.yaml, the registry and the cluster's own label may say so, never a request."""

    GROUND = "ground"
    FLIGHT = "flight"

    @property
    def words(self) -> str:
        """The tier as people read it."""
        return "Flight (production)" if self is Tier.FLIGHT else "Ground (non-production)"


class Mode(StrEnum):
    """`live`: an ephemeral container in the pod. `copy`: a pod beside it."""

    LIVE = "live"
    COPY = "copy"


class AfterProcessAccess(StrEnum):
    """What happens to a pod whose processes were open to a shell: cicd.yaml says, the approver is shown it."""

    RECYCLE = "recycle"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A refusal: a stable code, a sentence for people, and what the reader can do about it. A value, never an exception."""

    code: Code
    sentence: str
    remedy: str = ""


def no(code: Code, sentence: str, remedy: str) -> Denied:
    """A refusal, written where it is decided."""
    return Denied(code=code, sentence=sentence, remedy=remedy)


def entity_ref(text: str, *, kind: str = "component", namespace: str = "default") -> EntityRef | None:
    """The canonical form of `[kind:][namespace/]name`, or None when it is not a reference. Case is folded (Backstage does)."""
    rest = text.strip().lower()
    if ":" in rest:
        kind, rest = rest.split(":", 1)
    if "/" in rest:
        namespace, rest = rest.split("/", 1)
    full = f"{kind}:{namespace}/{rest}"
    return EntityRef(full) if _ENTITY.fullmatch(full) else None


def is_sid(text: str) -> bool:
    """Whether `text` has the exact form of a session id."""
    return _SID.fullmatch(text) is not None


def is_dns_label(text: str) -> bool:
    """Whether `text` is an RFC 1123 label: what Kubernetes takes as a namespace or container name."""
    return _DNS_LABEL.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A human under all their aliases. Two refs are the same person when any alias is shared; compare with `same`."""

    ref: EntityRef
    aliases: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Every name this person goes by, the reference included, case folded."""
        return frozenset({str(self.ref)} | {alias.casefold() for alias in self.aliases})

    def same(self, other: Person) -> bool:
        """Whether both are one human: any common name is enough."""
        return not self.names.isdisjoint(other.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Somebody who asks for something now: the person, and how we know (`proof`: "asserted by Tower's local identity", …)."""

    person: Person
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One environment of one app as cicd.yaml at the default branch's head says it, with the evidence for that."""

    app: EntityRef
    name: str
    cluster: str
    namespace: str
    tier: Tier
    commit: str
    read_at: datetime
    stale: bool = False
    after_process_access: AfterProcessAccess = AfterProcessAccess.RECYCLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for and approved, immutable, named by `digest`. Tier, cluster and namespace are Tower's findings."""

    sid: Sid
    app: EntityRef
    environment: str
    container: str | None
    mode: Mode
    minutes: int
    process_access: bool
    reason: str
    requester: Person
    cluster: str
    namespace: str
    tier: Tier
    commit: str
    after_process_access: AfterProcessAccess
    asked_at: datetime

    @property
    def digest(self) -> str:
        """`sha256:<hex>` over the canonical JSON (sorted keys, no spaces, UTF-8) of every field; what an approval names."""
        fields = {
            "after_process_access": self.after_process_access.value,
            "app": self.app,
            "asked_at": self.asked_at.isoformat(),
            "cluster": self.cluster,
            "commit": self.commit,
            "container": self.container,
            "environment": self.environment,
            "minutes": self.minutes,
            "mode": self.mode.value,
            "namespace": self.namespace,
            "process_access": self.process_access,
            "reason": self.reason,
            "requester": self.requester.ref,
            "sid": self.sid,
            "tier": self.tier.value,
        }
        return digest_of(fields)


def canonical_json(value: object) -> bytes:
    """The one byte form of a JSON value: sorted keys, no spaces, UTF-8 (RFC 8785 for the types we use: no floats)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: object) -> str:
    """`sha256:<hex>` of the canonical JSON of `value`."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


class State(StrEnum):
    """Where a session is. The transitions are in `core/session.py`, one table."""

    REQUESTED = "requested"
    APPROVED = "approved"
    OPENING = "opening"
    ACTIVE = "active"
    DISCONNECTED = "disconnected"
    SHELL_CLOSING = "shell_closing"
    CLOSING = "closing"
    STUCK = "stuck"
    CLOSED = "closed"
    SEALED = "sealed"
    ACCOUNT_DUE = "account_due"
    REVIEW_DUE = "review_due"
    REVIEWED = "reviewed"


class EndReason(StrEnum):
    """Why a shell or a session ended; shown in words and recorded."""

    HARD_STOP = "hard_stop"
    IDLE = "idle"
    NO_VIEWER = "no_viewer"
    ENDED_BY_REQUESTER = "ended_by_requester"
    ENDED_BY_OTHER = "ended_by_other"
    NOT_ENTITLED = "not_entitled"
    RECORDER_FAILED = "recorder_failed"
    STORE_FAILED = "store_failed"
    GRANT_GONE = "grant_gone"
    POD_GONE = "pod_gone"
    SHELL_EXITED = "shell_exited"
    ATTACH_LOST = "attach_lost"
    FRAME_VIOLATION = "frame_violation"
    OPEN_FAILED = "open_failed"
    TOWER_STOPPED = "tower_stopped"
    TOWER_DIED = "tower_died"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    SHELLS_SPENT = "shells_spent"


class Flag(StrEnum):
    """What could not be done at close, kept visible until somebody looks."""

    ANNOTATION_LEFT = "annotation_left"
    POD_NOT_RECYCLED = "pod_not_recycled"
    TAINTED = "tainted"
    DIGEST_MISMATCH = "digest_mismatch"
    GRANT_VANISHED = "grant_vanished"
    NOT_TERMINATED = "not_terminated"
    POD_DELETED = "pod_deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """Another person's yes to one request digest."""

    approver: Person
    request_digest: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GlassBroken:
    """An admin's own decision, without an approver: marked, alarmed, always reviewed."""

    breaker: Person
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """One shell of a session: its pod, pinned by UID, and how it went. `number` is 1–9, `witness` the supervisor's last words."""

    number: int
    pod: str
    pod_uid: str
    container: str
    opening_at: datetime
    grant_uid: str | None = None
    active_at: datetime | None = None
    ended_at: datetime | None = None
    end: EndReason | None = None
    terminated_at: datetime | None = None
    exit_code: int | None = None
    witness: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Why, when and by whom a session ended; `by` is None when Tower or the clock did."""

    reason: EndReason
    at: datetime
    by: EntityRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The record's own words at its end: segments, chain head, and whether its tail was cut by a crash."""

    segments: int
    chain: str
    output_bytes: int
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One person's debugging of one app in one environment, from request to sealed record. `version` counts its changes."""

    request: Request
    state: State
    version: int
    changed_at: datetime
    approval: Approval | None = None
    glass: GlassBroken | None = None
    approved_at: datetime | None = None
    started_at: datetime | None = None
    viewer_left_at: datetime | None = None
    shells: tuple[Shell, ...] = ()
    ended: Ended | None = None
    sealed: Sealed | None = None
    flags: frozenset[Flag] = field(default_factory=frozenset)
    stuck_because: str = ""

    @property
    def sid(self) -> Sid:
        """The session's id."""
        return self.request.sid

    @property
    def shell(self) -> Shell | None:
        """The latest shell, open or not."""
        return self.shells[-1] if self.shells else None

    @property
    def hard_stop_at(self) -> datetime | None:
        """When the session's time is over; None before its first shell."""
        return None if self.started_at is None else self.started_at + timedelta(minutes=self.request.minutes)
