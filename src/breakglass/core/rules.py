"""Layer 3. The rules about requests, tiers, namespaces and people: facts in, a refusal or None out.

Must never: fetch a fact, believe a request about tier, cluster or namespace, or say yes where a fact is missing.
Rules about pods are in `targets.py`; what a session's own state allows is in `guards.py`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime

from breakglass.core import guards
from breakglass.core.codes import Code
from breakglass.core.facts import ClusterFacts, NamespaceFacts
from breakglass.core.model import (
    MINUTES_MAX,
    MINUTES_MIN,
    REASON_MAX,
    REASON_MIN,
    Denied,
    Environment,
    Mode,
    Person,
    Session,
    Sid,
    State,
    Tier,
    is_dns_label,
    no,
)

VERSION_MIN = (1, 35)
"""From 1.35 on a WebSocket attach needs `create`, not only `get` (gate AuthorizePodWebsocketUpgradeCreatePermission)."""
PROTECTED = frozenset({"argocd", "kyverno", "tower"})
"""Never a session there, nor in `kube-*`; site.yaml adds its own."""

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Unicode's bidirectional controls (UAX #9): they make a text read otherwise than it is stored."""


# --- the request's own words ------------------------------------------------------------------------------------------


def ask(*, reason: str, minutes: int, container: str | None, mode: str) -> Denied | None:
    """Whether the fields of a request make sense. The rest of it (app, environment) is found in the catalog or refused there."""
    return _reason(reason.strip()) or _minutes(minutes) or _container(container) or _mode(mode)


def _reason(reason: str) -> Denied | None:
    """One line of 5–500 characters that a person can read, stored as it reads: no controls, no bidi controls, valid Unicode."""
    if sum(unicodedata.category(char)[0] in "LNPS" for char in reason) < REASON_MIN:
        sentence = f"A reason of at least {REASON_MIN} characters is missing: others will read it tonight and at the review."
        return no(Code.REASON_MISSING, sentence, 'Say why in a few words: -r "checkout answers 502 since 03:10"')
    if len(reason) > REASON_MAX:
        return no(Code.BAD_REQUEST, f"The reason is {len(reason)} characters long; {REASON_MAX} are the most.", "Say it shorter.")
    bad = next((char for char in reason if char in _BIDI or unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}), None)
    if bad is None:
        return None
    sentence = f"The reason holds a character that people cannot see as it is (U+{ord(bad):04X})."
    return no(Code.BAD_REQUEST, sentence, "Write one line of plain text.")


def _minutes(minutes: int) -> Denied | None:
    if MINUTES_MIN <= minutes <= MINUTES_MAX:
        return None
    return no(
        Code.BAD_REQUEST,
        f"A session lasts {MINUTES_MIN} to {MINUTES_MAX} minutes, not {minutes}.",
        f"Ask for {MINUTES_MAX} or fewer.",
    )


def _container(container: str | None) -> Denied | None:
    if container is None or is_dns_label(container):
        return None
    return no(Code.BAD_REQUEST, "That is not a container's name.", "Use the name in the pod's spec, or leave it out.")


def _mode(mode: str) -> Denied | None:
    if mode == Mode.LIVE:
        return None
    if mode == Mode.COPY:
        return no(Code.MODE_UNAVAILABLE, "This Tower does not offer copy mode yet.", "Ask for a live session: leave --copy out.")
    return no(Code.BAD_REQUEST, "A session's mode is live or copy.", "Leave the mode out: live is the default.")


# --- where ------------------------------------------------------------------------------------------------------------


def tier(environment: Environment, cluster: ClusterFacts) -> Tier | Denied:
    """The environment's tier, only when cicd.yaml, Tower's registry and the cluster's own label say the same."""
    if environment.cluster != cluster.name:
        sentence = f"Tower looked at cluster {cluster.name}, but {environment.name} is on {environment.cluster}."
        return no(Code.CANNOT_DECIDE, sentence, "Repeat; if it stays, tell the platform team.")
    label = cluster.labelled_tier
    if label not in set(Tier):
        told = "no tier" if label is None else f"a tier there is not ({label})"
        sentence = f"The label tower.hangar/tier on kube-system of cluster {cluster.name} says {told}."
        remedy = f"Platform team: kubectl label namespace kube-system tower.hangar/tier={cluster.registered_tier}"
        return no(Code.TIER_UNKNOWN, sentence, remedy)
    if environment.tier == cluster.registered_tier == label:
        return environment.tier
    return no(
        Code.TIER_CONFLICT,
        f"The tier of {environment.name} is in doubt: cicd.yaml says {environment.tier}, Tower's registry says "
        f"{cluster.registered_tier} for cluster {cluster.name}, and the cluster's own label says {label}.",
        "All three must agree: correct the wrong one (cicd.yaml's owner, or the platform team).",
    )


def clock(cluster: ClusterFacts) -> Denied | None:
    """Whether Tower's clock and the API server's agree to 5 s: deadlines derive from the API server's."""
    skew = abs(cluster.server_time - cluster.read_at)
    if skew <= guards.SKEW_MAX:
        return None
    sentence = f"Tower's clock and the one of cluster {cluster.name} are {skew.total_seconds():.0f} s apart; 5 s are the most."
    return no(Code.CLOCK_SKEW, sentence, "Platform team: mend the clocks (NTP) on Tower's machine and the control plane.")


def cluster_version(cluster: ClusterFacts) -> Denied | None:
    """Whether the API server is new enough for the grants to be as narrow as they read."""
    if cluster.version >= VERSION_MIN:
        return None
    found, needed = (".".join(map(str, version)) for version in (cluster.version, VERSION_MIN))
    return no(
        Code.CLUSTER_TOO_OLD, f"Cluster {cluster.name} runs Kubernetes {found}; Tower needs {needed}.", "Upgrade the cluster."
    )


def namespace(environment: Environment, facts: NamespaceFacts | None, protected: frozenset[str] = frozenset()) -> Denied | None:
    """Whether the namespace is this app's by its own label *and* annotation, and none that must never see a session."""
    name = environment.namespace
    if name.startswith("kube-") or name in PROTECTED | protected:
        sentence = f"There is never a session in namespace {name}: whoever debugs there holds the cluster."
        return no(Code.PROTECTED_NAMESPACE, sentence, "Operators use kubectl there; the runbook says how.")
    if facts is None or facts.name != name:
        sentence = f"cicd.yaml names namespace {name}, and cluster {environment.cluster} has none of that name."
        return no(Code.NAMESPACE_NOT_APPS, sentence, "Deploy the app first, or correct cicd.yaml.")
    if facts.terminating:
        return no(Code.NAMESPACE_NOT_APPS, f"Namespace {name} is being deleted.", "Wait until it is there again, then ask again.")
    short = environment.app.rpartition("/")[2]
    if facts.app_label == short and facts.entity == environment.app:
        return None
    sentence = (
        f"Namespace {name} does not say it is {environment.app}'s: its label tower.hangar/app is {facts.app_label or 'missing'}, "
        f"its annotation tower.hangar/entity is {facts.entity or 'missing'}."
    )
    remedy = f"Platform team: label it tower.hangar/app={short} and annotate it tower.hangar/entity={environment.app}, if it is."
    return no(Code.NAMESPACE_NOT_APPS, sentence, remedy)


# --- who --------------------------------------------------------------------------------------------------------------


def may_approve(
    session: Session, approver: Person, request_digest: str, now: datetime, could: Sequence[str] = ()
) -> Denied | None:
    """Whether this person may say yes (or no) to exactly this request now; `could` names those who may, for the sentence."""
    if session.state is not State.REQUESTED:
        return no(Code.ALREADY_DECIDED, _decided(session), "Look at the session: breakglass sessions")
    denied = guards.may_decide(session, approver, request_digest, now)
    if denied is None or denied.code is not Code.SELF_APPROVAL:
        return denied
    if could:
        return no(
            denied.code, f"You asked for this yourself, so another person must approve it: {_one_of(could)}.", "Ask one of them."
        )
    return denied


def may_break(breaker: Person, requester: Person, admins: Sequence[Person], owed: Sequence[Sid] = ()) -> Denied | None:
    """Whether an admin may break the glass: another *human* among the admins can review it, and no account is owed.

    `requester` is the breaker, or whose waiting request it is: neither may review, so two admins can still be too few.
    """
    if not any(not admin.same(breaker) and not admin.same(requester) for admin in admins):
        sentence = "Nobody could review it: there is no platform admin who neither breaks the glass nor asked for the session."
        return no(Code.TOO_FEW_ADMINS, sentence, "Ask an owner or an admin to approve instead, or name another admin.")
    if not owed:
        return None
    sentence = f"You owe an account of an earlier broken glass: {', '.join(owed)}."
    return no(Code.ACCOUNT_OWED, sentence, f"Write it first: breakglass account {owed[0]}; or ask another admin.")


def may_open(session: Session, actor: Person, now: datetime) -> Denied | None:
    """Whether this person may open the session's next shell now. Entitlement and the cluster are read again by the caller."""
    if not actor.same(session.request.requester):
        sentence = f"Session {session.sid} is {session.request.requester.ref}'s; only they may type in it."
        return no(Code.NOT_ENTITLED, sentence, "You can watch it, or ask for a session of your own.")
    if session.state is State.APPROVED:
        return guards.may_start(session, now)
    sentence, remedy = _NOT_OPENABLE.get(session.state, _OVER)
    return no(Code.WRONG_STATE, sentence.format(sid=session.sid), remedy)


_LIVE = ("Session {sid} has a shell already.", "Go back to it, or end it: breakglass end SID")
_OVER = ("Session {sid} is over.", "Ask for a new session.")
_NOT_OPENABLE = {
    State.REQUESTED: ("Nobody has approved session {sid} yet.", "Wait for an approver, or ask an admin to break the glass."),
    State.OPENING: ("A shell of session {sid} is opening already.", "Wait for it."),
    State.ACTIVE: _LIVE,
    State.DISCONNECTED: _LIVE,
    State.SHELL_CLOSING: ("The last shell of session {sid} is still being undone.", "Open again in a few seconds."),
}


def one_open(sid: str | None) -> Denied | None:
    """One open session each: `sid` is the one this person holds under any of their names, None when none."""
    if sid is None:
        return None
    sentence = f"You have an open session already: {sid}. One open session each."
    return no(Code.SESSION_OPEN_ELSEWHERE, sentence, f"Go on in it, or end it first: breakglass end {sid}")


def _decided(session: Session) -> str:
    if session.glass is not None:
        return f"{session.glass.breaker.ref} broke the glass for this at {guards.clock(session.glass.at)}."
    if session.approval is not None:
        return f"{session.approval.approver.ref} approved this at {guards.clock(session.approval.at)}."
    if session.ended is not None:
        return f"This request is closed ({session.ended.reason.value.replace('_', ' ')}) since {guards.clock(session.ended.at)}."
    return f"This request does not wait any more: it is {session.state.value.replace('_', ' ')}."


def _one_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
