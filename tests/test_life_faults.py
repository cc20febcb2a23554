"""Every call that Tower makes to open or close a shell, failing in every way: the session ends closed, the grant is gone, the
record holds what was shown, and whatever is not clean is a state somebody sees.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from breakglass.core.model import Denied, Session, State
from tests.life import Life
from tests.simulators.faults import Fault, Faults
from tests.virtual_time import in_virtual_time, until

pytestmark = pytest.mark.slow

OPENING = [
    ("vault", "put", 1),
    ("store", "replace", 2),
    ("store", "replace", 3),
    ("cluster", "grants.create", 1),
    ("cluster", "workloads.annotate", 1),
    ("cluster", "workloads.add_debug_container", 3),
    ("cluster", "workloads.watch", 1),
    ("cluster", "attach.attach", 1),
    ("cluster", "stream.write", 1),
    ("cluster", "stream.read", 1),
]
CLOSING = [
    ("cluster", "facts.pod", 0),
    ("cluster", "workloads.watch", 3),
    ("cluster", "workloads.annotate", 2),
    ("cluster", "workloads.delete_pod", 1),
    ("cluster", "grants.delete", 1),
    ("cluster", "grants.delete", 0),
    ("vault", "put", 2),
    ("vault", "put", 3),
    ("vault", "put", 4),
    ("vault", "keys", 1),
    ("vault", "get", 1),
    ("store", "replace", 4),
    ("store", "replace", 5),
    ("store", "load", 9),
]
WAYS = [Fault.FAIL, Fault.FAIL_BUT_HAPPENED, Fault.HANG]
BROKEN_OPENS = [(*call, way) for call in OPENING for way in WAYS if (call[0], way) != ("store", Fault.HANG)]
"""The store's port bounds each call itself (`adapters/store_sql.py`), so that one that hangs is one that failed."""


def _faults(life: Life, where: str) -> Faults:
    return {"vault": life.vault, "store": life.store, "cluster": life.cluster}[where].faults  # type: ignore[attr-defined,no-any-return]


def _running(life: Life) -> list[str]:
    return [name for (_, name), one in life.cluster.supervisors.items() if one.exit_code is None]


@pytest.mark.parametrize(("where", "call", "nth", "way"), BROKEN_OPENS)
def test_an_open_that_fails_anywhere_leaves_no_grant_and_no_shell(
    tmp_path: Path, where: str, call: str, nth: int, way: Fault
) -> None:
    @in_virtual_time
    async def broken() -> None:
        life = Life(tmp_path)
        session = await life.approved(process_access=True)
        _faults(life, where).at(call, way, nth=nth)
        opened = await life.service.open(life.actor("ana"), session.sid, pod=None, cols=80, rows=24)
        if isinstance(opened, Session):
            await life.service.end(life.actor("ana"), session.sid)
        else:
            assert isinstance(opened, Denied)
            assert opened.sentence
            assert opened.remedy
        await until(lambda: life.cluster.grants == {} and _running(life) == [], seconds=600)
        await life.reaches(session, State.APPROVED, State.SEALED, State.CLOSED, seconds=600)
        await life.service.end(life.actor("ana"), session.sid)
        over = await life.reaches(session, State.SEALED, State.CLOSED, seconds=600)
        assert life.cluster.grants == {}
        if over.sealed is not None and over.sealed.segments:
            life.recorded(session)

    broken()


@pytest.mark.parametrize("way", [Fault.FAIL, Fault.FAIL_BUT_HAPPENED])
@pytest.mark.parametrize(("where", "call", "nth"), CLOSING)
def test_a_close_that_fails_anywhere_is_finished_or_seen(tmp_path: Path, where: str, call: str, nth: int, way: Fault) -> None:
    @in_virtual_time
    async def broken() -> None:
        life = Life(tmp_path)
        session = await life.approved(process_access=True)
        seat = await life.opened(session)
        await seat.types("hello\r", sees=b"yourself")
        faults = _faults(life, where)
        already = faults.seen[call]
        faults.at(call, way, nth=0 if nth == 0 else max(nth, already + 1))
        await life.service.end(life.actor("ana"), session.sid)
        await life.reaches(session, State.SEALED, State.STUCK, State.CLOSING, seconds=600)
        await asyncio.sleep(30)
        faults.plan.clear()
        over = await life.reaches(session, State.SEALED, seconds=600)
        assert life.cluster.grants == {}
        assert _running(life) == []
        assert life.recorded(session).startswith(bytes(seat.saw))
        assert over.sealed is not None

    broken()
