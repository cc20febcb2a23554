"""Layer 5 on the real API server and a real pod, layers 1 to 4 off: what a thief with the portal's token and a grant can start.

And who gets to a debug container that runs. `policies/debug-container/cases.yaml` has every field; these are sent for good.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from breakglass.core.model import Sid
from breakglass.render import render
from lab import processes
from lab.install import install
from tests.asking import APPLY, JSON_PATCH, MERGE, STRATEGIC, Answer, Api, Who
from tests.installed import PORTAL, PREVIOUS_IMAGE, inputs
from tests.layers.granting import ADMIN, EDITOR, Place, debug_container, granted, new_sid, place
from tests.policies.matrix import merged

pytestmark = pytest.mark.lab

POLICY = "tower-breakglass-debug-container"
ALMIGHTY_PORTAL = Who(user=PORTAL, groups=("system:authenticated", "system:masters"))
"""The portal in a cluster whose RBAC was opened wide by mistake."""
SUPERVISOR = ["python3", "-I", "/usr/local/lib/tower/supervisor.py", "--max-seconds", "600", "--start-sha256", "c" * 64]
ONLY_PORTAL_ADDS = (
    POLICY,
    "only Tower's portal adds debug containers; ask for a session with breakglass shell, or name yours without debug-",
)
ONLY_PORTAL_ATTACHES = (POLICY, "only Tower's portal attaches to a debug container; watch the session with breakglass watch")
NOBODY_EXECS = (
    POLICY,
    "nobody runs exec in a debug container, and the portal nowhere at all; what runs beside the supervisor is in no record",
)


@pytest.fixture(scope="module")
def app(api: Api) -> Iterator[Place]:
    with place(api, "layer-5-pods") as made:
        yield made


@pytest.fixture(scope="module")
def sid() -> Sid:
    return new_sid()


@pytest.fixture(scope="module")
def holder(app: Place, thief: Who, sid: Sid) -> Iterator[Who]:
    """The thief, holding debug-live here by a grant."""
    with granted(app, thief, sid):
        yield thief


def refused(answer: Answer, sentence: str) -> None:
    assert answer.refused is not None, answer
    assert answer.refused[0] == POLICY
    assert sentence in answer.refused[1], answer


def there(app: Place) -> list[dict[str, Any]]:
    """The ephemeral containers that the pod has already: a patch that replaces the list must repeat them."""
    return list(app.api.ask(ADMIN, "GET", app.at()).body["spec"].get("ephemeralContainers", []))


def command(place: int, word: str) -> list[str]:
    return [*SUPERVISOR[:place], word, *SUPERVISOR[place + 1 :]]


ATTACKS: dict[str, tuple[dict[str, Any], str]] = {
    "an image of its own": ({"image": "registry.example.test/evil@sha256:" + "1" * 64}, "not the pinned debug image"),
    "a tag": ({"image": "registry.tower.local/tower/debug:latest"}, "not the pinned debug image"),
    "a digest that was pinned once": (
        {"image": "registry.tower.local/tower/debug@sha256:" + "0" * 64},
        "not the pinned debug image",
    ),
    "root": ({"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}, "never runs as root"),
    "group 0": ({"securityContext": {"runAsGroup": 0}}, "never runs as root or with group 0"),
    "a capability": ({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}, "drops ALL capabilities"),
    "all capabilities kept": ({"securityContext": {"capabilities": None}}, "drops ALL capabilities"),
    "privileges": ({"securityContext": {"privileged": True, "allowPrivilegeEscalation": True}}, "is not privileged"),
    "escalation": ({"securityContext": {"allowPrivilegeEscalation": True}}, "is not privileged"),
    "a writable root": ({"securityContext": {"readOnlyRootFilesystem": False}}, "read-only root"),
    "no seccomp": ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "seccomp profile is RuntimeDefault"),
    "another SELinux type": ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "no procMount"),
    "an environment": ({"env": [{"name": "LD_PRELOAD", "value": "/mnt/work/x.so"}]}, "no environment"),
    "the app's secrets as environment": ({"envFrom": [{"secretRef": {"name": "creds"}}]}, "no environment"),
    "a working directory of the app's": ({"workingDir": "/mnt/work"}, "no environment"),
    "a writable volume": ({"volumeMounts": [{"name": "work", "mountPath": "/mnt/work"}]}, "mounts a volume read-only"),
    "the app's folder over the supervisor": (
        {"volumeMounts": [{"name": "work", "mountPath": "/usr/local/lib/tower", "readOnly": True}]},
        "mounts a volume read-only",
    ),
    "the app's secret": ({"volumeMounts": [{"name": "creds", "mountPath": "/mnt/creds", "readOnly": True}]}, "never secrets"),
    "a terminal that outlives its client": ({"tty": True}, "no terminal of its own"),
    "a stream that stays open": ({"stdinOnce": False}, "reads stdin once"),
    "a shell": ({"command": ["bash", "-i"]}, "runs Tower's supervisor"),
    "a supervisor of its own": ({"command": command(2, "/dev/shm/supervisor.py")}, "runs Tower's supervisor"),
    "python that reads the environment": ({"command": command(1, "-E")}, "runs Tower's supervisor"),
    "another word": ({"command": [*SUPERVISOR, "--verbose"]}, "runs Tower's supervisor"),
    "a day": ({"command": command(4, "99999")}, "--max-seconds is 1 to 3660"),
    "a START key of nobody's": ({"command": command(6, "")}, "--start-sha256 is that key's hash"),
    "a name of its own": ({"name": "sidecar"}, "is named debug-<session>-<1 to 9>"),
    "the app's processes, unmarked": ({"targetContainerName": "app"}, "would join the app's processes"),
}


def test_the_debug_container_that_all_attacks_start_from_is_accepted(app: Place, holder: Who, sid: Sid) -> None:
    answer = app.add(holder, debug_container(sid, app.api.cluster.debug_image))

    assert answer.ok, answer


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_thief_with_a_grant_gets_no(app: Place, holder: Who, sid: Sid, attack: str) -> None:
    change, sentence = ATTACKS[attack]
    wanted = merged(debug_container(sid, app.api.cluster.debug_image), change)

    refused(app.add(holder, wanted, dry_run=False), sentence)


@pytest.mark.parametrize("field", ["ports", "livenessProbe", "lifecycle", "resources"])
def test_what_the_api_server_takes_from_nobody_is_not_left_to_the_policy(app: Place, holder: Who, sid: Sid, field: str) -> None:
    values: dict[str, Any] = {
        "ports": [{"containerPort": 8080}],
        "livenessProbe": {"exec": {"command": ["id"]}},
        "lifecycle": {"preStop": {"exec": {"command": ["id"]}}},
        "resources": {"limits": {"cpu": "1"}},
    }

    answer = app.add(holder, debug_container(sid, app.api.cluster.debug_image) | {field: values[field]}, dry_run=False)

    assert (answer.status, field in answer.message) == (422, True), answer


def test_a_thief_adds_no_second_container_with_the_first(app: Place, holder: Who, sid: Sid) -> None:
    good, also = (debug_container(sid, app.api.cluster.debug_image, number) for number in (1, 2))

    refused(app.add(holder, good, also, dry_run=False), "exactly one debug container is added at a time")
    refused(app.add(holder, good, {"name": "helper", "image": "busybox"}, dry_run=False), "exactly one debug container")


@pytest.mark.parametrize("kind", [STRATEGIC, MERGE, JSON_PATCH, APPLY])
def test_no_kind_of_patch_gets_a_root_shell_past_the_policy(app: Place, holder: Who, sid: Sid, kind: str) -> None:
    root = merged(debug_container(sid, app.api.cluster.debug_image), {"securityContext": {"runAsUser": 0}})
    body: Any = {"spec": {"ephemeralContainers": [root] if kind == APPLY else [*there(app), root]}}
    if kind == JSON_PATCH:
        body = [{"op": "add", "path": "/spec/ephemeralContainers", "value": [*there(app), root]}]
    if kind == APPLY:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": app.pod}} | body
    query = {"fieldManager": "x", "force": "true"} if kind == APPLY else {}

    refused(app.api.ask(holder, "PATCH", app.at("ephemeralcontainers"), body, kind=kind, query=query), "never runs as root")


def test_replacing_the_pod_whole_is_judged_the_same_way(app: Place, sid: Sid) -> None:
    """PUT needs `update`, which the grant does not give (layer 4); with every right it is refused all the same."""
    pod = dict(app.api.ask(ADMIN, "GET", app.at()).body)
    root = merged(debug_container(sid, app.api.cluster.debug_image), {"securityContext": {"runAsUser": 0}})
    pod["spec"] = pod["spec"] | {"ephemeralContainers": [*there(app), root]}

    refused(app.api.ask(ALMIGHTY_PORTAL, "PUT", app.at("ephemeralcontainers"), pod), "never runs as root")


# --- process access ---------------------------------------------------------------------------------------------------


def test_a_mark_in_the_same_request_is_not_stored_and_does_not_count(app: Place, holder: Who, sid: Sid) -> None:
    wanted = debug_container(sid, app.api.cluster.debug_image, target_container="app")
    mark = {"annotations": {"tower.hangar/process-access": sid}}
    body = {"metadata": mark, "spec": {"ephemeralContainers": [wanted]}}

    answer = app.api.ask(holder, "PATCH", app.at("ephemeralcontainers"), body, kind=STRATEGIC)

    refused(answer, "would join the app's processes")
    assert "annotations" not in app.api.ask(ADMIN, "GET", app.at()).body["metadata"]


def test_process_access_follows_the_pods_stored_mark_and_no_other(app: Place, holder: Who, sid: Sid) -> None:
    image, other = app.api.cluster.debug_image, new_sid()
    try:
        app.mark(other)
        refused(app.add(holder, debug_container(sid, image, target_container="app"), dry_run=False), "must name its session")
        refused(app.add(holder, debug_container(sid, image), dry_run=False), "another session has process access to this pod")
        app.mark(sid)
        refused(app.add(holder, debug_container(other, image, target_container="app"), dry_run=False), "must name its session")
        assert app.add(holder, debug_container(sid, image, target_container="app")).ok
    finally:
        app.mark(None)


SHARING: dict[str, tuple[dict[str, Any], str]] = {
    "shared processes": ({"shareProcessNamespace": True}, "would join the app's processes"),
    "the node's network": ({"hostNetwork": True}, "shares a namespace with its node"),
    "the node's processes": ({"hostPID": True}, "shares a namespace with its node"),
    "the node's semaphores": ({"hostIPC": True}, "shares a namespace with its node"),
    "files of group 0": ({"securityContext": {"fsGroup": 0}}, "gives its containers group 0"),
    "group 0 beside others": ({"securityContext": {"supplementalGroups": [1, 0]}}, "gives its containers group 0"),
}


@pytest.mark.parametrize("pod", SHARING)
def test_a_thief_gets_no_debug_container_into_a_pod_with(app: Place, holder: Who, sid: Sid, pod: str) -> None:
    spec, sentence = SHARING[pod]
    meta = {"generateName": "sharing-"}
    body = {"metadata": meta, "spec": {"schedulerName": "nobody", "containers": [{"name": "app", "image": "app"}], **spec}}
    made = app.api.ask(ADMIN, "POST", app.pods, body)
    assert made.ok, made

    refused(app.add(holder, debug_container(sid, app.api.cluster.debug_image), pod=made.body["metadata"]["name"]), sentence)


# --- everybody else ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [EDITOR, ADMIN], ids=["an owner of the namespace", "an administrator"])
def test_nobody_but_the_portal_adds_a_debug_container(app: Place, who: Who | None, sid: Sid) -> None:
    perfect = debug_container(sid, app.api.cluster.debug_image)

    for wanted in (perfect, {"name": "debug-me", "image": app.api.cluster.app_image}):
        assert app.add(who, wanted, dry_run=False).refused == ONLY_PORTAL_ADDS


@pytest.mark.parametrize("who", [EDITOR, ADMIN], ids=["an owner of the namespace", "an administrator"])
def test_everybodys_own_debugging_is_untouched(app: Place, who: Who | None) -> None:
    bare = {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "app", "image": "app"}]}}

    assert app.add(who, {"name": "debugger-x7k2p", "image": "busybox", "targetContainerName": "app"}).ok
    assert app.api.ask(who, "POST", app.pods, bare, dry_run=True).ok
    for path in ("exec?command=id&stdout=true", "exec?command=id&stdout=true&container=app", "attach?stdout=true&container=app"):
        answer = app.api.ask(who, "POST", app.at(path))
        assert (answer.status, answer.message) == (400, "Upgrade request required"), answer  # so it is past admission


@pytest.mark.parametrize("label", ["tower.hangar/copy-of", "tower.hangar/session"])
def test_nobody_passes_a_pod_off_as_a_copy(app: Place, label: str) -> None:
    labelled = {"metadata": {"name": "copy", "labels": {label: "x"}}, "spec": {"containers": [{"name": "app", "image": "app"}]}}

    for who in (EDITOR, ADMIN, ALMIGHTY_PORTAL):
        refused(app.api.ask(who, "POST", app.pods, labelled), "copy pods are not offered yet")


def test_a_portal_with_every_right_still_runs_nothing_in_an_app(app: Place) -> None:
    for method in ("GET", "POST"):
        for query in ("command=id", "command=id&container=app"):
            assert app.api.ask(ALMIGHTY_PORTAL, method, f"{app.at('exec')}?{query}").refused == NOBODY_EXECS
        for query in ("stdin=true", "stdin=true&container=app"):
            refused(app.api.ask(ALMIGHTY_PORTAL, method, f"{app.at('attach')}?{query}"), "attaches to debug containers only")


# --- one that runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def running(app: Place, holder: Who, sid: Sid) -> str:
    """A real debug container of the session, waiting for its START."""

    def runs() -> list[str]:
        found = app.api.ask(ADMIN, "GET", app.at()).body["status"].get("ephemeralContainerStatuses", [])
        return [item["name"] for item in found if item["name"].startswith(f"debug-{sid}-") and "running" in item["state"]]

    if not runs():
        taken = [item["name"] for item in there(app)]
        number = next(n for n in (9, 8, 7, 6, 5) if f"debug-{sid}-{n}" not in taken)
        answer = app.add(holder, debug_container(sid, app.api.cluster.debug_image, number), dry_run=False)
        assert answer.ok, answer
        processes.wait_until("the debug container's start", lambda: bool(runs()), 30)
    return runs()[0]


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
}


@pytest.mark.parametrize("who", [EDITOR, ADMIN], ids=["an owner of the namespace", "an administrator"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_running_debug_container_answers_nobody_but_the_portal(app: Place, running: str, who: Who | None, method: str) -> None:
    """The built-in role edit may attach and exec: without this policy, the first START is anybody's."""
    headers = UPGRADE if method == "GET" else {}

    attached = app.api.ask(who, method, f"{app.at('attach')}?container={running}&stdin=true&stdout=true", headers=headers)
    run = app.api.ask(who, method, f"{app.at('exec')}?container={running}&command=id&stdout=true", headers=headers)

    assert attached.refused == ONLY_PORTAL_ATTACHES, attached
    assert run.refused == NOBODY_EXECS, run


def test_the_portal_attaches_to_it_and_runs_nothing_beside_it(app: Place, holder: Who, running: str) -> None:
    run = app.api.ask(ALMIGHTY_PORTAL, "POST", f"{app.at('exec')}?container={running}&command=id&stdout=true")
    assert run.refused == NOBODY_EXECS, run

    url = f"{app.api.cluster.server}{app.at('attach')}?container={running}&stdin=true&stdout=true"
    headers = UPGRADE | {"Authorization": f"Bearer {holder.token}"}
    trusted = ssl.create_default_context(cafile=str(app.api.cluster.ca_file))
    with (
        httpx2.Client(verify=trusted, trust_env=False) as client,
        client.stream("GET", url, headers=headers) as got,
    ):
        assert got.status_code == 101, got.headers


def test_nobody_changes_a_debug_container_that_is_there(app: Place, holder: Who, running: str) -> None:
    for who in (holder, ALMIGHTY_PORTAL, ADMIN):
        answer = app.add(who, {"name": running, "image": app.api.cluster.app_image}, dry_run=False)

        assert answer.status == 422, answer
        assert "may not be changed" in answer.message or "existing ephemeral containers" in answer.message, answer


# --- operations -------------------------------------------------------------------------------------------------------


def test_an_image_that_is_rendered_away_is_refused_and_the_one_before_is_not_until_then(
    app: Place, holder: Who, sid: Sid, request: pytest.FixtureRequest
) -> None:
    cluster = app.api.cluster
    both = inputs(cluster.debug_image)
    one = replace(both, images=(cluster.debug_image,))
    assert app.add(holder, debug_container(sid, PREVIOUS_IMAGE)).ok

    with cluster.client() as client:
        request.addfinalizer(lambda: install_again(app, both))
        install(client, render(one))

    refused(app.add(holder, debug_container(sid, PREVIOUS_IMAGE)), "not the pinned debug image")
    assert app.add(holder, debug_container(sid, cluster.debug_image)).ok


def install_again(app: Place, wanted: Any) -> None:
    with app.api.cluster.client() as client:
        install(client, render(wanted))
