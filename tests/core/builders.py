"""Accepted things to change one field of: `replace(REQUEST, tier=…)`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from breakglass.core import session as machine
from breakglass.core.facts import ClusterFacts, ContainerFacts, NamespaceFacts, PodFacts
from breakglass.core.model import (
    AfterProcessAccess,
    Denied,
    EndReason,
    EntityRef,
    Environment,
    Mode,
    Person,
    Request,
    Sealed,
    Session,
    Shell,
    Sid,
    State,
    Tier,
)

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
APP = EntityRef("component:default/checkout")


def person(name: str, *aliases: str) -> Person:
    return Person(ref=EntityRef(f"user:default/{name}"), aliases=frozenset(aliases))


ANA = person("ana", "ana@hangar.example")
ANA_AGAIN = person("a.admin", "ANA@hangar.example")
"""Ana under her other account."""
BEN, CARLA, OZ = person("ben"), person("carla"), person("oz")

REQUEST = Request(
    sid=Sid("abcdefghij"),
    app=APP,
    environment="production",
    container=None,
    mode=Mode.LIVE,
    minutes=30,
    process_access=False,
    reason="checkout answers 502",
    requester=ANA,
    cluster="flight-1",
    namespace="checkout",
    tier=Tier.FLIGHT,
    commit="0" * 40,
    after_process_access=AfterProcessAccess.RECYCLE,
    asked_at=NOW,
)
INSIDE = replace(REQUEST, process_access=True)

ENVIRONMENT = Environment(
    app=APP, name="production", cluster="flight-1", namespace="checkout", tier=Tier.FLIGHT, commit="0" * 40, read_at=NOW
)
CLUSTER = ClusterFacts(
    name="flight-1", registered_tier=Tier.FLIGHT, labelled_tier="flight", version=(1, 35), server_time=NOW, read_at=NOW
)
NAMESPACE = NamespaceFacts(name="checkout", app_label="checkout", entity=APP)

CONTAINER = ContainerFacts(name="web", image="web:1", running=True, uid=1000, gid=2000, writable_mounts=("/cache",))
POD = PodFacts(
    name="checkout-1",
    uid="uid-1",
    namespace="checkout",
    phase="Running",
    node="node-1",
    node_ready=True,
    ready=True,
    terminating=False,
    created_at=NOW - timedelta(days=1),
    containers=(CONTAINER,),
)

SEALED = Sealed(segments=3, chain="sha256:" + "0" * 64, output_bytes=100, cut=False)


def at(minutes: float = 0) -> datetime:
    return NOW + timedelta(minutes=minutes)


def shell(number: int = 1, *, pod: str = "checkout-1", uid: str = "uid-1", opening_at: datetime = NOW) -> Shell:
    return Shell(number=number, pod=pod, pod_uid=uid, container=f"debug-abcdefghij-{number}", opening_at=opening_at)


def after(session: Session, *events: machine.Event) -> Session:
    """The session after these events, every one of which must be taken."""
    for event in events:
        following = machine.step(session, event)
        assert not isinstance(following, Denied), following
        session = following
    return session


APPROVE = machine.Approve(at=NOW, approver=BEN, request_digest=REQUEST.digest)
BREAK = machine.BreakGlass(at=NOW, breaker=CARLA)
START = machine.StartShell(at=NOW, shell=shell())
ACTIVE = machine.ShellActive(at=NOW, number=1, started_at=NOW, grant_uid="grant-1")
LEFT = machine.ViewerLeft(at=NOW)
LOST = machine.ShellLost(at=NOW, reason=EndReason.POD_GONE)
CLOSED = machine.ShellClosed(at=NOW, terminated_at=NOW, exit_code=137, witness="w")
END = machine.End(at=NOW, reason=EndReason.ENDED_BY_REQUESTER, by=ANA.ref)
SEAL = machine.RecordSealed(at=NOW, sealed=SEALED)
STUCK = machine.Stuck(at=NOW, because="the grant could not be deleted")
ACCOUNT = machine.Account(at=NOW, by=CARLA)
REVIEW = machine.Review(at=NOW, reviewer=BEN)

ASKED = machine.new(REQUEST, NOW)

EVERY: dict[State, Session] = {
    State.REQUESTED: ASKED,
    State.APPROVED: after(ASKED, APPROVE),
    State.OPENING: after(ASKED, APPROVE, START),
    State.ACTIVE: after(ASKED, APPROVE, START, ACTIVE),
    State.DISCONNECTED: after(ASKED, APPROVE, START, ACTIVE, LEFT),
    State.SHELL_CLOSING: after(ASKED, APPROVE, START, ACTIVE, LOST),
    State.CLOSING: after(ASKED, APPROVE, START, ACTIVE, END),
    State.STUCK: after(ASKED, APPROVE, START, ACTIVE, END, STUCK),
    State.CLOSED: after(ASKED, machine.Withdraw(at=NOW)),
    State.SEALED: after(ASKED, APPROVE, START, ACTIVE, END, SEAL),
    State.ACCOUNT_DUE: after(ASKED, BREAK, START, ACTIVE, END, SEAL),
    State.REVIEW_DUE: after(ASKED, BREAK, START, ACTIVE, END, SEAL, ACCOUNT),
    State.REVIEWED: after(ASKED, BREAK, START, ACTIVE, END, SEAL, ACCOUNT, REVIEW),
}
"""A session in every state, on Flight; the ones from `account_due` on with the glass broken by carla."""

BROKEN = after(ASKED, BREAK)
GROUND = after(machine.new(replace(REQUEST, tier=Tier.GROUND), NOW), machine.GroundApprove(at=NOW))
