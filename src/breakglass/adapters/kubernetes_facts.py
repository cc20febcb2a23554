"""Layer 3's eyes on a cluster: an API server's JSON becomes facts; what it does not say stays unsaid, no guess and no error.

Pure: no I/O. Must never raise for a field that is missing or of another type than expected: an app's owner writes these objects.
Sources: Kubernetes 1.37 core/v1 types; `containerStatuses[].user.linux` is KEP-3619 (containerd ≥ 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from breakglass.core.facts import ContainerFacts, DebugContainerFacts, NamespaceFacts, PodFacts
from breakglass.core.workload import PROCESS_ACCESS

_APP, _ENTITY = "tower.hangar/app", "tower.hangar/entity"
_MIRROR = "kubernetes.io/config.mirror"
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_DEBUG = "debug-"
_UNTOLD = datetime.fromtimestamp(0, tz=UTC)
_GRACE_SECONDS = 30
"""What the API server itself writes where the pod says nothing."""


def at(value: object, *keys: str) -> Any:
    """What is at this path of JSON objects, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def objects(value: object) -> list[dict[str, Any]]:
    """The JSON objects of a list; nothing when it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def when(value: object) -> datetime:
    """A timestamp of the API server (RFC 3339, UTC); 1970 where there is none."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else _UNTOLD
    except ValueError:
        return _UNTOLD
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def namespace_facts(namespace: Mapping[str, Any]) -> NamespaceFacts:
    """A namespace, from its JSON."""
    meta = at(namespace, "metadata")
    return NamespaceFacts(
        name=_text(at(meta, "name")),
        app_label=_word(at(meta, "labels", _APP)),
        entity=_word(at(meta, "annotations", _ENTITY)),
        terminating=at(meta, "deletionTimestamp") is not None,
    )


def node_name(pod: Mapping[str, Any]) -> str | None:
    """The node a pod is on, or None while it is on none."""
    return _word(at(pod, "spec", "nodeName"))


def pod_facts(pod: Mapping[str, Any], node: Mapping[str, Any] | None) -> PodFacts:
    """A pod, from its JSON and its node's; a node that is not there is not ready."""
    meta, spec, status = at(pod, "metadata"), at(pod, "spec"), at(pod, "status")
    grace = _whole(at(spec, "terminationGracePeriodSeconds"))
    return PodFacts(
        name=_text(at(meta, "name")),
        uid=_text(at(meta, "uid")),
        namespace=_text(at(meta, "namespace")),
        phase=_text(at(status, "phase")) or "Unknown",
        node=node_name(pod),
        node_ready=_is_ready(node),
        ready=_is_ready(pod),
        terminating=at(meta, "deletionTimestamp") is not None,
        created_at=when(at(meta, "creationTimestamp")),
        containers=tuple(_container(pod, container) for container in objects(at(spec, "containers"))),
        debug_containers=tuple(debug_container(pod, name) for name in _debug_names(pod)),
        process_access=_word(at(meta, "annotations", PROCESS_ACCESS)),
        mirror=at(meta, "annotations", _MIRROR) is not None,
        host_namespaces=any(at(spec, key) is True for key in ("hostPID", "hostIPC", "hostNetwork")),
        shares_processes=at(spec, "shareProcessNamespace") is True,
        user_namespace=at(spec, "hostUsers") is False,
        windows="windows" in (at(spec, "os", "name"), at(node, "status", "nodeInfo", "operatingSystem")),
        fs_group=_whole(at(spec, "securityContext", "fsGroup")),
        supplemental_groups=_wholes(at(spec, "securityContext", "supplementalGroups")),
        default_container=_word(at(meta, "annotations", _DEFAULT_CONTAINER)),
        grace_seconds=_GRACE_SECONDS if grace is None else grace,
    )


def debug_container(pod: Mapping[str, Any], name: str) -> DebugContainerFacts:
    """The debug container of this name; one the node says nothing about yet neither runs nor waits for anything known."""
    spec = _named(at(pod, "spec", "ephemeralContainers"), name)
    state = at(_named(at(pod, "status", "ephemeralContainerStatuses"), name), "state")
    ended = at(state, "terminated")
    return DebugContainerFacts(
        name=name,
        running=isinstance(at(state, "running"), dict),
        waiting_reason=_word(at(state, "waiting", "reason")),
        terminated_at=when(at(ended, "finishedAt")) if isinstance(ended, dict) else None,
        exit_code=_whole(at(ended, "exitCode")),
        message=_text(at(ended, "message")),
        targets_process=bool(at(spec, "targetContainerName")),
    )


def _debug_names(pod: Mapping[str, Any]) -> list[str]:
    spec, status = at(pod, "spec", "ephemeralContainers"), at(pod, "status", "ephemeralContainerStatuses")
    names = [_text(container.get("name")) for container in objects(spec) + objects(status)]
    return list(dict.fromkeys(name for name in names if name.startswith(_DEBUG)))


def _container(pod: Mapping[str, Any], container: Mapping[str, Any]) -> ContainerFacts:
    """Ids as the runtime reports them for the process that runs now; else as the specs ask, the container's before the pod's."""
    name = _text(container.get("name"))
    status = _named(at(pod, "status", "containerStatuses"), name)
    linux = at(status, "user", "linux")
    asked, pods = at(container, "securityContext"), at(pod, "spec", "securityContext")
    groups = _wholes(at(linux, "supplementalGroups")) or _wholes(at(pods, "supplementalGroups"))
    return ContainerFacts(
        name=name,
        image=_text(container.get("image")),
        running=isinstance(at(status, "state", "running"), dict),
        uid=_first(at(linux, "uid"), at(asked, "runAsUser"), at(pods, "runAsUser")),
        gid=_first(at(linux, "gid"), at(asked, "runAsGroup"), at(pods, "runAsGroup")),
        supplemental_groups=groups,
        writable_mounts=_writable(pod, container),
    )


def _writable(pod: Mapping[str, Any], container: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the emptyDir and PersistentVolumeClaim volumes that the container may write to."""
    volumes = objects(at(pod, "spec", "volumes"))
    kept = {_text(v.get("name")) for v in volumes if "emptyDir" in v or "persistentVolumeClaim" in v}
    frozen = {_text(v.get("name")) for v in volumes if at(v, "persistentVolumeClaim", "readOnly") is True}
    mounts = objects(container.get("volumeMounts"))
    found = [m for m in mounts if _text(m.get("name")) in kept - frozen and m.get("readOnly") is not True]
    return tuple(dict.fromkeys(_text(m.get("name")) for m in found))


def _is_ready(thing: object) -> bool:
    conditions = objects(at(thing, "status", "conditions"))
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _named(value: object, name: str) -> dict[str, Any] | None:
    return next((item for item in objects(value) if item.get("name") == name), None)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _wholes(value: object) -> tuple[int, ...]:
    return tuple(item for item in value if type(item) is int) if isinstance(value, list) else ()


def _first(*values: object) -> int | None:
    return next((value for value in values if type(value) is int), None)
