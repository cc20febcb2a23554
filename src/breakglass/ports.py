"""Everything outside the core, as contracts: what is durable on return, what may be repeated, which errors mean what.

An adapter implements one of these and nothing else. Errors are `PortError`: `transient` did not happen and may be tried
again; `unknown` may have happened, look before repeating; the rest did not happen and will not until something changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from breakglass.core.facts import (
    AppFacts,
    ClusterFacts,
    DebugContainerFacts,
    NamespaceFacts,
    PersonFacts,
    PodFacts,
)
from breakglass.core.model import Actor, Denied, EntityRef, Environment, Person, Session, Sid, State
from breakglass.core.permissions import Permission

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON: built by `core/grant.py` and `core/workload.py`, sent as it is."""


class Trouble(StrEnum):
    """What an error says about whether the thing happened."""

    TRANSIENT = "transient"
    UNKNOWN = "unknown"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    INVALID = "invalid"
    FATAL = "fatal"


class PortError(Exception):
    """Something outside said no or nothing. `str()` says what failed and what to do; never a secret or a payload."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


# --- the cluster: four ports, one adapter, one set of credentials (the portal's) --------------------------------------


class Facts(Protocol):
    """Reads with the portal's rights at rest. Every call is a live read; nothing is cached. Safe to repeat and to overlap."""

    async def cluster(self) -> ClusterFacts:
        """The API server's version, label and clock. `transient` when it cannot be reached."""
        ...

    async def namespace(self, name: str) -> NamespaceFacts | None:
        """The namespace, or None when there is none."""
        ...

    async def pods(self, namespace: str) -> Sequence[PodFacts]:
        """All pods of the namespace, oldest first, each with its node's readiness."""
        ...

    async def pod(self, namespace: str, name: str) -> PodFacts | None:
        """One pod, or None when there is none of that name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A grant as the API server stored it. `created_at` is the API server's clock; `manifest` goes into the case file."""

    sid: str
    namespace: str
    uid: str
    created_at: datetime
    manifest: Manifest
    terminating: bool = False


class Grants(Protocol):
    """The RoleBindings named `tower-breakglass-*`. One writer per sid; different sids may run at once."""

    async def create(self, manifest: Manifest) -> Grant:
        """Stored in etcd on return. `conflict` when the name is taken, `forbidden` with the policy's own sentence."""
        ...

    async def delete(self, namespace: str, sid: Sid) -> None:
        """Gone on return (seen gone, not only accepted). No grant of that name is success."""
        ...

    async def all(self) -> Sequence[Grant]:
        """Every grant in the cluster, ours by name, terminating ones included."""
        ...


class Workloads(Protocol):
    """What a grant allows on pods. Every call names the pod's UID: another pod of the same name is `not_found`.

    Right after a grant the API server may still say `forbidden` (its RBAC cache lags); the caller retries, not this port.
    """

    async def annotate(self, namespace: str, pod: str, uid: str, sid: Sid | None) -> None:
        """Set `tower.hangar/process-access` to sid, or remove it. Repeating is harmless."""
        ...

    async def add_debug_container(self, namespace: str, pod: str, uid: str, container: Manifest) -> None:
        """Append the ephemeral container (never removable again). `conflict` when the name is there already."""
        ...

    def watch(self, namespace: str, pod: str, uid: str, container: str) -> AsyncIterator[DebugContainerFacts | None]:
        """The debug container's state now and on each change; None once the pod is gone. Ends when the caller stops.

        Survives API server restarts by reconnecting; raises only what no reconnect can mend.
        """
        ...

    async def delete_pod(self, namespace: str, pod: str, uid: str, *, grace_seconds: int | None) -> None:
        """Deletion accepted on return; None leaves the pod's own grace. A pod that is gone is success."""
        ...


class AttachStream(Protocol):
    """One attached debug container: stdout bytes out, stdin bytes in. One reader and one writer at a time."""

    async def read(self) -> bytes:
        """The next stdout bytes, b"" at the end. Not calling it stops the sender (backpressure); pings are kept alive."""
        ...

    async def write(self, data: bytes) -> None:
        """Handed to the socket on return; waits while the peer does not read. `transient` once the stream is broken."""
        ...


class Attach(Protocol):
    """The attach subresource over v5.channel.k8s.io."""

    def attach(self, namespace: str, pod: str, container: str) -> AbstractAsyncContextManager[AttachStream]:
        """Established on entering; leaving it closes the socket at once, whatever was in flight."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The four ports of one registered cluster, under the portal's identity there."""

    name: str
    facts: Facts
    grants: Grants
    workloads: Workloads
    attach: Attach


# --- memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One thing that happened, refusals included. `details` holds values safe to print: no secret, no keystroke."""

    name: str
    at: datetime
    actor: EntityRef | None
    sid: Sid | None
    app: EntityRef | None
    code: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class OpenElsewhereError(Exception):
    """The store's unique index on a person's aliases says they have an open session already: that of `sid`."""

    def __init__(self, sid: str) -> None:
        super().__init__("this person has an open session already")
        self.sid = sid


class StaleError(Exception):
    """The row's version is not the expected one: somebody else changed it first. Load again and decide again."""


class Store(Protocol):
    """Sessions under compare-and-swap. Durable on return. Reads see every write that returned before them."""

    async def create(self, session: Session, audit: AuditEvent) -> None:
        """Insert row and audit event in one transaction. `OpenElsewhereError` when any alias of the requester is taken."""
        ...

    async def replace(self, session: Session, audit: AuditEvent) -> None:
        """Write version n over version n-1, with its audit event, in one transaction; `StaleError` when the row is not at n-1.

        Whether the row holds its requester's one open place follows from its state (`core/session.py: is_open`);
        `OpenElsewhereError` when taking the place back is not possible.
        """
        ...

    async def load(self, sid_prefix: str) -> Session | None:
        """The session with that id, or the only one whose id starts so (≥ 4 characters); None when none or several."""
        ...

    async def find(
        self, *, states: frozenset[State] | None = None, app: EntityRef | None = None, limit: int = 200
    ) -> Sequence[Session]:
        """Sessions newest first."""
        ...


class Audit(Protocol):
    """The audit trail beside the transitions: refusals, replays, watches. Append only."""

    async def append(self, event: AuditEvent) -> None:
        """Durable on return."""
        ...

    async def of(self, sid: Sid) -> Sequence[AuditEvent]:
        """All events of one session, transitions included, oldest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A right to one WebSocket: bound to person, session, role and Origin. Only its hash is ever stored."""

    person: EntityRef
    sid: Sid
    role: str
    origin: str
    expires_at: datetime


class Tickets(Protocol):
    """One-time tickets, named by the SHA-256 of their 128 random bits."""

    async def put(self, ticket_hash: str, ticket: Ticket) -> None:
        """Durable on return."""
        ...

    async def take(self, ticket_hash: str) -> Ticket | None:
        """The ticket, once: two takers race and one gets None. Expiry is the caller's to check."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One object in the vault, by the version that was read back."""

    key: str
    version: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultProbe:
    """What the vault proved about itself just now. `usable` False means no sessions; `locked` says Object Lock held."""

    usable: bool
    locked: bool
    sentence: str


class Vault(Protocol):
    """Write-once objects. A key is written once; repeating the same bytes is harmless, other bytes are `conflict`."""

    async def put(self, key: str, data: bytes, *, retain_until: datetime) -> Stored:
        """Durable and read back on return. `fatal` when full or read-only."""
        ...

    async def get(self, key: str) -> bytes:
        """The object's bytes; `not_found` when there is none."""
        ...

    async def keys(self, prefix: str) -> Sequence[str]:
        """The keys below a prefix, sorted."""
        ...

    async def probe(self) -> VaultProbe:
        """Write, read, try to overwrite and delete a probe object. Never raises for a bad vault: says so."""
        ...


# --- people -----------------------------------------------------------------------------------------------------------


class Identity(Protocol):
    """Who holds a credential."""

    async def actor(self, credential: str) -> Actor | Denied:
        """The person, or why not. Never raises for a bad credential; `transient` when it cannot be checked now."""
        ...


class Permissions(Protocol):
    """Layer 2's decision. Only a clean yes is a yes: cannot decide is `Denied(cannot_decide)`."""

    async def decide(self, actor: Actor, permission: Permission, app: EntityRef) -> Denied | None:
        """None when allowed, and only then."""
        ...


class Catalog(Protocol):
    """The catalog as it is now: ownership and membership are read live, never from a cache."""

    async def app(self, ref: EntityRef) -> AppFacts | None:
        """The component and its owners, or None. `transient` when the catalog cannot be read."""
        ...

    async def apps(self) -> Sequence[AppFacts]:
        """All components, by reference."""
        ...

    async def person(self, ref: EntityRef) -> PersonFacts | None:
        """The person with aliases and direct groups, or None for somebody the catalog does not know."""
        ...

    async def members(self, group: EntityRef) -> Sequence[Person]:
        """The direct members of a group (to count admins); empty for an unknown group."""
        ...


class Deployments(Protocol):
    """cicd.yaml at the default branch's head: the word on cluster, namespace and tier."""

    async def environments(self, app: AppFacts) -> Sequence[Environment]:
        """Every environment with its commit; a copy ≤ 24 h old is marked stale when git is down; else `transient`/`invalid`."""
        ...


class Urgency(StrEnum):
    """How loud a notice is."""

    INFO = "info"
    ASK = "ask"
    ALARM = "alarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something people must hear: asked, unanswered, opened, glass broken, stuck. Contains nothing secret."""

    event: str
    urgency: Urgency
    sid: Sid
    app: EntityRef
    sentence: str
    recipients: tuple[EntityRef, ...] = ()


class Notifier(Protocol):
    """Best effort, bounded: a dead receiver must not slow or stop a session."""

    async def notify(self, notice: Notice) -> None:
        """Handed over or given up on return (each attempt bounded in time); never raises."""
        ...
