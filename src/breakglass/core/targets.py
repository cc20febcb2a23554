"""Layer 3. Which pod a shell may stand beside: each rule about a pod, and the choice among an app's pods.

Must never: guess. A fact the cluster does not give (a user id, a container's state) counts against the pod.
The admission policy judges the pod again (layer 5); whether the pod is the app's follows from its namespace (`rules.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from breakglass.core.codes import Code
from breakglass.core.facts import ContainerFacts, PodFacts
from breakglass.core.model import Denied, Request, Session, State, no

NOBODY = 65532
"""The user and group of a shell without process access: the debug image's own, of nobody else (distroless "nonroot")."""

IN_A_POD = frozenset(
    {State.OPENING, State.ACTIVE, State.DISCONNECTED, State.SHELL_CLOSING, State.CLOSING, State.STUCK},
)
"""The states in which a session's last shell may still be in its pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The pod a shell stands beside, pinned by UID; the container whose processes or files it is about; the shell's own ids.

    `mounts` are the container's volume mounts that may be mounted into the debug container, read-only.
    """

    pod: str
    pod_uid: str
    node: str
    container: str
    uid: int
    gid: int
    mounts: tuple[str, ...] = ()


def target(pod: PodFacts, request: Request, others: Sequence[Session] = ()) -> Target | Denied:
    """This pod as the target of this request, or the first rule against it. `others`: sessions in a state of `IN_A_POD`."""
    found = _judge(pod, request, others)
    return found if isinstance(found, Target) else found[1]


def choose(
    pods: Sequence[PodFacts],
    request: Request,
    *,
    wanted: str | None = None,
    last_uid: str | None = None,
    others: Sequence[Session] = (),
) -> Target | Denied:
    """The pod for the next shell.

    1. The one that was named, and no other. 2. The pod of the session's last shell, when it still fits: the person was in
    the middle of something. 3. A pod that is not ready before one that is, for that is the one the page is about; the
    oldest first, so that a pod which is only just starting comes after one that has failed for an hour.
    When none fits: the refusal of the pod that came nearest, for that is the one something can be done about.
    """
    if wanted is not None:
        named = next((pod for pod in pods if pod.name == wanted), None)
        if named is not None:
            return target(named, request, others)
        return no(Code.NO_PODS, f"There is no pod {wanted} in namespace {request.namespace}.", f"Choose one of: {_names(pods)}")
    if not pods:
        sentence = f"Namespace {request.namespace} on cluster {request.cluster} has no pods."
        return no(Code.NO_PODS, sentence, "Look at the deployment: is it scaled to zero, or refused?")
    ordered = sorted(pods, key=lambda pod: (pod.uid != last_uid, pod.ready, pod.created_at, pod.name))
    refused: list[tuple[int, Denied]] = []
    for pod in ordered:
        found = _judge(pod, request, others)
        if isinstance(found, Target):
            return found
        refused.append(found)
    nearest = max(refused, key=lambda refusal: refusal[0])[1]
    if len(pods) == 1:
        return nearest
    return no(nearest.code, f"None of {len(pods)} pods can take this shell. {nearest.sentence}", nearest.remedy)


def _judge(pod: PodFacts, request: Request, others: Sequence[Session]) -> Target | tuple[int, Denied]:
    """The target, or how many rules the pod passed and the refusal of the next."""
    case = _Case(pod=pod, request=request, container=_container(pod, request))
    for passed, rule in enumerate(_RULES):
        if rule.against(case):
            return passed, no(rule.code, case.say(rule.sentence), rule.remedy)
    container = case.container
    if container is None or pod.node is None:  # the rules have refused these
        return 0, no(Code.CANNOT_DECIDE, f"Pod {pod.name} cannot be judged.", _ANOTHER)
    if (denied := _busy(pod, request, others)) is not None:
        return len(_RULES), denied
    inside = request.process_access
    return Target(
        pod=pod.name,
        pod_uid=pod.uid,
        node=pod.node,
        container=container.name,
        uid=container.uid if inside and container.uid else NOBODY,
        gid=container.gid if inside and container.gid else NOBODY,
        mounts=container.writable_mounts,
    )


def _container(pod: PodFacts, request: Request) -> ContainerFacts | None:
    """The container that was asked for; else the only one; else the pod's own default (kubectl's annotation); else None."""
    name = request.container or (pod.containers[0].name if len(pod.containers) == 1 else pod.default_container)
    return next((container for container in pod.containers if container.name == name), None)


# --- the rules --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    pod: PodFacts
    request: Request
    container: ContainerFacts | None

    @property
    def inside(self) -> ContainerFacts | None:
        """The container whose processes the shell would reach; None without process access."""
        return self.container if self.request.process_access else None

    def say(self, sentence: str) -> str:
        """A rule's sentence about this pod."""
        names = ", ".join(container.name for container in self.pod.containers)
        name = self.container.name if self.container else self.request.container
        return sentence.format(pod=self.pod, container=name, containers=names)


class _Rule(NamedTuple):
    """A pod is refused with `code` when `against` holds; the sentence may name pod, container and the pod's containers."""

    code: Code
    against: Callable[[_Case], bool]
    sentence: str
    remedy: str


_ANOTHER = "Choose another pod of the app."
_OPERATORS = "Operators use kubectl there; the runbook says how."
_BESIDE = "Ask again without process access: that shell stands beside the app and survives its restarts."
_SPEC = "Ask again without process access, or set runAsUser and runAsGroup in the app's spec."

_RULES = (
    _Rule(
        Code.POD_FINISHED,
        lambda case: case.pod.phase in {"Succeeded", "Failed"},
        "Pod {pod.name} has finished ({pod.phase}); nothing can be added to it.",
        _ANOTHER,
    ),
    _Rule(
        Code.POD_FINISHED,
        lambda case: case.pod.terminating,
        "Pod {pod.name} is being deleted.",
        "Open again in a moment: its successor is taken.",
    ),
    _Rule(
        Code.POD_PENDING,
        lambda case: case.pod.phase == "Pending" or case.pod.node is None,
        "Pod {pod.name} has not started yet.",
        "The pod's events say why; another pod of the app may be running.",
    ),
    _Rule(
        Code.MIRROR_POD,
        lambda case: case.pod.mirror,
        "Pod {pod.name} is a static pod: its node owns it, not the API server.",
        _OPERATORS,
    ),
    _Rule(
        Code.OS_WINDOWS,
        lambda case: case.pod.windows,
        "Pod {pod.name} runs on Windows; the debug container is for Linux.",
        _OPERATORS,
    ),
    _Rule(
        Code.HOST_NAMESPACE_POD,
        lambda case: case.pod.host_namespaces,
        "Pod {pod.name} shares its node's namespaces: a shell there would be on the node.",
        _OPERATORS,
    ),
    _Rule(
        Code.TARGET_GID_ZERO,
        lambda case: case.pod.fs_group == 0 or 0 in case.pod.supplemental_groups,
        "Pod {pod.name} puts all its containers in group 0 (fsGroup or supplementalGroups), the debug container too.",
        "Give the pod a group of its own in its spec.",
    ),
    _Rule(
        Code.CONTAINER_UNCLEAR,
        lambda case: case.container is None and case.request.container is not None,
        "Pod {pod.name} has no container {container}; it has {containers}.",
        "Ask again and name one of those: --container NAME",
    ),
    _Rule(
        Code.CONTAINER_UNCLEAR,
        lambda case: case.container is None,
        "Pod {pod.name} has several containers and names no default: {containers}.",
        "Ask again and name one of those: --container NAME",
    ),
    _Rule(
        Code.USER_NAMESPACE_POD,
        lambda case: case.inside is not None and case.pod.user_namespace,
        "Pod {pod.name} has a user namespace of its own (hostUsers: false), so its processes cannot be reached.",
        _BESIDE,
    ),
    _Rule(
        Code.TARGET_ROOT,
        lambda case: case.inside is not None and not case.inside.uid,
        "Container {container} of pod {pod.name} runs as root, or does not say as whom it runs. Tower gives no root shell.",
        _SPEC,
    ),
    _Rule(
        Code.TARGET_GID_ZERO,
        lambda case: case.inside is not None and not case.inside.gid,
        "Container {container} of pod {pod.name} runs in group 0, or does not say in which group.",
        _SPEC,
    ),
    _Rule(
        Code.SHARED_PID_POD,
        lambda case: case.inside is None and case.pod.shares_processes,
        "The containers of pod {pod.name} share one process namespace: a shell beside them sees all their processes.",
        "Ask again with --process-access: that is what it would be.",
    ),
    _Rule(
        Code.NODE_NOT_READY,
        lambda case: not case.pod.node_ready or case.pod.phase != "Running",
        "Node {pod.node}, where pod {pod.name} is, is not ready and starts no container.",
        _ANOTHER,
    ),
    _Rule(
        Code.CONTAINER_NOT_RUNNING,
        lambda case: case.inside is not None and not case.inside.running,
        "Container {container} of pod {pod.name} is not running just now, so there is no process to join.",
        _BESIDE,
    ),
)
"""From what a pod is for good to what passes by itself: the later a pod fails, the nearer it came. `_busy` is the last."""


def _busy(pod: PodFacts, request: Request, others: Sequence[Session]) -> Denied | None:
    """Two shells in one process namespace could forge each other's output: never two where either has process access.

    1. The store's word: sessions whose shell is in this pod, also one that has not reached the cluster yet. 2. The
    cluster's: running debug containers of others. 3. The pod's mark of process access, which may outlive its session.
    """
    sid = str(request.sid)
    there: dict[str, bool] = {}
    for other in others:  # (1)
        if other.sid != sid and other.state in IN_A_POD and other.shell is not None and other.shell.pod_uid == pod.uid:
            there[other.sid] = other.request.process_access
    for debug in pod.debug_containers:  # (2)
        owner = debug.name.removeprefix("debug-").rpartition("-")[0]
        if debug.running and owner != sid:
            there[owner] = there.get(owner, False) or debug.targets_process
    mark = pod.process_access
    if mark is not None and mark != sid:  # (3)
        there[mark] = True
    clash = next((owner for owner, inside in there.items() if inside or request.process_access), None)
    if clash is None:
        return None
    sentence = f"Pod {pod.name} is in use by session {clash}, and one of the two has process access."
    remedy = "Choose another pod, or wait for that session's end."
    if clash == mark:
        remedy += " If it has ended, its mark was left: an operator removes the annotation tower.hangar/process-access."
    return no(Code.POD_BUSY, sentence, remedy)


def _names(pods: Sequence[PodFacts]) -> str:
    return ", ".join(sorted(pod.name for pod in pods)) or "none is there"
