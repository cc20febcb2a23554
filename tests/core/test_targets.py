"""Layer 3: pods no shell may stand beside, and the pod somebody means who was paged."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakglass.core.codes import Code
from breakglass.core.facts import DebugContainerFacts, PodFacts
from breakglass.core.model import Denied, Request, Session, Sid, State
from breakglass.core.targets import IN_A_POD, NOBODY, Target, choose, target
from tests.core.builders import CONTAINER, EVERY, INSIDE, NOW, POD, REQUEST

OTHER = replace(REQUEST, sid=Sid("zzzzzzzzzz"))
SIDECAR = replace(CONTAINER, name="proxy", uid=0, gid=0)
THEIRS = DebugContainerFacts(name="debug-zzzzzzzzzz-1", running=True)
OURS = DebugContainerFacts(name="debug-abcdefghij-1", running=True, targets_process=True)


def web(**fields: Any) -> dict[str, Any]:
    return {"containers": (replace(CONTAINER, **fields),)}


def code(found: Target | Denied) -> Code | None:
    if isinstance(found, Target):
        return None
    assert found.sentence.endswith(".")
    assert found.remedy.rstrip("E").endswith((".", "NAM")), found
    return found.code


BOTH = (False, True)
"""Without and with process access."""


@pytest.mark.parametrize("inside", BOTH)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"ready": False}, None),
        ({"phase": "Pending"}, Code.POD_PENDING),
        ({"node": None}, Code.POD_PENDING),
        ({"phase": "Succeeded"}, Code.POD_FINISHED),
        ({"phase": "Failed"}, Code.POD_FINISHED),
        ({"terminating": True}, Code.POD_FINISHED),
        ({"phase": "Unknown"}, Code.NODE_NOT_READY),
        ({"node_ready": False}, Code.NODE_NOT_READY),
        ({"mirror": True}, Code.MIRROR_POD),
        ({"windows": True}, Code.OS_WINDOWS),
        ({"host_namespaces": True}, Code.HOST_NAMESPACE_POD),
        ({"fs_group": 0}, Code.TARGET_GID_ZERO),
        ({"fs_group": 2000}, None),
        ({"supplemental_groups": (2000, 0)}, Code.TARGET_GID_ZERO),
        ({"containers": ()}, Code.CONTAINER_UNCLEAR),
        ({"containers": (CONTAINER, SIDECAR)}, Code.CONTAINER_UNCLEAR),
        ({"containers": (CONTAINER, SIDECAR), "default_container": "web"}, None),
        ({"containers": (CONTAINER, SIDECAR), "default_container": "gone"}, Code.CONTAINER_UNCLEAR),
        ({"debug_containers": (OURS,), "process_access": "abcdefghij"}, None),
        ({"debug_containers": (replace(THEIRS, targets_process=True),)}, Code.POD_BUSY),
        ({"debug_containers": (replace(THEIRS, targets_process=True, running=False),)}, None),
        ({"process_access": "zzzzzzzzzz"}, Code.POD_BUSY),
    ],
)
def test_a_pod_that_no_shell_may_stand_beside(inside: bool, fields: dict[str, Any], expected: Code | None):
    assert code(target(replace(POD, **fields), INSIDE if inside else REQUEST)) is expected


@pytest.mark.parametrize(
    ("fields", "beside", "inside"),
    [
        (web(uid=0), None, Code.TARGET_ROOT),
        (web(uid=None), None, Code.TARGET_ROOT),
        (web(gid=0), None, Code.TARGET_GID_ZERO),
        (web(gid=None), None, Code.TARGET_GID_ZERO),
        (web(running=False), None, Code.CONTAINER_NOT_RUNNING),
        ({"user_namespace": True}, None, Code.USER_NAMESPACE_POD),
        ({"shares_processes": True}, Code.SHARED_PID_POD, None),
        ({"debug_containers": (THEIRS,)}, None, Code.POD_BUSY),
    ],
)
def test_process_access_has_its_own_noes(fields: dict[str, Any], beside: Code | None, inside: Code | None):
    pod = replace(POD, **fields)
    assert (code(target(pod, REQUEST)), code(target(pod, INSIDE))) == (beside, inside)


def test_a_shell_beside_the_app_is_nobody_and_one_inside_has_the_apps_own_ids():
    assert target(POD, REQUEST) == Target(
        pod="checkout-1", pod_uid="uid-1", node="node-1", container="web", uid=NOBODY, gid=NOBODY, mounts=("/cache",)
    )
    inside = target(POD, INSIDE)
    assert isinstance(inside, Target)
    assert (inside.uid, inside.gid) == (1000, 2000)


@given(uid=st.none() | st.integers(0, 2), gid=st.none() | st.integers(0, 2), inside=st.booleans(), shares=st.booleans())
def test_no_shell_is_ever_root_or_in_group_zero(uid: int | None, gid: int | None, inside: bool, shares: bool):
    pod = replace(POD, shares_processes=shares, **web(uid=uid, gid=gid))
    found = target(pod, INSIDE if inside else REQUEST)
    if isinstance(found, Target):
        assert found.uid > 0
        assert found.gid > 0
        assert not inside or (found.uid, found.gid) == (uid, gid)


def test_a_container_that_was_asked_for_is_taken_or_its_siblings_are_named():
    pod = replace(POD, containers=(SIDECAR, CONTAINER), default_container="proxy")
    found = target(pod, replace(INSIDE, container="web"))
    assert isinstance(found, Target)
    assert found.container == "web"
    denied = target(pod, replace(REQUEST, container="wep"))
    assert isinstance(denied, Denied)
    assert denied.sentence == "Pod checkout-1 has no container wep; it has proxy, web."


# --- another session there --------------------------------------------------------------------------------------------


def another(state: State, *, inside: bool, uid: str = "uid-1") -> Session:
    session = EVERY[state]
    shells = tuple(replace(shell, pod_uid=uid) for shell in session.shells)
    return replace(session, request=replace(OTHER, process_access=inside), shells=shells)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("theirs", BOTH)
@pytest.mark.parametrize("ours", BOTH)
def test_two_sessions_share_a_pod_only_when_neither_has_process_access(state: State, theirs: bool, ours: bool):
    busy = state in IN_A_POD and (theirs or ours)
    found = target(POD, INSIDE if ours else REQUEST, [another(state, inside=theirs)])
    assert code(found) is (Code.POD_BUSY if busy else None)


def test_a_session_in_another_pod_or_ones_own_is_in_nobodys_way():
    elsewhere = another(State.ACTIVE, inside=True, uid="uid-2")
    own = replace(EVERY[State.ACTIVE], request=INSIDE)
    assert code(target(POD, INSIDE, [elsewhere, own])) is None


def test_a_mark_that_was_left_behind_says_how_to_remove_it():
    denied = target(replace(POD, process_access="zzzzzzzzzz"), REQUEST)
    assert isinstance(denied, Denied)
    assert "tower.hangar/process-access" in denied.remedy


@pytest.mark.parametrize("name", ["debug-", "debug", "debug-abcdefghij", "debug-x-y-z", "tools"])
def test_a_forged_debug_container_counts_as_somebody_elses(name: str):
    pod = replace(POD, debug_containers=(DebugContainerFacts(name=name, running=True),))
    assert code(target(pod, INSIDE)) is Code.POD_BUSY


# --- the choice -------------------------------------------------------------------------------------------------------


def pod(number: int, **fields: Any) -> PodFacts:
    defaults = {"name": f"checkout-{number}", "uid": f"uid-{number}", "created_at": NOW - timedelta(hours=number)}
    return replace(POD, **defaults | fields)


def chosen(*pods: PodFacts, request: Request = REQUEST, **wishes: Any) -> str | Denied:
    found = choose(pods, request, **wishes)
    return found.pod if isinstance(found, Target) else found


def test_the_pod_the_page_is_about_comes_first():
    starting = pod(0, ready=False)
    assert chosen(pod(1), starting, pod(3, ready=False), pod(9)) == "checkout-3"
    assert chosen(pod(1), starting) == "checkout-0"
    assert chosen(pod(1), pod(9), pod(5)) == "checkout-9"


def test_a_pod_that_was_named_is_taken_or_refused_and_never_replaced():
    assert chosen(pod(1), pod(2), wanted="checkout-1") == "checkout-1"
    denied = chosen(pod(1, phase="Failed"), pod(2), wanted="checkout-1")
    assert isinstance(denied, Denied)
    assert denied.code is Code.POD_FINISHED
    missing = chosen(pod(1), pod(2), wanted="checkout-7")
    assert isinstance(missing, Denied)
    assert (missing.code, missing.remedy) == (Code.NO_PODS, "Choose one of: checkout-1, checkout-2")


def test_a_lost_shell_goes_back_to_its_pod_while_that_is_there():
    assert chosen(pod(1), pod(2, ready=False), last_uid="uid-1") == "checkout-1"
    assert chosen(pod(1, terminating=True), pod(2), last_uid="uid-1") == "checkout-2"


def test_a_pod_that_cannot_take_the_shell_is_passed_over():
    assert chosen(pod(9, node_ready=False, ready=False), pod(1)) == "checkout-1"
    assert chosen(pod(9), pod(1), request=INSIDE, others=[another(State.ACTIVE, inside=False, uid="uid-9")]) == "checkout-1"


def test_no_pods_at_all_is_said_as_that():
    denied = chosen()
    assert isinstance(denied, Denied)
    assert denied.code is Code.NO_PODS


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([pod(1, phase="Failed"), pod(2, process_access="zzzzzzzzzz"), pod(3, phase="Pending")], Code.POD_BUSY),
        ([pod(1, phase="Pending"), pod(2, **web(uid=0)), pod(3, phase="Succeeded")], Code.TARGET_ROOT),
        ([pod(1, node_ready=False), pod(2, terminating=True)], Code.NODE_NOT_READY),
    ],
)
def test_when_no_pod_fits_the_refusal_is_of_the_one_that_came_nearest(pods: list[PodFacts], expected: Code):
    for order in (pods, pods[::-1]):
        denied = chosen(*order, request=INSIDE)
        assert isinstance(denied, Denied)
        assert denied.code is expected
        assert denied.sentence.startswith(f"None of {len(pods)} pods can take this shell. ")


def test_a_pods_name_cannot_play_with_the_sentence():
    denied = target(replace(POD, name="{pod.uid}", phase="Failed"), REQUEST)
    assert isinstance(denied, Denied)
    assert denied.sentence == "Pod {pod.uid} has finished (Failed); nothing can be added to it."
