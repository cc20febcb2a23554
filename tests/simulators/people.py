"""Builders: a request, a session and an event as they usually are; a test changes the one field it is about."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from breakglass.core.model import AfterProcessAccess, EntityRef, Mode, Person, Request, Session, Sid, State, Tier
from breakglass.ports import AuditEvent

NOW = datetime(2026, 12, 1, 3, 14, 15, 926535, tzinfo=UTC)
CHECKOUT = EntityRef("component:default/checkout")
ANA = Person(ref=EntityRef("user:default/ana"), aliases=frozenset({"ana@example.test"}))
BEN = Person(ref=EntityRef("user:default/ben"), aliases=frozenset({"ben@example.test"}))
CARLA = Person(ref=EntityRef("user:default/carla"), aliases=frozenset({"carla@example.test"}))


def a_request(sid: str = "abcdefghij", **changes: Any) -> Request:
    """Ana asks for half an hour in checkout/production."""
    usual = Request(
        sid=Sid(sid),
        app=CHECKOUT,
        environment="production",
        container=None,
        mode=Mode.LIVE,
        minutes=30,
        process_access=False,
        reason="orders pile up",
        requester=ANA,
        cluster="demo",
        namespace="checkout",
        tier=Tier.FLIGHT,
        commit="c0ffee" * 6 + "c0ff",
        after_process_access=AfterProcessAccess.RECYCLE,
        asked_at=NOW,
    )
    return replace(usual, **changes)


def a_session(sid: str = "abcdefghij", state: State = State.REQUESTED, version: int = 1, **changes: Any) -> Session:
    """A session of that request; keywords that name a request's field change the request."""
    own = {key: changes.pop(key) for key in list(changes) if key in Session.__dataclass_fields__}
    return Session(request=a_request(sid, **changes), state=state, version=version, changed_at=NOW, **own)


def an_event(name: str = "session.requested", sid: str = "abcdefghij", **changes: Any) -> AuditEvent:
    """An audit event of that session."""
    return replace(AuditEvent(name=name, at=NOW, actor=ANA.ref, sid=Sid(sid), app=CHECKOUT), **changes)
