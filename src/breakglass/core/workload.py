"""Layer 5's counterpart: the debug container, in the one form that `policies/debug-container` lets through.

Pure. Must never: set a field that the policy does not list, name an image by tag, or take uid, image or command from a request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from breakglass.core.model import SHELLS_MAX, Sid, is_dns_label, is_sid

PROCESS_ACCESS: Final = "tower.hangar/process-access"
SUPERVISOR: Final = "/usr/local/lib/tower/supervisor.py"
MAX_SECONDS: Final = 3660
MOUNTS: Final = "/mnt"

_CONTAINER = re.compile(r"debug-(?P<sid>[a-z2-7]{10})-(?P<number>[1-9])")
_HEX = re.compile(r"[0-9a-f]{64}")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9.\-_:/]*@sha256:[0-9a-f]{64}")


def container_name(sid: Sid, number: int) -> str:
    """What the debug container of a session's shell `number` (1–9) is called; ValueError when it can't be one."""
    if not is_sid(sid) or not 1 <= number <= SHELLS_MAX:
        raise ValueError(f"shells of a session are numbered 1 to {SHELLS_MAX}, and its id has ten characters")
    return f"debug-{sid}-{number}"


def parse_container_name(text: str) -> tuple[Sid, int] | None:
    """Session and shell number of `debug-<sid>-<n>`, or None when it is another container."""
    found = _CONTAINER.fullmatch(text)
    return (Sid(found["sid"]), int(found["number"])) if found else None


def is_pinned(image: str) -> bool:
    """Whether an image is named by digest (`repository@sha256:<hex>`, without a tag's freedom to move)."""
    return _IMAGE.fullmatch(image) is not None


def command(*, max_seconds: int, start_sha256: str) -> list[str]:
    """The supervisor's command line, whole: layer 5 compares it word by word. ValueError when a value is out of bounds."""
    if not 1 <= max_seconds <= MAX_SECONDS:
        raise ValueError(f"a shell lives 1 to {MAX_SECONDS} seconds, not {max_seconds}")
    if _HEX.fullmatch(start_sha256) is None:
        raise ValueError("the START key's hash is not 64 hex digits")
    return ["python3", "-I", SUPERVISOR, "--max-seconds", str(max_seconds), "--start-sha256", start_sha256]


def debug_container(
    *,
    name: str,
    image: str,
    target_container: str | None,
    uid: int,
    gid: int,
    start_sha256: str,
    max_seconds: int,
    mounts: Sequence[str] = (),
) -> dict[str, Any]:
    """The ephemeral container to add to the pod (KEP-277), as it is.

    1. Its command is the supervisor; the shell starts for whoever holds the START key (`--start-sha256`), and for nobody else.
    2. stdin, once, and no terminal: the container ends when the stream does (measured: with a terminal a shell survives it).
    3. uid and gid are the target's real ones and never 0; nothing in it is privileged or writable.
    4. `target_container` joins its process namespace: only for a session with process access; layer 5 compares the pod's
       annotation, and the rule that it was asked for and approved is layer 3's.
    5. `mounts` names emptyDir or PVC volumes of the pod, each read-only at `/mnt/<volume>`: never where a program is looked for.

    ValueError when a value can't be one of a debug container: a bug of the caller, never a person's mistake.
    """
    if parse_container_name(name) is None or not is_pinned(image) or not all(map(is_dns_label, mounts)):
        raise ValueError("a debug container has a session's name, an image named by digest and volumes by name")
    if not (0 < uid < 1 << 31 and 0 < gid < 1 << 31):
        raise ValueError("a debug container never runs as uid or gid 0")
    container: dict[str, Any] = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command(max_seconds=max_seconds, start_sha256=start_sha256),
        "stdin": True,
        "stdinOnce": True,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": gid,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if target_container is not None:
        container["targetContainerName"] = target_container
    if mounts:
        container["volumeMounts"] = [{"name": m, "mountPath": f"{MOUNTS}/{m}", "readOnly": True} for m in mounts]
    return container
