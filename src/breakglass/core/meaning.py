"""What each refusal code means and what to do about it, in general; the refusal itself says it of the case. Pure, documentation.

`docs/reference/codes.md` is generated from this (`tests/docs/generate.py`), and a code that is missing here fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from breakglass.core.codes import Code


class Meaning(NamedTuple):
    """When a code is given, and what the person who meets it can do."""

    when: str
    do: str


MEANING: Mapping[Code, Meaning] = {
    Code.ACCOUNT_OWED: Meaning("You broke the glass before and have not written its account yet.", "Write the account first."),
    Code.ALREADY_DECIDED: Meaning("Somebody answered this request before you.", "Look at the session: it says who, and when."),
    Code.BAD_REQUEST: Meaning("A field of the request makes no sense.", "The sentence says which; correct it."),
    Code.CANNOT_DECIDE: Meaning("Something Tower must ask does not answer, and doubt is a no.", "Repeat; then the on-call line."),
    Code.CLOCK_SKEW: Meaning("Tower's clock and the API server's are more than 5 s apart.", "Platform team: mend the clocks."),
    Code.CLUSTER_TOO_OLD: Meaning("The API server is older than Kubernetes 1.35.", "Upgrade the cluster."),
    Code.CLUSTER_UNREACHABLE: Meaning("The cluster's API server does not answer Tower.", "Operators use kubectl."),
    Code.CONTAINER_NOT_RUNNING: Meaning(
        "The container is between two starts: there is no process to join.", "Ask without process access."
    ),
    Code.CONTAINER_UNCLEAR: Meaning("The pod has several containers, or none of that name.", "Name one: --container."),
    Code.CROSS_SITE: Meaning("Another web site tried to act in your name.", "Use Tower's own page; report it if you did."),
    Code.DIGEST_MISMATCH: Meaning("The answer, or cicd.yaml, is about another request.", "Look at the request again."),
    Code.HOST_NAMESPACE_POD: Meaning("The pod shares its node's network, processes or IPC.", "Operators use kubectl."),
    Code.INTERNAL: Meaning("Tower itself failed.", "Look at the session before you repeat; tell the platform team."),
    Code.MIRROR_POD: Meaning("The pod is a static pod; nothing can be added to it through the API.", "Operators use kubectl."),
    Code.MODE_UNAVAILABLE: Meaning("This Tower does not offer that mode.", "Ask for a live session."),
    Code.NAMESPACE_NOT_APPS: Meaning(
        "The namespace's label and annotation do not both name this app, or it is not there.", "Platform team: label it."
    ),
    Code.NODE_NOT_READY: Meaning("The pod's node starts no containers.", "Choose another pod."),
    Code.NOT_ENTITLED: Meaning("You are not one of those who may do this.", "The sentence says who may; ask one of them."),
    Code.NOT_ENTITLED_ANY_MORE: Meaning("You were entitled, and are not any more.", "Ask an owner of the app."),
    Code.NOT_FOUND: Meaning("There is no such thing, or none that you may see.", "Look it up: breakglass sessions."),
    Code.NOT_JSON: Meaning("A change was not sent as JSON.", "Send Content-Type: application/json."),
    Code.NOT_SIGNED_IN: Meaning("Tower does not know who you are.", "Sign in, or renew your token."),
    Code.NO_PODS: Meaning("The app has no pod there, or none of that name.", "Look at the deployment."),
    Code.NO_RECORD: Meaning("The record cannot be kept, and without a record there is no session.", "Look at spool and vault."),
    Code.OPEN_FAILED: Meaning("A shell could not be opened; what had been done is undone.", "Open again; the approval stands."),
    Code.OS_WINDOWS: Meaning("The pod runs on Windows.", "Operators use kubectl."),
    Code.POD_BUSY: Meaning("Another session is in the pod, and either has process access.", "Choose another pod, or wait."),
    Code.POD_FINISHED: Meaning("The pod has finished or is being deleted.", "Choose another pod."),
    Code.POD_PENDING: Meaning("The pod has not started yet.", "Its events say why."),
    Code.PREFLIGHT: Meaning("The cluster is not as Tower must find it.", "Platform team: breakglass doctor."),
    Code.PROTECTED_NAMESPACE: Meaning("The namespace is the platform's own.", "Operators use kubectl."),
    Code.REASON_MISSING: Meaning("A reason of at least 5 characters is missing.", "Say why in a few words."),
    Code.REQUEST_EXPIRED: Meaning(
        "The request was not answered within 60 minutes, or the approval not used within 15.", "Ask again."
    ),
    Code.SELF_APPROVAL: Meaning("You asked for it yourself, under this name or another.", "Another person must approve."),
    Code.SELF_REVIEW: Meaning("You broke the glass or asked for it yourself.", "Another admin must review."),
    Code.SESSION_OPEN_ELSEWHERE: Meaning("You have an open session; there is one each.", "Go on in it, or end it."),
    Code.SHARED_PID_POD: Meaning("The pod's containers share one process namespace.", "Ask with process access."),
    Code.SHELLS_SPENT: Meaning("All nine shells of the session were used.", "Ask for a new session."),
    Code.STORE_UNAVAILABLE: Meaning("Tower cannot write down what it is about to do.", "Look at Tower's store."),
    Code.TARGET_GID_ZERO: Meaning("The target runs in group 0, may do so, or gives it to all containers.", "Give it a group."),
    Code.TARGET_ROOT: Meaning("The target runs as root, or does not say as whom.", "Ask without process access."),
    Code.TICKET_INVALID: Meaning("The ticket is used up, older than 30 s, or somebody else's.", "Take a new one."),
    Code.TIER_CONFLICT: Meaning("cicd.yaml, registry and the cluster's own label disagree.", "Correct the wrong one."),
    Code.TIER_UNKNOWN: Meaning("The cluster says no tier, or Tower does not know it.", "Platform team: register it."),
    Code.TIME_OVER: Meaning("The session's time is over.", "Ask for a new session."),
    Code.TOO_FEW_ADMINS: Meaning("No other admin could review a broken glass.", "Ask somebody to approve instead."),
    Code.TOO_LARGE: Meaning("The request is larger than Tower reads.", "Send less."),
    Code.TOWER_STOPPING: Meaning("Tower is being stopped and opens nothing new.", "Repeat in a minute."),
    Code.UNKNOWN_APP: Meaning("The catalog has no such app.", "Look it up: breakglass can."),
    Code.UNKNOWN_ENVIRONMENT: Meaning("The app's cicd.yaml has no such environment.", "The remedy names those it has."),
    Code.USER_NAMESPACE_POD: Meaning(
        "The pod has a user namespace of its own; its processes cannot be reached.", "Ask without process access."
    ),
    Code.WRONG_STATE: Meaning("The session is not where this is possible.", "Look at the session again."),
}
