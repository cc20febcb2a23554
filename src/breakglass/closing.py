"""Layers 4 and 6 on the way out: after close nothing of a shell is left in the cluster, and what is left is said.

Idempotent, and the only undo there is: used by a session's end, by a failed open and by the reaper alike.
Must never: create a grant, or report as done what was not seen done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from breakglass.core.facts import DebugContainerFacts, PodFacts
from breakglass.core.model import AfterProcessAccess, Flag, Session, Shell
from breakglass.ports import Cluster, PortError, Trouble

TERMINATED_SECONDS = 10
LOOK_AGAIN_SECONDS = 0.2
TRIES = 5
TRY_SECONDS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What closing one shell saw. `left` is empty when the cluster side is clean; else what is still open, in words."""

    terminated_at: datetime | None
    exit_code: int | None
    witness: str
    flags: frozenset[Flag]
    left: str


async def close_shell(cluster: Cluster, session: Session, shell: Shell) -> Undone:
    """Undo one shell's side in the cluster.

    1. The relay has stopped already: its stream is closed, which is EOF for the supervisor (`running.py`); after a crash
       of Tower the socket died with it.
    2. See the debug container terminated in the API; after 10 s not: delete the pod, grace 1, where the grant allows it.
    3. A copy pod is deleted. (Copy mode is not offered yet.)
    4. Remove the process-access annotation; what stays is flagged.
    5. Recycle a pod whose processes were open to the shell, unless cicd.yaml keeps it: then it is flagged tainted.
    6. Delete the grant regardless of all that, and see it gone. A grant that is gone already is never made again.
    Sealing and locking the record are the caller's (`running.py`), whatever this says.
    """
    flags: set[Flag] = set()
    problems: list[str] = []
    seen = await _terminated(cluster, session, shell)  # (2)
    if seen is _UNSEEN:
        flags.add(Flag.NOT_TERMINATED)
        if (why := await _try(lambda: cluster.workloads.delete_pod(*_pod(session, shell), grace_seconds=1))) is None:
            seen = await _terminated(cluster, session, shell)
        if seen is _UNSEEN:
            problems.append(f"the debug container was not seen to end{f' ({why})' if why else ''}")
        else:
            flags.discard(Flag.NOT_TERMINATED)
            flags.add(Flag.POD_DELETED)
    if session.request.process_access and seen is not None:
        flags |= await _process_access_over(cluster, session, shell)  # (4) (5)
    if (why := await _try(lambda: cluster.grants.delete(session.request.namespace, session.sid))) is not None:  # (6)
        problems.append(f"the grant could not be deleted ({why})")
    facts = seen if seen is not None and seen is not _UNSEEN else None
    return Undone(
        terminated_at=facts.terminated_at if facts else None,
        exit_code=facts.exit_code if facts else None,
        witness=facts.message if facts else "",
        flags=frozenset(flags),
        left="; ".join(problems),
    )


_UNSEEN = DebugContainerFacts(name="", running=False)
"""Not seen to end in time; told from None, which is: the pod is gone, and the shell with it."""
_NEVER = DebugContainerFacts(name="", running=False)
"""The pod never had it: nothing to end, but the mark may be there already."""


async def _terminated(cluster: Cluster, session: Session, shell: Shell) -> DebugContainerFacts | None:
    """The debug container's end, None when its pod is gone, `_NEVER` when it is there without it, `_UNSEEN` after 10 s.

    An API server that does not answer meanwhile is asked again: nobody's pod is deleted because it restarts.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TERMINATED_SECONDS):
            while True:
                try:
                    return await _end(cluster, session, shell)
                except PortError:
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
    return _UNSEEN


async def _end(cluster: Cluster, session: Session, shell: Shell) -> DebugContainerFacts | None:
    namespace, pod, uid = _pod(session, shell)
    facts = await cluster.facts.pod(namespace, pod)
    if facts is None or facts.uid != uid:
        return None
    if not any(c.name == shell.container for c in facts.debug_containers):
        return _NEVER
    async for seen in cluster.workloads.watch(namespace, pod, uid, shell.container):
        if seen is None or seen.terminated_at is not None:
            return seen
    return _UNSEEN


async def _process_access_over(cluster: Cluster, session: Session, shell: Shell) -> set[Flag]:
    flags: set[Flag] = set()

    async def left(what: Callable[[PodFacts], bool]) -> bool:
        """Whether what a failed step should have undone is there; in doubt it is. A close that is repeated after its grant
        has gone is refused what it did before, and one of an open that came to no grant what it need not do.
        """
        namespace, name, uid = _pod(session, shell)
        try:
            async with asyncio.timeout(TRY_SECONDS):
                pod = await cluster.facts.pod(namespace, name)
        except (TimeoutError, PortError):
            return True
        return pod is not None and pod.uid == uid and what(pod)

    why = await _try(lambda: cluster.workloads.annotate(*_pod(session, shell), None))
    if why is not None and await left(lambda pod: pod.process_access == session.sid):
        flags.add(Flag.ANNOTATION_LEFT)
    if shell.active_at is None:
        return flags
    if session.request.after_process_access is AfterProcessAccess.KEEP:
        return flags | {Flag.TAINTED}
    why = await _try(lambda: cluster.workloads.delete_pod(*_pod(session, shell), grace_seconds=None))
    if why is not None and await left(lambda pod: not pod.terminating):
        flags |= {Flag.POD_NOT_RECYCLED, Flag.TAINTED}
    return flags


def _pod(session: Session, shell: Shell) -> tuple[str, str, str]:
    return session.request.namespace, shell.pod, shell.pod_uid


async def _try(call: Callable[[], Awaitable[None]]) -> str | None:
    """None once done; else why not, after as many tries as a passing fault deserves. A pod that is gone is done."""
    why = ""
    for attempt in range(TRIES):
        try:
            async with asyncio.timeout(TRY_SECONDS):
                await call()
        except TimeoutError:
            why = f"no answer within {TRY_SECONDS} s"
        except PortError as error:
            if error.trouble is Trouble.NOT_FOUND:
                return None
            why = str(error)
            if error.trouble not in {Trouble.TRANSIENT, Trouble.UNKNOWN, Trouble.CONFLICT}:
                return why
            await asyncio.sleep(0.1 * 2**attempt)
        else:
            return None
    return why
