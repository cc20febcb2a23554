"""Layers 4 and 7 on the way in: a shell exists only behind a durable case file and one grant, in this order and no other.

Must never: go on after a step that failed, make a second grant, or undo anything itself: the undo of open *is* close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import TypeVar

from breakglass.core import expiry, grant, workload
from breakglass.core.codes import Code
from breakglass.core.evidence import case_file, case_key
from breakglass.core.frames import FrameViolation, Pong, TowerEvent, TowerFrames
from breakglass.core.model import Denied, Session, Shell, canonical_json
from breakglass.core.targets import Target
from breakglass.ports import AttachStream, Cluster, Grant, Manifest, PortError, Trouble, Vault
from breakglass.tower import Clock, Settings

GIVE_UP_SECONDS = 120
RBAC_LAG_SECONDS = 5
ANSWER_SECONDS = 10
STEP_SECONDS = 15
"""What a step may take that is one or a few requests: an answer that does not come is a no, and close looks what happened."""
LEASE_SECONDS = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What opening one shell needs; `progress` is shown to the person who waits."""

    session: Session
    shell: Shell
    target: Target
    cluster: Cluster
    vault: Vault
    settings: Settings
    clock: Clock
    size: tuple[int, int]
    evidence: Manifest
    progress: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A shell that answered, its start on the API server's clock; `early` is what came before the answer."""

    grant: Grant
    stream: AttachStream
    frames: TowerFrames
    early: list[TowerEvent]
    started_at: datetime


class OpenFailedError(Exception):
    """Opening stopped at a numbered step; `denied` says why in words. What was done so far is close's to undo."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.sentence)
        self.denied = denied


async def open_shell(o: Opening, stack: AsyncExitStack) -> Opened:
    """Steps 2–6 of opening a shell; raises `OpenFailedError` at the first that fails.

    1. Decide again from live facts: the service has just done it (`service.py: open`), the row says `opening`.
    2. The case file is durable in the vault. The recorder was started before (`running.py`): no record, no session.
    3. Create the grant. The API server judges its shape again (layer 5).
    4. Annotate the pod (process access only).
    5. Add the debug container; show why it waits; give up after 120 s.
    6. Attach and START: only the holder of this key starts the shell, and no byte is shown before it is durable.
    7. Active: the caller writes the row.
    """
    key = o.clock.random(32)
    frames = TowerFrames(key)
    case = case_file(o.session, o.shell, o.target, image=o.settings.images[0], evidence=o.evidence, now=o.clock.now())
    digest = await _step("write the case file", _case(o, case))  # (2)
    made = await _step("create the grant", _grant(o, digest))  # (3)
    started_at = o.session.started_at or made.created_at
    if o.session.request.process_access:  # (4)
        o.progress("marking the pod for process access")
        await _step("mark the pod", _lagging(o, lambda: o.cluster.workloads.annotate(*_pod(o), o.session.sid)))
    container = _container(o, frames, started_at)
    o.progress("adding the debug container")
    await _step(
        "add the debug container", _lagging(o, lambda: o.cluster.workloads.add_debug_container(*_pod(o), container))
    )  # (5)
    await _step("start the debug container", _running(o), GIVE_UP_SECONDS + STEP_SECONDS)
    o.progress("attaching")
    stream = await _step("attach", _attach(o, stack))  # (6)
    early = await _step("start the shell", _start(o, stream, frames))
    return Opened(grant=made, stream=stream, frames=frames, early=early, started_at=started_at)


def _pod(o: Opening) -> tuple[str, str, str]:
    return o.session.request.namespace, o.shell.pod, o.shell.pod_uid


async def _case(o: Opening, case: Manifest) -> str:
    o.progress("writing the case file")
    retain = o.clock.now() + timedelta(minutes=o.session.request.minutes) + expiry.RETENTION
    stored = await o.vault.put(case_key(o.session.sid, o.shell.number), canonical_json(case), retain_until=retain)
    return "sha256:" + stored.sha256


async def _grant(o: Opening, case_digest: str) -> Grant:
    o.progress("creating the grant")
    minutes = expiry.ttl_minutes(o.session, o.clock.now())
    manifest = grant.manifest(o.session, portal=o.settings.portal, ttl_minutes=minutes, case_digest=case_digest)
    return await o.cluster.grants.create(manifest)


def _container(o: Opening, frames: TowerFrames, started_at: datetime) -> Manifest:
    ends = started_at + timedelta(minutes=o.session.request.minutes)
    left = max(1, ceil((ends - o.clock.now()).total_seconds()) + 60)
    return workload.debug_container(
        name=o.shell.container,
        image=o.settings.images[0],
        target_container=o.target.container if o.session.request.process_access else None,
        uid=o.target.uid,
        gid=o.target.gid,
        start_sha256=frames.start_sha256,
        max_seconds=min(left, expiry.MAX_SECONDS),
    )


async def _lagging(o: Opening, call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a `forbidden` for 5 s after the grant: API servers learn of a RoleBinding through a watch."""
    give_up = o.clock.monotonic() + RBAC_LAG_SECONDS
    pause = 0.02
    while True:
        try:
            return await call()
        except PortError as error:
            if error.trouble is not Trouble.FORBIDDEN or o.clock.monotonic() >= give_up:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.5)


async def _running(o: Opening) -> None:
    """Wait until the kubelet runs the debug container; its own words for what it waits on are shown."""
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            async for seen in o.cluster.workloads.watch(*_pod(o), o.shell.container):
                if seen is None:
                    raise OpenFailedError(
                        _failed(f"Pod {o.shell.pod} is gone.", "Open again: Tower takes another pod of the app.")
                    )
                if seen.terminated_at is not None:
                    raise OpenFailedError(
                        _failed(f"The debug container ended at once ({seen.message or seen.exit_code}).", _LOOK)
                    )
                if seen.running:
                    return
                o.progress(f"waiting for the node: {seen.waiting_reason or 'scheduled'}")
    except TimeoutError:
        pass
    raise OpenFailedError(_failed(f"The node did not start the debug container within {GIVE_UP_SECONDS} s.", _LOOK))


async def _attach(o: Opening, stack: AsyncExitStack) -> AttachStream:
    namespace, pod, _ = _pod(o)
    return await _lagging(o, lambda: stack.enter_async_context(o.cluster.attach.attach(namespace, pod, o.shell.container)))


async def _start(o: Opening, stream: AttachStream, frames: TowerFrames) -> list[TowerEvent]:
    """Send START and wait for a sealed answer: whoever answers under this key is our supervisor."""
    cols, rows = o.size
    nonce = o.clock.random(8)
    early: list[TowerEvent] = []
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await stream.write(frames.start(cols, rows, LEASE_SECONDS) + frames.ping(nonce))
            while data := await stream.read():
                early += frames.feed(data)
                if any(isinstance(event, Pong) and event.nonce == nonce for event in early):
                    return early
    except TimeoutError:
        pass
    except FrameViolation as violation:
        raise OpenFailedError(_failed(f"The debug container does not speak our frames ({violation.code}).", _LOOK)) from None
    raise OpenFailedError(_failed("The debug container does not answer.", _LOOK))


_LOOK = "Open again; if it repeats, look at the pod's events and at breakglass doctor."


async def _step(what: str, call: Awaitable[T], seconds: float = STEP_SECONDS) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError:
        raise OpenFailedError(_failed(f"Tower could not {what} within {seconds:g} s.", _LOOK)) from None
    except PortError as error:
        raise OpenFailedError(_failed(f"Tower could not {what}: {error}.", _LOOK)) from error


def _failed(sentence: str, remedy: str) -> Denied:
    return Denied(code=Code.OPEN_FAILED, sentence=sentence, remedy=remedy)
