"""What goes in and out over HTTP, as pydantic models: strict, no field that is not listed, nothing that a caller has no use for.

Layer 1. Must never: accept a tier, cluster, namespace, image or uid, or put a person's aliases or a ticket's hash into an answer.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from breakglass.core.facts import AppFacts, PersonFacts
from breakglass.core.model import MINUTES_DEFAULT, MINUTES_MAX, MINUTES_MIN, Denied, Session, Shell
from breakglass.core.words import ended_sentence
from breakglass.ports import AuditEvent


class In(BaseModel):
    """A request body: no unknown field, no coercion (`"30"` is not 30)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Out(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- in ---------------------------------------------------------------------------------------------------------------


class Nothing(In):
    """`{}`: a mutation with nothing to say is still JSON."""


class AskIn(In):
    """What a person asks for. Tier, cluster, namespace, image and uid are Tower's findings and cannot be said."""

    app: str = Field(max_length=256, description="component:default/checkout, or just checkout")
    environment: str = Field(max_length=64)
    reason: str = Field(max_length=8192)
    container: str | None = Field(default=None, max_length=64)
    mode: Literal["live", "copy"] = "live"
    minutes: int = Field(default=MINUTES_DEFAULT, ge=MINUTES_MIN, le=MINUTES_MAX)
    process_access: bool = False
    break_glass: bool = False


class ApproveIn(In):
    """An approval names what it approves: the digest of the request the approver was shown."""

    request_digest: str = Field(max_length=128)


class OpenIn(In):
    """Where the next shell opens (None: Tower chooses) and how big the terminal is."""

    pod: str | None = Field(default=None, max_length=253)
    cols: int = Field(default=80, ge=1, le=1000)
    rows: int = Field(default=24, ge=1, le=1000)


class TicketIn(In):
    """What the WebSocket is for: typing (`drive`) or only looking (`watch`)."""

    role: Literal["drive", "watch"] = "drive"


class SessionsQuery(BaseModel):
    """Filters of the list."""

    model_config = ConfigDict(extra="forbid")
    app: str | None = Field(default=None, max_length=256)
    open: bool = False


class SessionQuery(BaseModel):
    """Long poll: answer at once when the version is newer, else at the next change, within 25 s."""

    model_config = ConfigDict(extra="forbid")
    newer_than: int | None = Field(default=None, ge=0, le=2**31)


Geometry = Annotated[int, Field(ge=1, le=1000)]


class HelloFrame(In):
    """First text frame of a viewer: its size, and from which output offset it goes on (None: from now)."""

    type: Literal["hello"]
    cols: Geometry
    rows: Geometry
    offset: int | None = Field(default=None, ge=0, le=2**53)


class ResizeFrame(In):
    """The viewer's terminal has a new size."""

    type: Literal["resize"]
    cols: Geometry
    rows: Geometry


class AckFrame(In):
    """Every output byte before `offset` is on the viewer's screen."""

    type: Literal["ack"]
    offset: int = Field(ge=0, le=2**53)


# --- out --------------------------------------------------------------------------------------------------------------


class ErrorFields(Out):
    """Why not: a stable code, a sentence for people, what to do about it, and the session it is about."""

    code: str
    sentence: str
    remedy: str
    sid: str | None = None

    @classmethod
    def of(cls, denied: Denied) -> Self:
        """From a refusal."""
        return cls(code=denied.code.value, sentence=denied.sentence, remedy=denied.remedy)


class ErrorOut(Out):
    """The only error body."""

    error: ErrorFields


class MeOut(Out):
    """Who Tower thinks you are, and how it knows."""

    person: str
    groups: list[str]
    proof: str

    @classmethod
    def of(cls, facts: PersonFacts, proof: str) -> Self:
        """From the catalog's facts of the actor."""
        return cls(person=facts.person.ref, groups=sorted(facts.groups), proof=proof)


class AppOut(Out):
    """An app and who owns it now."""

    app: str
    title: str
    owners: list[str]

    @classmethod
    def of(cls, facts: AppFacts) -> Self:
        """From the catalog."""
        return cls(app=facts.app, title=facts.title, owners=sorted(facts.owners))


class ApprovalOut(Out):
    """Whose yes, to which digest, when."""

    approver: str
    request_digest: str
    at: datetime


class GlassOut(Out):
    """Which admin broke the glass, when."""

    breaker: str
    at: datetime


class EndOut(Out):
    """Why a session ended, in a word and in words; `by` is null when Tower or the clock did it."""

    reason: str
    sentence: str
    at: datetime
    by: str | None


class SealedOut(Out):
    """The record's own words at its end; `cut` when a crash tore its tail."""

    segments: int
    chain: str
    output_bytes: int
    cut: bool


class ShellOut(Out):
    """One shell of a session."""

    number: int
    pod: str
    pod_uid: str
    container: str
    opening_at: datetime
    active_at: datetime | None
    ended_at: datetime | None
    end: str | None
    terminated_at: datetime | None
    exit_code: int | None

    @classmethod
    def of(cls, shell: Shell) -> Self:
        """From the session's row."""
        return cls(
            number=shell.number,
            pod=shell.pod,
            pod_uid=shell.pod_uid,
            container=shell.container,
            opening_at=shell.opening_at,
            active_at=shell.active_at,
            ended_at=shell.ended_at,
            end=shell.end.value if shell.end else None,
            terminated_at=shell.terminated_at,
            exit_code=shell.exit_code,
        )


class SessionOut(Out):
    """A session: its immutable request with its digest, and where it is now."""

    sid: str
    app: str
    environment: str
    container: str | None
    mode: str
    minutes: int
    process_access: bool
    reason: str
    requester: str
    cluster: str
    namespace: str
    tier: str
    tier_words: str
    commit: str
    asked_at: datetime
    request_digest: str
    state: str
    version: int
    changed_at: datetime
    approval: ApprovalOut | None
    glass: GlassOut | None
    approved_at: datetime | None
    started_at: datetime | None
    hard_stop_at: datetime | None
    shells: list[ShellOut]
    ended: EndOut | None
    sealed: SealedOut | None
    flags: list[str]
    stuck_because: str

    @classmethod
    def of(cls, session: Session) -> Self:
        """From the session's row."""
        request, approval, glass, ended, sealed = session.request, session.approval, session.glass, session.ended, session.sealed
        return cls(
            sid=session.sid,
            app=request.app,
            environment=request.environment,
            container=request.container,
            mode=request.mode.value,
            minutes=request.minutes,
            process_access=request.process_access,
            reason=request.reason,
            requester=request.requester.ref,
            cluster=request.cluster,
            namespace=request.namespace,
            tier=request.tier.value,
            tier_words=request.tier.words,
            commit=request.commit,
            asked_at=request.asked_at,
            request_digest=request.digest,
            state=session.state.value,
            version=session.version,
            changed_at=session.changed_at,
            approval=None
            if approval is None
            else ApprovalOut(approver=approval.approver.ref, request_digest=approval.request_digest, at=approval.at),
            glass=None if glass is None else GlassOut(breaker=glass.breaker.ref, at=glass.at),
            approved_at=session.approved_at,
            started_at=session.started_at,
            hard_stop_at=session.hard_stop_at,
            shells=[ShellOut.of(shell) for shell in session.shells],
            ended=None
            if ended is None
            else EndOut(reason=ended.reason.value, sentence=ended_sentence(ended.reason), at=ended.at, by=ended.by),
            sealed=None
            if sealed is None
            else SealedOut(segments=sealed.segments, chain=sealed.chain, output_bytes=sealed.output_bytes, cut=sealed.cut),
            flags=sorted(flag.value for flag in session.flags),
            stuck_because=session.stuck_because,
        )


class SessionsOut(Out):
    """Sessions, newest first."""

    sessions: list[SessionOut]


class AppsOut(Out):
    """Every app of the catalog."""

    apps: list[AppOut]


class SeenOut(Out):
    """A session as somebody who waits for it needs it."""

    session: SessionOut
    progress: str
    waiting_on: list[str]
    process_access_sentence: str
    on_call: str
    entitled: bool


class CapabilityOut(Out):
    """One action: yes, or why not and who could."""

    action: str
    allowed: bool
    code: str | None
    sentence: str
    remedy: str
    who_could: list[str]


class EnvironmentOut(Out):
    """One environment as cicd.yaml's head says it, or why it cannot be used; and what the asker may do in it."""

    name: str
    cluster: str | None
    namespace: str | None
    tier: str | None
    tier_words: str
    commit: str | None
    stale: bool
    error: ErrorFields | None
    capabilities: list[CapabilityOut]


class CapabilitiesOut(Out):
    """What the asker may do to an app, and why not the rest."""

    app: AppOut
    relations: list[str]
    open_session: str | None
    environments: list[EnvironmentOut]


class AuditEventOut(Out):
    """One thing that happened."""

    name: str
    at: datetime
    actor: str | None
    code: str | None
    details: dict[str, str]

    @classmethod
    def of(cls, event: AuditEvent) -> Self:
        """From the trail."""
        return cls(name=event.name, at=event.at, actor=event.actor, code=event.code, details=dict(event.details))


class AuditOut(Out):
    """All events of one session, oldest first."""

    events: list[AuditEventOut]


class TicketOut(Out):
    """A one-time ticket for `WS …/stream`, good for 30 s: offered as subprotocol `tower.ticket.<ticket>`, never in a URL."""

    ticket: str
    sid: str
    role: str


class ObjectOut(Out):
    """One object of the record in the vault."""

    key: str
    sha256: str
    size: int


class RecordOut(Out):
    """What the vault holds of a session."""

    sid: str
    objects: list[ObjectOut]


class HealthCheckOut(Out):
    """One thing Tower needs."""

    name: str
    ok: bool
    sentence: str


class HealthOut(Out):
    """Whether Tower can open sessions now."""

    ready: bool
    checks: list[HealthCheckOut]


class AliveOut(Out):
    """The process answers."""

    alive: Literal[True] = True
