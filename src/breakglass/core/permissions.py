"""Layer 2. Who may do what to an app, as one table: the built-in policy. Pure; a missing row, relation or answer is a no.

Backstage may decide instead of `builtin` (`ports.py: Permissions`). `capabilities` adds layer 3's rules and says it in
words, for people who ask what they may do; every route decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from breakglass.core import rules
from breakglass.core import session as machine
from breakglass.core.codes import Code
from breakglass.core.facts import Relations
from breakglass.core.model import Denied, Person, Session, Sid, no


class Permission(StrEnum):
    """`tower.breakglass.*`, resource type catalog-entity (the app). Alphabetical; the route table names one per route."""

    APPROVE = "tower.breakglass.approve"
    BREAK = "tower.breakglass.break"
    REPLAY = "tower.breakglass.replay"
    REPLAY_INPUT = "tower.breakglass.replay.input"
    REQUEST = "tower.breakglass.request"
    REVIEW = "tower.breakglass.session.review"
    REVOKE = "tower.breakglass.revoke"
    SESSION_READ = "tower.breakglass.session.read"


class Role(StrEnum):
    """What a person can be to an app, in the words people read."""

    OWNER = "owners of the app"
    ADMIN = "platform admins"
    AUDITOR = "auditors"


class Row(NamedTuple):
    """One row of the built-in policy: the verb, for sentences, and who may."""

    verb: str
    roles: tuple[Role, ...]


BUILTIN: Mapping[Permission, Row] = {
    Permission.APPROVE: Row("approve or deny a request", (Role.OWNER, Role.ADMIN)),
    Permission.BREAK: Row("break the glass", (Role.ADMIN,)),
    Permission.REPLAY: Row("replay a record", (Role.OWNER, Role.ADMIN, Role.AUDITOR)),
    Permission.REPLAY_INPUT: Row("see what was typed", (Role.ADMIN,)),
    Permission.REQUEST: Row("ask for a session", (Role.OWNER,)),
    Permission.REVIEW: Row("review a broken glass", (Role.ADMIN,)),
    Permission.REVOKE: Row("end somebody's session", (Role.OWNER, Role.ADMIN)),
    Permission.SESSION_READ: Row("see sessions", (Role.OWNER, Role.ADMIN, Role.AUDITOR)),
}
"""DESIGN section 4's table. An admin who owns nothing doesn't ask: they break. Reviewers, who see input, are the admins."""


def builtin(relations: Relations, permission: Permission, policy: Mapping[Permission, Row] = BUILTIN) -> Denied | None:
    """None when these relations to the app, read now, allow it. Locked people may do nothing; no row is a no."""
    if relations.locked:
        return no(Code.NOT_ENTITLED, "You are locked in the catalog and may do nothing here.", "Talk to your platform admins.")
    row = policy.get(permission)
    if row is None or not row.roles:
        return no(Code.NOT_ENTITLED, "Nobody may do that.", "Ask your platform admins.")
    if not _roles(relations).isdisjoint(row.roles):
        return None
    sentence = f"Only {_and(row.roles)} may {row.verb}."
    if permission is Permission.REQUEST and relations.admin:
        return no(Code.NOT_ENTITLED, sentence, "You are a platform admin: break the glass instead (--break-glass).")
    return no(Code.NOT_ENTITLED, sentence, "Ask one of them. Who owns the app stands in the catalog.")


def _roles(relations: Relations) -> frozenset[Role]:
    held = {Role.OWNER: relations.owner, Role.ADMIN: relations.admin, Role.AUDITOR: relations.auditor}
    return frozenset(role for role, true in held.items() if true)


def _and(roles: tuple[Role, ...]) -> str:
    return roles[0] if len(roles) == 1 else f"{', '.join(roles[:-1])} and {roles[-1]}"


# --- what may I do? ---------------------------------------------------------------------------------------------------


class Action(StrEnum):
    """What a person can do, as UI and `breakglass can` list it."""

    REQUEST = "request"
    BREAK = "break"
    APPROVE = "approve"
    OPEN = "open"
    END = "end"
    WATCH = "watch"
    REPLAY = "replay"
    REPLAY_INPUT = "replay_input"
    REVIEW = "review"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One action: yes, or why not, what to do about it, and who could."""

    action: Action
    allowed: bool
    code: Code | None
    sentence: str
    remedy: str
    who_could: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known now about one actor, one environment of one app, and, when the question is about one, a session.

    `permitted` is layer 2's answer for each permission: one that is missing is a no. `environment` is the first rule that
    is against any session there (tier, cluster, namespace, pods), None when nothing is. `open_session` is the actor's own.
    """

    actor: Person
    permitted: Mapping[Permission, Denied | None]
    environment: Denied | None
    open_session: Sid | None
    admins: tuple[Person, ...]
    owed: tuple[Sid, ...]
    now: datetime
    session: Session | None = None


_NEEDS: Mapping[Action, Permission] = {
    Action.REQUEST: Permission.REQUEST,
    Action.BREAK: Permission.BREAK,
    Action.APPROVE: Permission.APPROVE,
    Action.WATCH: Permission.SESSION_READ,
    Action.REPLAY: Permission.REPLAY,
    Action.REPLAY_INPUT: Permission.REPLAY_INPUT,
    Action.REVIEW: Permission.REVIEW,
}
_OWN: Mapping[Action, Row] = {
    Action.OPEN: Row("open a shell of this session", ()),
    Action.END: Row("end this session", BUILTIN[Permission.REVOKE].roles),
}
_UNANSWERED = no(Code.CANNOT_DECIDE, "Nobody has said that you may.", "Repeat; if it stays, tell the platform team.")
_NO_SESSION = no(Code.NOT_FOUND, "You have no session here.", "Ask for one first: breakglass shell APP/ENV -r WHY")


def _permitted(s: Situation, permission: Permission) -> Denied | None:
    return s.permitted.get(permission, _UNANSWERED)


def _begin(s: Situation) -> Denied | None:
    return s.environment or rules.one_open(s.open_session)


def _may_request(s: Situation) -> Denied | None:
    return _permitted(s, Permission.REQUEST) or _begin(s)


def _may_break(s: Situation) -> Denied | None:
    """A new session, or one that waits for an approver."""
    requester = s.session.request.requester if s.session else s.actor
    denied = _permitted(s, Permission.BREAK) or rules.may_break(s.actor, requester, s.admins, s.owed)
    if denied or s.session is None:
        return denied or _begin(s)
    broken = machine.step(s.session, machine.BreakGlass(at=s.now, breaker=s.actor))
    return s.environment or (broken if isinstance(broken, Denied) else None)


def _may_approve(s: Situation) -> Denied | None:
    denied = _permitted(s, Permission.APPROVE)
    if denied or s.session is None:
        return denied
    return rules.may_approve(s.session, s.actor, s.session.request.digest, s.now)


def _may_open(s: Situation) -> Denied | None:
    """The requester, still entitled to what they asked for: as an owner, or as the admin whose glass is broken."""
    if s.session is None:
        return _NO_SESSION
    entitled = Permission.BREAK if s.session.glass is not None else Permission.REQUEST
    return rules.may_open(s.session, s.actor, s.now) or _permitted(s, entitled) or s.environment


def _may_end(s: Situation) -> Denied | None:
    """One's own always: an end takes nothing from anybody."""
    if s.session is not None and not machine.is_open(s.session):
        return no(Code.WRONG_STATE, f"Session {s.session.sid} is over.", "Nothing is left to end.")
    if s.session is not None and s.actor.same(s.session.request.requester):
        return None
    return _permitted(s, Permission.REVOKE)


def _may_review(s: Situation) -> Denied | None:
    denied = _permitted(s, Permission.REVIEW)
    if denied or s.session is None:
        return denied
    reviewed = machine.step(s.session, machine.Review(at=s.now, reviewer=s.actor))
    return reviewed if isinstance(reviewed, Denied) else None


Rule = Callable[[Situation], Denied | None]

RULES: Mapping[Action, Rule] = {
    Action.REQUEST: _may_request,
    Action.BREAK: _may_break,
    Action.APPROVE: _may_approve,
    Action.OPEN: _may_open,
    Action.END: _may_end,
    Action.WATCH: lambda s: _permitted(s, Permission.SESSION_READ),
    Action.REPLAY: lambda s: _permitted(s, Permission.REPLAY),
    Action.REPLAY_INPUT: lambda s: _permitted(s, Permission.REPLAY_INPUT),
    Action.REVIEW: _may_review,
}
"""What is against an action, the permission first."""


def capabilities(situation: Situation, rules_of: Mapping[Action, Rule] = RULES) -> tuple[Capability, ...]:
    """Every action, each judged by the permission it needs and the rules known now. An action without rules is refused."""
    return tuple(_capability(situation, action, rules_of.get(action)) for action in Action)


def _capability(s: Situation, action: Action, rule: Rule | None) -> Capability:
    denied = rule(s) if rule else no(Code.CANNOT_DECIDE, "No rule says who may do that.", "Tell the platform team.")
    permission = _NEEDS.get(action)
    verb, roles = BUILTIN[permission] if permission else _OWN[action]
    return Capability(
        action=action,
        allowed=denied is None,
        code=denied.code if denied else None,
        sentence=denied.sentence if denied else f"You may {verb}.",
        remedy=denied.remedy if denied else "",
        who_could=(*([] if permission else ["its requester"]), *(role.value for role in roles)),
    )
