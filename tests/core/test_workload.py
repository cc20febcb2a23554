"""Layer 5's counterpart: the debug container can be made in one form only, and no value gets it out of that form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakglass.core import expiry, workload
from breakglass.core.model import Sid

IMAGE = "registry.example.test:5000/tower/debug@sha256:" + "1" * 64
SIDS = st.from_regex(r"[a-z2-7]{10}", fullmatch=True).map(Sid)


def made(**changes: Any) -> dict[str, Any]:
    values = {
        "name": "debug-abcdefgh23-1",
        "image": IMAGE,
        "target_container": None,
        "uid": 1000,
        "gid": 2000,
        "start_sha256": "c" * 64,
        "max_seconds": 1860,
    }
    return workload.debug_container(**(values | changes))


@given(uid=st.integers(1, (1 << 31) - 1), gid=st.integers(1, (1 << 31) - 1), seconds=st.integers(1, 3660), mounts=st.booleans())
def test_whatever_the_values_the_container_is_unprivileged_and_ends_by_itself(
    uid: int, gid: int, seconds: int, mounts: bool
) -> None:
    found = made(uid=uid, gid=gid, max_seconds=seconds, mounts=("data",) if mounts else ())

    assert found["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": gid,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert found["command"][:3] == ["python3", "-I", "/usr/local/lib/tower/supervisor.py"]
    assert found["command"][3:] == ["--max-seconds", str(seconds), "--start-sha256", "c" * 64]
    allowed = {"name", "image", "imagePullPolicy", "command", "stdin", "stdinOnce", "securityContext"}
    assert set(found) == allowed | ({"volumeMounts"} if mounts else set())


def test_the_container_ends_with_its_stream_and_has_no_terminal() -> None:
    found = made()

    assert (found["stdin"], found["stdinOnce"], "tty" in found, "args" in found) == (True, True, False, False)


def test_only_process_access_joins_the_apps_processes() -> None:
    assert "targetContainerName" not in made()
    assert made(target_container="web")["targetContainerName"] == "web"


def test_a_volume_is_read_only_and_never_where_programs_are() -> None:
    assert made(mounts=("data", "cache"))["volumeMounts"] == [
        {"name": "data", "mountPath": "/mnt/data", "readOnly": True},
        {"name": "cache", "mountPath": "/mnt/cache", "readOnly": True},
    ]


@pytest.mark.parametrize(("uid", "gid"), [(0, 1000), (1000, 0), (-1, 1000), (1000, -1), (1 << 31, 1000)])
def test_root_and_group_zero_are_never_made(uid: int, gid: int) -> None:
    with pytest.raises(ValueError, match="never runs as uid or gid 0"):
        made(uid=uid, gid=gid)


@pytest.mark.parametrize("seconds", [0, -1, 3661, 99999])
def test_a_container_that_outlives_its_session_is_never_made(seconds: int) -> None:
    with pytest.raises(ValueError, match="a shell lives 1 to 3660 seconds"):
        made(max_seconds=seconds)


@pytest.mark.parametrize("digest", ["", "c" * 63, "C" * 64, "c" * 64 + "\n", "c" * 65])
def test_a_container_that_anybody_could_start_is_never_made(digest: str) -> None:
    with pytest.raises(ValueError, match="the START key's hash"):
        made(start_sha256=digest)


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "registry.example.test/tower/debug:latest"},
        {"image": "registry.example.test/tower/debug"},
        {"image": IMAGE + "\n"},
        {"image": "debug@sha256:" + "1" * 63},
        {"name": "debug-abcdefgh23"},
        {"name": "debug-abcdefgh23-0"},
        {"name": "debug-ABCDEFGH23-1"},
        {"mounts": ("../usr/bin",)},
        {"mounts": ("",)},
    ],
)
def test_a_foreign_name_image_or_mount_is_never_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a debug container has a session's name"):
        made(**changes)


@given(SIDS, st.integers(1, 9))
def test_a_debug_containers_name_tells_its_session_and_shell(sid: Sid, number: int) -> None:
    assert workload.parse_container_name(workload.container_name(sid, number)) == (sid, number)


@given(st.text())
def test_no_other_name_is_taken_for_a_debug_container(text: str) -> None:
    parsed = workload.parse_container_name(text)

    assert parsed is None or workload.container_name(*parsed) == text


@pytest.mark.parametrize(("sid", "number"), [("abcdefgh23", 0), ("abcdefgh23", 10), ("abcdefgh2", 1), ("ABCDEFGH23", 1), ("", 1)])
def test_a_name_that_no_session_has_is_never_made(sid: str, number: int) -> None:
    with pytest.raises(ValueError, match="numbered 1 to 9"):
        workload.container_name(Sid(sid), number)


def test_the_clocks_and_the_container_agree_on_the_longest_shell() -> None:
    assert expiry.MAX_SECONDS == workload.MAX_SECONDS
