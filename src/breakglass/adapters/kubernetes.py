"""Layer 4. One registered cluster under the portal's identity: facts read live, grants, debug containers, the attached stream.

Must never: decide (the rules and the API server's policies do), retry a write, or touch another pod than the one with that UID.
"""

from __future__ import annotations

import asyncio
import email.utils
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from breakglass.adapters.kubernetes_api import Api, endpoint, path
from breakglass.adapters.kubernetes_attach import KubernetesAttach
from breakglass.adapters.kubernetes_facts import at, debug_container, namespace_facts, node_name, objects, pod_facts, when
from breakglass.core.facts import ClusterFacts, DebugContainerFacts, NamespaceFacts, PodFacts
from breakglass.core.grant import PREFIX
from breakglass.core.grant import name as grant_name
from breakglass.core.model import Sid, Tier
from breakglass.core.workload import PROCESS_ACCESS
from breakglass.ports import Cluster, Grant, Manifest, PortError, Trouble

RBAC = "/apis/rbac.authorization.k8s.io/v1"
TIER_LABEL = "tower.hangar/tier"
GONE_SECONDS = 10.0
WATCH_SECONDS = 30
"""A watch is renewed this often with a fresh read, so a connection that died without a word costs at most this and 10 s."""
REFUSED_SECONDS = 15.0
"""How long a watch puts up with 401 and 403: an API server that has just started answers so until its RBAC caches are filled."""
RETRY_SECONDS = 0.05
"""The first pause before a watch reads again; each failure in a row doubles it, up to 2 s."""
ADD_TRIES = 5
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


def utc_now() -> datetime:
    """The wall clock, aware."""
    return datetime.now(tz=UTC)


@asynccontextmanager
async def connected(
    name: str,
    registered_tier: Tier,
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    now: Callable[[], datetime] = utc_now,
) -> AsyncIterator[Cluster]:
    """The four ports of one cluster until the block ends; no request is made yet. `fatal` when the kubeconfig cannot be used."""
    where = endpoint(name, kubeconfig, context)
    api = Api(where)
    try:
        yield Cluster(
            name=name,
            facts=KubernetesFacts(api, registered_tier, now),
            grants=KubernetesGrants(api),
            workloads=KubernetesWorkloads(api),
            attach=KubernetesAttach(where),
        )
    finally:
        await api.close()


class KubernetesFacts:
    """`ports.Facts`: GETs, none of them cached."""

    def __init__(self, api: Api, registered_tier: Tier, now: Callable[[], datetime]) -> None:
        self._api, self._tier, self._now = api, registered_tier, now

    async def cluster(self) -> ClusterFacts:
        """As the port says. HTTP's Date has whole seconds, cut off: the middle of that second is ± 0.5 s true."""
        what = "read the cluster's tier"
        version = await self._api.get("read the API server's version", "/version")
        before = self._now()
        answer = await self._api.answer(what, "GET", path("namespaces", "kube-system"))
        after = self._now()
        try:
            date = email.utils.parsedate_to_datetime(answer.headers.get("Date", ""))
            label = at(answer.json(), "metadata", "labels", TIER_LABEL)
        except ValueError:
            raise self._api.endpoint.error(Trouble.TRANSIENT, what, "the answer has no date or is not JSON") from None
        return ClusterFacts(
            name=self._api.endpoint.cluster,
            registered_tier=self._tier,
            labelled_tier=label if isinstance(label, str) else None,
            version=(_number(version.get("major")), _number(version.get("minor"))),
            server_time=date.astimezone(UTC) + timedelta(milliseconds=500),
            read_at=before + (after - before) / 2,
        )

    async def namespace(self, name: str) -> NamespaceFacts | None:
        """As the port says."""
        found = await self._api.find(f"read namespace {name}", path("namespaces", name))
        return None if found is None else namespace_facts(found)

    async def pods(self, namespace: str) -> Sequence[PodFacts]:
        """As the port says."""
        pods = await self._api.every(f"list the pods of {namespace}", path("namespaces", namespace, "pods"))
        names = sorted({name for pod in pods if (name := node_name(pod)) is not None})
        nodes = dict(zip(names, await asyncio.gather(*map(self._node, names)), strict=True))
        found = [pod_facts(pod, nodes.get(node_name(pod) or "")) for pod in pods]
        return sorted(found, key=lambda pod: (pod.created_at, pod.name))

    async def pod(self, namespace: str, name: str) -> PodFacts | None:
        """As the port says."""
        found = await self._api.find(f"read pod {namespace}/{name}", path("namespaces", namespace, "pods", name))
        if found is None:
            return None
        node = node_name(found)
        return pod_facts(found, None if node is None else await self._node(node))

    async def _node(self, name: str) -> dict[str, Any] | None:
        return await self._api.find(f"read node {name}", path("nodes", name))


class KubernetesGrants:
    """`ports.Grants`: RoleBindings by name."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(self, manifest: Manifest) -> Grant:
        """As the port says."""
        namespace, name = at(manifest, "metadata", "namespace"), at(manifest, "metadata", "name")
        what = f"create grant {name} in {namespace}"
        return _grant(await self._api.send(what, "POST", path("namespaces", str(namespace), "rolebindings", api=RBAC), manifest))

    async def delete(self, namespace: str, sid: Sid) -> None:
        """1. Read it. 2. Delete it by its UID. 3. Read again until there is none; `unknown` after 10 s (a finalizer)."""
        name = grant_name(sid)
        what, where = f"delete grant {name} in {namespace}", path("namespaces", namespace, "rolebindings", name, api=RBAC)
        asked = None
        try:
            async with asyncio.timeout(GONE_SECONDS):
                while (found := await self._api.find(what, where)) is not None:  # (1) (3)
                    uid = at(found, "metadata", "uid")
                    if asked == uid:
                        await asyncio.sleep(0.2)
                        continue
                    asked = uid
                    await _delete(self._api, what, where, uid)  # (2)
        except TimeoutError:
            raise self._api.endpoint.error(Trouble.UNKNOWN, what, f"it is still there after {GONE_SECONDS:.0f} s") from None

    async def all(self) -> Sequence[Grant]:
        """As the port says."""
        bindings = await self._api.every("list the grants", path("rolebindings", api=RBAC))
        return [_grant(found) for found in bindings if str(at(found, "metadata", "name")).startswith(PREFIX)]


class KubernetesWorkloads:
    """`ports.Workloads`: each write carries the pod's UID, so the API server itself refuses another pod."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def annotate(self, namespace: str, pod: str, uid: str, sid: Sid | None) -> None:
        """As the port says. A UID is immutable: a patch that names another one is refused before anything is changed."""
        what = f"mark pod {namespace}/{pod} for process access" if sid else f"remove the mark from pod {namespace}/{pod}"
        body = {"metadata": {"uid": uid, "annotations": {PROCESS_ACCESS: sid}}}
        try:
            await self._api.send(what, "PATCH", path("namespaces", namespace, "pods", pod), body, MERGE)
        except PortError as error:
            if error.trouble is Trouble.INVALID and "metadata.uid" in str(error):
                raise self._another(what) from None
            raise

    async def add_debug_container(self, namespace: str, pod: str, uid: str, container: Manifest) -> None:
        """1. Read the pod: right UID, name not taken. 2. Patch what was read (its resourceVersion); read again when it moved."""
        name = str(container.get("name"))
        what = f"add {name} to pod {namespace}/{pod}"
        where = path("namespaces", namespace, "pods", pod)
        for left in reversed(range(ADD_TRIES)):
            found = await self._api.get(what, where)  # (1)
            if at(found, "metadata", "uid") != uid:
                raise self._another(what)
            if any(other.get("name") == name for other in objects(at(found, "spec", "ephemeralContainers"))):
                raise self._api.endpoint.error(Trouble.CONFLICT, what, "the pod has a debug container of that name")
            version = at(found, "metadata", "resourceVersion")
            body = {"metadata": {"uid": uid, "resourceVersion": version}, "spec": {"ephemeralContainers": [container]}}
            try:
                await self._api.send(what, "PATCH", f"{where}/ephemeralcontainers", body, STRATEGIC)  # (2)
            except PortError as error:
                if error.trouble is Trouble.CONFLICT and left:
                    continue
                if error.trouble is Trouble.CONFLICT:
                    raise self._api.endpoint.error(Trouble.TRANSIENT, what, "the pod keeps changing") from None
                raise
            return

    async def watch(self, namespace: str, pod: str, uid: str, container: str) -> AsyncIterator[DebugContainerFacts | None]:
        """As the port says; ends after None. 1. Read the pod. 2. Watch it from there. 3. Whatever ends that: read it again."""
        last: DebugContainerFacts | None = None
        pause, refused_at = RETRY_SECONDS, None
        while True:
            try:
                async with aclosing(self._states(namespace, pod)) as states:
                    async for found in states:
                        pause, refused_at = RETRY_SECONDS, None
                        if at(found, "metadata", "uid") != uid:
                            yield None
                            return
                        if (seen := debug_container(found, container)) != last:
                            last = seen
                            yield seen
            except PortError as error:
                now = asyncio.get_running_loop().time()
                refused_at = (refused_at or now) if error.trouble in {Trouble.FORBIDDEN, Trouble.UNAUTHORIZED} else None
                refused = refused_at is not None and now - refused_at < REFUSED_SECONDS
                if not refused and error.trouble is not Trouble.TRANSIENT:
                    raise
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)

    async def delete_pod(self, namespace: str, pod: str, uid: str, *, grace_seconds: int | None) -> None:
        """As the port says."""
        what = f"delete pod {namespace}/{pod}"
        try:
            await _delete(self._api, what, path("namespaces", namespace, "pods", pod), uid, grace_seconds)
        except PortError as error:
            if error.trouble is Trouble.CONFLICT:
                raise self._another(what) from None
            raise

    async def _states(self, namespace: str, pod: str) -> AsyncGenerator[dict[str, Any], None]:
        """The pod as it is, then after each change; {} once it is gone. Ends when the API server ends the watch."""
        what, pods = f"watch pod {namespace}/{pod}", path("namespaces", namespace, "pods")
        found = await self._api.find(what, f"{pods}/{pod}")
        yield found or {}
        version = str(at(found, "metadata", "resourceVersion") or "")
        selector = {"fieldSelector": f"metadata.name={pod}", "resourceVersion": version}
        async with aclosing(self._api.events(what, pods, WATCH_SECONDS, **selector)) as events:
            async for event in events:
                match event.get("type"):
                    case "ADDED" | "MODIFIED":
                        yield event.get("object") or {}
                    case "DELETED":
                        yield {}
                    case _:  # ERROR: 410 Gone, or a server that is going down
                        raise self._api.endpoint.error(Trouble.TRANSIENT, what, "the API server ended the watch")

    def _another(self, what: str) -> PortError:
        return self._api.endpoint.error(Trouble.NOT_FOUND, what, "another pod has that name now")


async def _delete(api: Api, what: str, where: str, uid: str, grace_seconds: int | None = None) -> None:
    """Delete the object with this UID; none is success, another one is `conflict`."""
    body: dict[str, Any] = {"preconditions": {"uid": uid}}
    if grace_seconds is not None:
        body["gracePeriodSeconds"] = grace_seconds
    try:
        await api.send(what, "DELETE", where, body)
    except PortError as error:
        if error.trouble is not Trouble.NOT_FOUND:
            raise


def _grant(binding: dict[str, Any]) -> Grant:
    meta = at(binding, "metadata")
    return Grant(
        sid=str(at(meta, "name")).removeprefix(PREFIX),
        namespace=str(at(meta, "namespace")),
        uid=str(at(meta, "uid")),
        created_at=when(at(meta, "creationTimestamp")),
        manifest=binding,
        terminating=at(meta, "deletionTimestamp") is not None,
    )


def _number(text: object) -> int:
    """The leading digits: distributions report a minor of `37+`."""
    found = re.match(r"\d{1,4}", text) if isinstance(text, str) else None
    return int(found[0]) if found else 0
