"""A pod's JSON becomes the facts the rules ask about, and no JSON makes it raise: an app's owner writes these objects."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from breakglass.adapters.kubernetes_facts import debug_container, namespace_facts, pod_facts
from breakglass.core.facts import ContainerFacts, DebugContainerFacts, NamespaceFacts, PodFacts

NODE = {"status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"operatingSystem": "linux"}}}
POD: dict[str, Any] = {
    "metadata": {
        "name": "checkout-1",
        "namespace": "checkout",
        "uid": "u-1",
        "creationTimestamp": "2026-12-01T03:19:33Z",
        "annotations": {
            "tower.hangar/process-access": "abcdefghij",
            "kubectl.kubernetes.io/default-container": "app",
        },
    },
    "spec": {
        "nodeName": "node-1",
        "terminationGracePeriodSeconds": 5,
        "hostUsers": True,
        "securityContext": {"runAsUser": 10, "runAsGroup": 11, "fsGroup": 12, "supplementalGroups": [13]},
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "frozen", "persistentVolumeClaim": {"claimName": "frozen", "readOnly": True}},
            {"name": "token", "projected": {}},
        ],
        "containers": [
            {
                "name": "app",
                "image": "app@sha256:1",
                "securityContext": {"runAsUser": 20},
                "volumeMounts": [
                    {"name": "scratch", "mountPath": "/tmp"},
                    {"name": "scratch", "mountPath": "/var/tmp"},
                    {"name": "data", "mountPath": "/data", "readOnly": True},
                    {"name": "frozen", "mountPath": "/frozen"},
                    {"name": "token", "mountPath": "/var/run/secrets"},
                ],
            },
            {"name": "sidecar", "image": "sidecar@sha256:2", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        ],
        "ephemeralContainers": [{"name": "debug-abcdefghij-1", "targetContainerName": "app"}, {"name": "hand-made"}],
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "app",
                "state": {"running": {}},
                "user": {"linux": {"uid": 1000, "gid": 0, "supplementalGroups": [0, 1000]}},
            },
            {"name": "sidecar", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        ],
        "ephemeralContainerStatuses": [
            {
                "name": "debug-abcdefghij-1",
                "state": {"terminated": {"exitCode": 137, "finishedAt": "2026-12-01T04:00:00Z", "message": "last words"}},
            }
        ],
    },
}


def changed(*path: str, to: Any) -> PodFacts:
    """The usual pod with one field changed."""
    pod = copy.deepcopy(POD)
    at = pod
    for key in path[:-1]:
        at = at.setdefault(key, {})
    at[path[-1]] = to
    return pod_facts(pod, NODE)


def test_a_pod_is_what_its_json_says() -> None:
    assert pod_facts(POD, NODE) == PodFacts(
        name="checkout-1",
        uid="u-1",
        namespace="checkout",
        phase="Running",
        node="node-1",
        node_ready=True,
        ready=True,
        terminating=False,
        created_at=datetime(2026, 12, 1, 3, 19, 33, tzinfo=UTC),
        containers=(
            ContainerFacts(
                name="app",
                image="app@sha256:1",
                running=True,
                uid=1000,
                gid=0,
                supplemental_groups=(0, 1000),
                writable_mounts=("scratch",),
            ),
            ContainerFacts(
                name="sidecar",
                image="sidecar@sha256:2",
                running=False,
                uid=10,
                gid=11,
                supplemental_groups=(13,),
                writable_mounts=("data",),
            ),
        ),
        debug_containers=(
            DebugContainerFacts(
                name="debug-abcdefghij-1",
                running=False,
                terminated_at=datetime(2026, 12, 1, 4, tzinfo=UTC),
                exit_code=137,
                message="last words",
                targets_process=True,
            ),
        ),
        process_access="abcdefghij",
        fs_group=12,
        supplemental_groups=(13,),
        default_container="app",
        grace_seconds=5,
    )


def test_the_runtimes_ids_beat_the_containers_spec_and_that_beats_the_pods() -> None:
    pod = copy.deepcopy(POD)
    del pod["status"]["containerStatuses"][0]["user"]
    app = pod_facts(pod, NODE).containers[0]
    assert (app.uid, app.gid) == (20, 11)


def test_uid_zero_is_an_id_and_not_a_missing_one() -> None:
    pod = copy.deepcopy(POD)
    pod["status"]["containerStatuses"][0]["user"]["linux"] |= {"uid": 0, "gid": 0}
    app = pod_facts(pod, NODE).containers[0]
    assert (app.uid, app.gid) == (0, 0)


def test_what_bars_a_shell_is_seen() -> None:
    for key in ("hostPID", "hostIPC", "hostNetwork"):
        assert changed("spec", key, to=True).host_namespaces
    assert changed("spec", "shareProcessNamespace", to=True).shares_processes
    assert changed("spec", "hostUsers", to=False).user_namespace
    assert changed("spec", "os", to={"name": "windows"}).windows
    assert changed("metadata", "annotations", to={"kubernetes.io/config.mirror": "hash"}).mirror
    assert changed("metadata", "deletionTimestamp", to="2026-12-01T03:19:33Z").terminating
    assert pod_facts(POD, {"status": {"nodeInfo": {"operatingSystem": "windows"}}}).windows


def test_a_node_that_is_gone_unknown_or_not_ready_is_not_ready() -> None:
    assert not pod_facts(POD, None).node_ready
    for word in ("False", "Unknown"):
        assert not pod_facts(POD, {"status": {"conditions": [{"type": "Ready", "status": word}]}}).node_ready


def test_a_debug_container_the_node_has_not_reported_neither_runs_nor_has_ended() -> None:
    assert debug_container(POD, "debug-abcdefghij-2") == DebugContainerFacts(name="debug-abcdefghij-2", running=False)


def test_a_forged_status_without_its_container_is_still_shown() -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["ephemeralContainers"] = []
    assert [c.name for c in pod_facts(pod, NODE).debug_containers] == ["debug-abcdefghij-1"]


def test_a_namespace_is_what_its_json_says() -> None:
    meta = {"name": "n", "labels": {"tower.hangar/app": "a"}, "annotations": {"tower.hangar/entity": "component:default/a"}}
    assert namespace_facts({"metadata": meta}) == NamespaceFacts(name="n", app_label="a", entity="component:default/a")
    assert namespace_facts({"metadata": {"name": "n", "deletionTimestamp": "x"}}).terminating


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def damage(value: Any, chance: random.Random, junk: list[Any]) -> Any:
    """`value` with anything anywhere missing, or replaced by something of another type."""
    if chance.random() < 0.05:
        return chance.choice(junk)
    if isinstance(value, dict):
        return {key: damage(item, chance, junk) for key, item in value.items() if chance.random() < 0.9}
    if isinstance(value, list):
        return [damage(item, chance, junk) for item in value if chance.random() < 0.9]
    return value


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32).map(random.Random), st.lists(JUNK, min_size=1, max_size=5))
def test_no_missing_or_odd_field_ever_raises(chance: random.Random, junk: list[Any]) -> None:
    pod, node = damage(POD, chance, junk), damage(NODE, chance, junk)
    facts = pod_facts(pod, node)
    assert isinstance(facts.grace_seconds, int)
    assert facts.created_at.tzinfo is not None
    assert all(container.uid is None or type(container.uid) is int for container in facts.containers)
    hash(facts)
    hash(namespace_facts(pod))
