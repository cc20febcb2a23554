"""Layer 7's end: a record is sealed, then locked, object by object, and its manifest last. The same code after a crash.

Must never: delete a local byte that the vault does not hold, or call a record whole that was cut.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from breakglass.closing import Undone
from breakglass.core import expiry
from breakglass.core.evidence import manifest, manifest_key, prefix
from breakglass.core.model import EndReason, Sealed, Session, canonical_json
from breakglass.ports import PortError, Stored, Trouble, Vault
from breakglass.spool import Recorder, RecordSummary, recover
from breakglass.tower import Tower

PUT_SECONDS = 60
BEHIND_SECONDS = 120
"""How long a sealed segment may wait for the vault before the session ends: the spool alone is not a locked record."""


async def upload(tower: Tower, session: Session, recorder: Recorder, behind: Callable[[str], None]) -> None:
    """Lock each segment as it is sealed; calls `behind` once when the vault does not take one for two minutes."""
    async for segment in recorder.sealed():
        give_up = tower.clock.monotonic() + BEHIND_SECONDS
        pause = 0.2
        while True:
            try:
                for path in segment.paths:
                    await _put(tower.vault, session, path)
                break
            except PortError as error:
                if error.trouble not in {Trouble.TRANSIENT, Trouble.UNKNOWN} or tower.clock.monotonic() >= give_up:
                    behind(str(error))
                    return  # `seal` locks what is left, at close or from the reaper
            await asyncio.sleep(pause)
            pause = min(2 * pause, 5.0)


async def seal(tower: Tower, session: Session, recorder: Recorder | None, undone: Undone) -> Sealed:
    """Seal the record and lock it.

    1. Seal: the recorder's own end, or, when its process is gone, the torn tail up to its last whole line, marked `cut`.
    2. Lock every segment object. Those that are there already are compared, not written again.
    3. Lock the manifest, last: it names every object with version and digest. Repeating all this is harmless.
    The local copy is deleted by the caller, once the row says so. Signing and anchoring the manifest is not here yet.
    """
    summary = await _sealed(tower, session, recorder)  # (1)
    if await _manifest_is_there(tower.vault, session, summary.chain):
        return _result(summary)
    objects: list[Stored] = [await _put(tower.vault, session, path) for path in summary.paths]  # (2)
    result = _result(summary)
    shells = session.shells
    if shells and undone.terminated_at is not None:
        shells = (
            *shells[:-1],
            replace(shells[-1], terminated_at=undone.terminated_at, exit_code=undone.exit_code, witness=undone.witness),
        )
    closed = replace(session, shells=shells, flags=session.flags | undone.flags)
    cases = [await _stored(tower.vault, key) for key in await tower.vault.keys(f"{prefix(session.sid)}case-")]
    body = manifest(
        closed,
        objects=[_object(item) for item in [*cases, *objects]],
        record={"segments": result.segments, "chain": result.chain, "output_bytes": result.output_bytes, "cut": result.cut},
    )
    await _lock(tower.vault, session, manifest_key(session.sid), canonical_json(body))  # (3)
    return result


def _result(summary: RecordSummary) -> Sealed:
    return Sealed(segments=summary.segments, chain=summary.chain, output_bytes=summary.output_bytes, cut=summary.cut)


async def _manifest_is_there(vault: Vault, session: Session, chain: str) -> bool:
    """Whether an earlier close got as far as the manifest of this very chain: then everything it names was locked before it."""
    try:
        body = json.loads(await vault.get(manifest_key(session.sid)))
    except PortError as error:
        if error.trouble is Trouble.NOT_FOUND:
            return False
        raise
    return bool(body["record"]["chain"] == chain)


async def _sealed(tower: Tower, session: Session, recorder: Recorder | None) -> RecordSummary:
    reason = session.ended.reason if session.ended else EndReason.TOWER_DIED
    if recorder is not None:
        return await recorder.end(reason.value)
    return await asyncio.to_thread(recover, tower.settings.spool / session.sid)


async def _put(vault: Vault, session: Session, path: Path) -> Stored:
    data = await asyncio.to_thread(path.read_bytes)
    return await _lock(vault, session, prefix(session.sid) + path.name, data)


async def _lock(vault: Vault, session: Session, key: str, data: bytes) -> Stored:
    try:
        async with asyncio.timeout(PUT_SECONDS):
            return await vault.put(key, data, retain_until=_retain(session))
    except TimeoutError:
        raise PortError(Trouble.UNKNOWN, f"the vault did not answer within {PUT_SECONDS} s") from None


async def _stored(vault: Vault, key: str) -> Stored:
    data = await vault.get(key)
    return Stored(key=key, version="", sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def _retain(session: Session) -> datetime:
    end = session.hard_stop_at or session.changed_at + timedelta(minutes=session.request.minutes)
    return end + expiry.RETENTION


def _object(stored: Stored) -> dict[str, str | int]:
    return {"key": stored.key, "version": stored.version, "sha256": stored.sha256, "bytes": stored.size}
