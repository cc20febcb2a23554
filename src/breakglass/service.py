"""Layers 2 and 3 at every door: each verb decides again from live facts, and a doubt is a no.

Must never: take a tier, cluster or namespace from a request, keep a decision for later, or touch a pod (`running.py` does).
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from breakglass.core import rules
from breakglass.core import session as machine
from breakglass.core.codes import Code
from breakglass.core.model import (
    Actor,
    Denied,
    EndReason,
    Mode,
    Request,
    Session,
    Sid,
    State,
)
from breakglass.core.permissions import Permission
from breakglass.judging import as_approved
from breakglass.live import Told
from breakglass.looking import Looking

TICKET_SECONDS = 30
LONG_POLL_SECONDS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a person asks for, as typed: nothing here is believed before `rules.py` has looked at it."""

    app: str
    environment: str
    reason: str
    container: str | None = None
    mode: str = "live"
    minutes: int = 30
    process_access: bool = False


class Service(Looking):
    """The verbs. `Judge` gathers the facts and asks layers 2 and 3; this class says in which order, and acts on the answer."""

    # --- ask ----------------------------------------------------------------------------------------------------------

    async def request(self, actor: Actor, ask: Ask, *, break_glass: bool = False) -> Session | Denied:
        """Ask for a session; on Ground it is approved at once, with `break_glass` an admin approves it at once, marked.

        1. The words are sane. 2. Layer 2: the permission. 3. Layer 3: ownership, admins, tier, cluster, namespace, pods,
        all read now. 4. The row is made: the store's index refuses a second open session under any alias. 5. Ground and
        broken glass step on. 6. People are told. The cluster judges the grant again when a shell opens (layers 4, 5).
        """
        denied = rules.ask(reason=ask.reason, minutes=ask.minutes, container=ask.container, mode=ask.mode)  # (1)
        if denied is not None:
            return await self._refused(actor, denied, ask.app)
        permission = Permission.BREAK if break_glass else Permission.REQUEST
        judged = await self._judge.app(actor, ask.app, permission)  # (2) (3)
        if isinstance(judged, Denied):
            return await self._refused(actor, judged, ask.app)
        if break_glass and (denied := await self._judge.may_break(actor)) is not None:
            return await self._refused(actor, denied, ask.app)
        found = await self._judge.environment(judged, ask.environment)
        if isinstance(found, Denied):
            return await self._refused(actor, found, ask.app)
        request = Request(
            sid=self._new_sid(),
            app=judged.app.app,
            environment=found.name,
            container=ask.container,
            mode=Mode(ask.mode),
            minutes=ask.minutes,
            process_access=ask.process_access,
            reason=ask.reason.strip(),
            requester=judged.person.person,
            cluster=found.cluster,
            namespace=found.namespace,
            tier=found.tier,
            commit=found.commit,
            after_process_access=found.after_process_access,
            asked_at=self._now(),
        )
        target = await self._judge.target(request)
        if isinstance(target, Denied):
            return await self._refused(actor, target, ask.app)
        details = {"environment": request.environment, "tier": request.tier.value, "digest": request.digest}
        made = await self._rows.create(machine.new(request, self._now()), "session.requested", details)  # (4)
        if isinstance(made, Denied):
            return await self._refused(actor, made, ask.app)
        return await self._begun(actor, made, break_glass=break_glass)

    async def _begun(self, actor: Actor, session: Session, *, break_glass: bool) -> Session | Denied:
        if break_glass:
            return await self.break_glass(actor, session.sid)
        ground = machine.GroundApprove(at=self._now())
        if machine.allowed(session, ground):
            return await self._change(session.sid, ground, "session.approved", None)  # (5)
        await self._notices.asked(session)  # (6)
        return session

    def _new_sid(self) -> Sid:
        raw = self._tower.clock.random(7)
        return Sid(base64.b32encode(raw).decode().lower()[:10])

    # --- decide -------------------------------------------------------------------------------------------------------

    async def approve(self, actor: Actor, sid: str, request_digest: str) -> Session | Denied:
        """Another person's yes to one request digest.

        1. Layer 2: may approve for this app. 2. Layer 3: an owner or admin by the catalog now. 3. On the row as it is:
        waiting, in time, this digest, and not the requester under any alias. 4. Compare-and-swap: two answers race, one wins.
        """
        found = await self._for(actor, sid, Permission.APPROVE)  # (1) (2)
        if isinstance(found, Denied):
            return found
        session, judged = found

        async def decide(current: Session) -> machine.Event | Denied:
            denied = rules.may_approve(current, judged.person.person, request_digest, self._now())  # (3)
            return denied or machine.Approve(at=self._now(), approver=judged.person.person, request_digest=request_digest)

        done = await self._rows.change(
            session.sid, decide, "session.approved", actor=actor.person.ref, details={"digest": request_digest}
        )  # (4)
        return await self._told(actor, done, self._notices.approved)

    async def deny(self, actor: Actor, sid: str) -> Session | Denied:
        """A no to a waiting request, by whoever might have said yes."""
        found = await self._for(actor, sid, Permission.APPROVE)
        if isinstance(found, Denied):
            return found
        return await self._change(found[0].sid, machine.Deny(at=self._now(), by=actor.person.ref), "session.denied", actor)

    async def withdraw(self, actor: Actor, sid: str) -> Session | Denied:
        """The requester does not need it any more."""
        session = await self._own(actor, sid)
        if isinstance(session, Denied):
            return session
        done = await self._change(session.sid, machine.Withdraw(at=self._now()), "session.withdrawn", actor)
        return await self._closing(done)

    async def break_glass(self, actor: Actor, sid: str) -> Session | Denied:
        """An admin's own decision on a waiting request, their own or another's: marked, alarmed, reviewed."""
        found = await self._for(actor, sid, Permission.BREAK)
        if isinstance(found, Denied):
            return found
        if (denied := await self._judge.may_break(actor, found[0].request.requester)) is not None:
            return await self._refused(actor, denied, found[0].request.app, found[0].sid)
        event = machine.BreakGlass(at=self._now(), breaker=found[1].person.person)
        return await self._told(
            actor, await self._change(found[0].sid, event, "session.glass_broken", actor), self._notices.glass_broken
        )

    # --- open and end -------------------------------------------------------------------------------------------------

    async def open(self, actor: Actor, sid: str, *, pod: str | None, cols: int, rows: int) -> Session | Denied:
        """Open the next shell of an approved session; step 1 of opening (the others: `opening.py`).

        1. The requester, under any alias. 2. Layer 2 and 3 again, from live facts. 3. The row: approved for this digest by
        another person or glass broken, in time. 4. cicd.yaml, cluster and namespace still say what was approved. 5. A pod.
        """
        session = await self._own(actor, sid)  # (1)
        if isinstance(session, Denied):
            return session
        request = session.request
        judged = await self._judge.app(actor, request.app, self._entitling(session))  # (2)
        if isinstance(judged, Denied):
            return await self._refused(actor, judged, request.app, session.sid)
        denied = rules.may_open(session, judged.person.person, self._now())  # (3)
        if denied is not None:
            return await self._refused(actor, denied, request.app, session.sid)
        found = await self._judge.environment(judged, request.environment)  # (4)
        denied = found if isinstance(found, Denied) else as_approved(request, found)
        if denied is not None:
            return await self._refused(actor, denied, request.app, session.sid)
        evidence = await self._judge.evidence(request)
        if isinstance(evidence, Denied):
            return await self._refused(actor, evidence, request.app, session.sid)
        last = session.shell.pod_uid if session.shell else None
        opened = await self._running.open(
            session,
            choose=lambda: self._judge.target(request, wanted=pod, last_uid=last),  # (5), under the lock of `running.py`
            evidence=evidence,
            recheck=lambda: self._definite_no(session.sid),
            size=(cols, rows),
        )
        return await self._told(actor, opened, self._notices.opened)

    async def _definite_no(self, sid: Sid) -> str | None:
        """Re-checked every 60 s: a sentence when the requester is *definitely* not entitled any more; doubt ends nothing."""
        session = await self._tower.store.load(sid)
        if session is None:
            return None
        request = session.request
        actor = Actor(person=request.requester, proof="re-check during the session")
        judged = await self._judge.app(actor, request.app, self._entitling(session))
        if not isinstance(judged, Denied):
            return None
        if judged.code is Code.CANNOT_DECIDE:
            live = self._running.live(sid)
            if live is not None:
                live.tell(
                    Told(
                        kind="identity",
                        sentence="tower cannot check your rights right now; the shell goes on until its hard stop",
                    )
                )
            return None
        return judged.sentence

    async def end(self, actor: Actor, sid: str) -> Session | Denied:
        """End a session: its requester, or who may revoke for the app. Returns once closing has begun."""
        session = await self._find(sid)
        if isinstance(session, Denied):
            return session
        own = actor.person.same(session.request.requester)
        if not own:
            found = await self._for(actor, sid, Permission.REVOKE)
            if isinstance(found, Denied):
                return found
        if session.state is State.REQUESTED:
            return await (self.withdraw(actor, sid) if own else self.deny(actor, sid))
        reason = EndReason.ENDED_BY_REQUESTER if own else EndReason.ENDED_BY_OTHER
        return await self._running.end(session, reason, actor.person.ref)

    # --- small things -------------------------------------------------------------------------------------------------

    async def _change(self, sid: Sid, event: machine.Event, name: str, actor: Actor | None) -> Session | Denied:
        async def same(_: Session) -> machine.Event:
            return event

        return await self._rows.change(sid, same, name, actor=actor.person.ref if actor else None)

    async def _told(self, actor: Actor, done: Session | Denied, tell: Callable[[Session], Awaitable[None]]) -> Session | Denied:
        if isinstance(done, Denied):
            return await self._refused(actor, done)
        await tell(done)
        return done

    async def _closing(self, done: Session | Denied) -> Session | Denied:
        if isinstance(done, Session) and done.state is State.CLOSING:
            self._running.close_soon(done.sid)
        return done
