"""The lab keeps its two promises: the cluster is a real one, and nothing of it stays on the machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from dulwich.repo import Repo
from lightkube import ApiError
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Node, Pod
from lightkube.resources.rbac_authorization_v1 import RoleBinding

from image import build, oci
from lab import binaries, cleanup, demo_app, lifecycle, node, processes
from lab.api import Cluster, LabError
from lab.layout import Layout

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def spare() -> Iterator[Cluster]:
    """A second cluster, beside the session's, for what would disturb others."""
    made = Cluster.up(f"test-{os.getpid()}-spare", tier="ground")
    yield made
    made.down()


def pods(cluster: Cluster) -> list[Pod]:
    """The demo app's pods, once they are whole: other tests of the session may have deleted some."""
    with cluster.client() as client:
        processes.wait_until("demo app", lambda: all(demo_app.ready(client, *names) for names in demo_app.DEPLOYMENTS), 90)
        found = client.list(Pod, namespace="checkout", labels={"app": "checkout"})
        return [pod for pod in found if not pod.metadata.deletionTimestamp]


def cli(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "lab", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# ── a real cluster ──────────────────────────────────────────────────────────


def test_the_demo_apps_pods_run_and_answer(cluster: Cluster) -> None:
    found = pods(cluster)
    assert [pod.status.phase for pod in found] == ["Running", "Running"]
    for pod in found:
        assert urllib.request.urlopen(f"http://{pod.status.podIP}:8080/", timeout=5).read() == b"checkout: ok\n"


def test_the_containers_status_tells_the_targets_real_ids(cluster: Cluster) -> None:
    user = pods(cluster)[0].status.containerStatuses[0].user
    assert (user.linux.uid, user.linux.gid) == (1000, 1000)


def test_a_debug_container_runs_by_digest_with_no_registry_to_ask(cluster: Cluster) -> None:
    script = (
        "id -u; cat /proc/1/comm; touch /tmp/x || echo read-only; touch /dev/shm/x && echo writable; find / -xdev -perm /6000"
    )
    with cluster.client() as client:
        pod = pods(cluster)[0]
        body = {
            "name": f"tools-{os.getpid()}",
            "image": cluster.debug_image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/bash", "-c", f"exec 2>/dev/null; {script}"],
            "targetContainerName": "checkout",
            "securityContext": {
                "runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True, "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            },
        }  # fmt: skip
        path = f"/api/v1/namespaces/checkout/pods/{pod.metadata.name}/ephemeralcontainers"
        patch(cluster, path, {"spec": {"ephemeralContainers": [body]}})

        def ended() -> bool:
            statuses = client.get(Pod, pod.metadata.name, namespace="checkout").status.ephemeralContainerStatuses or []
            return any(s.name == body["name"] and s.state.terminated for s in statuses)

        processes.wait_until("the debug container's end", ended, 30)
        lines = list(client.log(pod.metadata.name, namespace="checkout", container=body["name"]))
    assert [line.strip() for line in lines] == ["1000", "serve", "read-only", "writable"]


def patch(cluster: Cluster, path: str, body: dict[str, object]) -> None:
    pki = cluster.state_dir / "pki"
    command = ["curl", "-sS", "--fail-with-body", "-X", "PATCH", "-H", "Content-Type: application/strategic-merge-patch+json"]
    command += ["--cacert", str(pki / "ca.crt"), "--cert", str(pki / "admin.crt"), "--key", str(pki / "admin.key")]
    done = subprocess.run([*command, "-d", json.dumps(body), cluster.server + path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_user_without_a_role_may_not_list_pods(cluster: Cluster) -> None:
    with cluster.client("ana", ["checkout-team"]) as client, pytest.raises(ApiError) as refused:
        list(client.list(Pod, namespace="checkout"))
    assert refused.value.status.code == 403
    assert 'User "ana" cannot list resource "pods"' in refused.value.status.message


def test_a_token_is_bound_to_its_service_account_and_time(cluster: Cluster) -> None:
    claims = jwt.decode(cluster.token("checkout", "default", 900), options={"verify_signature": False})
    assert claims["sub"] == "system:serviceaccount:checkout:default"
    assert claims["exp"] - claims["iat"] == 900


def test_the_audit_log_holds_grants_whole_and_nothing_else(cluster: Cluster) -> None:
    body = {
        "kind": "RoleBinding",
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": {"name": "audited", "namespace": "ledger"},
    }
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    with cluster.client() as client:
        client.create(from_dict({**body, "roleRef": role, "subjects": []}))
        client.delete(RoleBinding, "audited", namespace="ledger")
    events = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    created = [e for e in events if e["verb"] == "create" and e["objectRef"].get("name") == "audited"]
    assert [e["requestObject"]["roleRef"]["name"] for e in created] == ["view"]
    assert not [e for e in events if e.get("objectRef", {}).get("resource") == "secrets" and "requestObject" in e]


def test_the_delivery_file_is_at_the_head_of_main(cluster: Cluster, tmp_path: Path) -> None:
    with Repo(str(cluster.delivery_repository(tmp_path / "repo"))) as repository:
        assert repository.refs.get_symrefs()[b"HEAD"] == b"refs/heads/main"
        commit = repository[repository.head()]
        _, blob = repository[commit.tree][b"cicd.yaml"]
        assert f"production: {{cluster: {cluster.name}, namespace: checkout, tier: flight" in repository[blob].data.decode()


def test_the_api_server_comes_back_with_the_same_objects(spare: Cluster) -> None:
    before = {pod.metadata.uid for pod in pods(spare)}
    spare.restart_apiserver()
    assert {pod.metadata.uid for pod in pods(spare)} == before


def test_a_dead_node_is_seen_dead_and_its_pods_come_back_with_it(spare: Cluster) -> None:
    spare.kill_node()
    spare.wait_for_node("Unknown")
    assert lifecycle.missing(spare.layout) == ["pause", "containerd", "kubelet"]
    spare.start_node()
    assert [pod.status.phase for pod in pods(spare)] == ["Running", "Running"]
    assert lifecycle.missing(spare.layout) == []


# ── the image ───────────────────────────────────────────────────────────────


def test_no_file_of_the_debug_image_is_set_uid_or_a_device() -> None:
    with tarfile.open(build.base_layer(build.cache_dir()).path) as layer:
        members = layer.getmembers()
    assert [m.name for m in members if m.mode & 0o6000 or m.ischr() or m.isblk()] == []
    assert {m.mtime for m in members} == {oci.EPOCH}


def test_the_same_supervisor_gives_the_same_image_and_another_a_different_one(tmp_path: Path) -> None:
    source = tmp_path / "supervisor.py"
    source.write_text("print('one')\n")
    first = build.debug_image(source, tmp_path / "a").reference
    assert build.debug_image(source, tmp_path / "b").reference == first
    source.write_text("print('two')\n")
    assert build.debug_image(source, tmp_path / "c").reference != first


# ── nothing stays, nothing collides ─────────────────────────────────────────


def test_a_cluster_beside_another_shares_nothing_and_its_end_hurts_nobody(cluster: Cluster, spare: Cluster) -> None:
    assert cluster.slot != spare.slot
    third = Cluster.up(f"test-{os.getpid()}-third", demo=False)
    third.down()
    assert cleanup.leftovers(third.layout) == []
    for standing in (cluster, spare):
        assert lifecycle.missing(standing.layout) == []
        with standing.client() as client:
            assert [n.metadata.name for n in client.list(Node)] == [standing.node_name]
        assert [pod.status.phase for pod in pods(standing)] == ["Running", "Running"]


def test_nothing_is_left_after_every_process_was_killed() -> None:
    made = Cluster.up(f"test-{os.getpid()}-killed")
    ids = [pod.status.containerStatuses[0].containerID.removeprefix("containerd://") for pod in pods(made)]
    assert all(made.container_pids(number) for number in ids)
    victims = [process.pid for process in processes.alive(made.layout)]
    random.shuffle(victims)
    processes.send(victims, signal.SIGKILL)
    made.down()
    assert cleanup.leftovers(made.layout) == []
    assert [made.container_pids(number) for number in ids] == [[], []]
    assert [str(path) for number in ids for path in Path("/sys/fs/cgroup").glob(f"*/k8s.io/{number}")] == []
    assert not [link for link in node.links() if link["ifname"] in (f"tower{made.slot}", f"tower{made.slot}n")]
    assert f"10.214.{made.slot}." not in node.run(["ip", "route", "show", "table", "all"])


@pytest.mark.parametrize("stop_after", ["node", "kube-apiserver", "containerd", "kubelet"])
def test_a_start_killed_half_way_is_removed_whole(stop_after: str) -> None:
    layout = Layout.of(f"test-{os.getpid()}-half")
    program = {"node": node.INIT}.get(stop_after, stop_after)
    with cli("up", "--name", layout.name, "--bare") as starting:
        processes.wait_until(f"{program} started", lambda: bool(processes.pids(layout, program)), 60, every=0.01)
        starting.kill()
    assert cleanup.leftovers(layout) != []
    cleanup.down(layout)
    assert cleanup.leftovers(layout) == []


def test_an_interrupted_start_removes_itself() -> None:
    layout = Layout.of(f"test-{os.getpid()}-int")
    with cli("up", "--name", layout.name, "--bare") as starting:
        processes.wait_until("the API server started", lambda: bool(processes.pids(layout, "kube-apiserver")), 60, every=0.01)
        starting.send_signal(signal.SIGINT)
    assert starting.returncode == 1
    assert cleanup.leftovers(layout) == []


def test_a_second_start_builds_nothing_and_a_third_changes_nothing(spare: Cluster) -> None:
    said: list[str] = []
    before = {process.pid for process in processes.alive(spare.layout)}
    again = Cluster.up(spare.name, say=said.append)
    assert again == spare
    assert said[0] == f"  {spare.name} is up already"
    assert before <= {process.pid for process in processes.alive(spare.layout)}
    assert not [line for line in spare_steps(spare) if line.startswith("building")]


def spare_steps(cluster: Cluster) -> list[str]:
    return list(lifecycle.read_record(cluster.layout)["seconds"])


def test_a_directory_that_is_not_the_labs_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(LabError, match="was not made by the lab"):
        cleanup.down(Layout.of("x", tmp_path))
    with pytest.raises(LabError, match="was not made by the lab"):
        Cluster.up("x", state_dir=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "-a", "a-", "a" * 41, "a\n"])
def test_a_name_that_could_break_a_path_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="is not a cluster name"):
        Layout.of(name)


def test_a_program_on_path_of_another_version_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "etcd"
    tool = next(tool for tool in binaries.TOOLS if tool.name == "etcd")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for version, taken in (("13.7.3", None), ("3.7.30", None), (binaries.ETCD, fake)):
        fake.write_text(f"#!/bin/sh\necho etcd Version: {version}\n")
        fake.chmod(0o755)
        assert binaries.on_path(tool) == taken


def test_status_fails_when_a_program_is_gone(spare: Cluster) -> None:
    with cli("status", "--name", spare.name, "--json") as asked:
        assert json.loads(asked.communicate()[0])["not_running"] == []
    assert asked.returncode == 0
    spare.stop_kubelet()
    with cli("status", "--name", spare.name, "--json") as asked:
        assert json.loads(asked.communicate()[0])["not_running"] == ["kubelet"]
    assert asked.returncode == 1
    spare.start_kubelet()
