"""What can happen to a SQLite store: locks, full and read-only disks, damage, strangers' schemas, and death at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect

from breakglass.adapters import store_sql_engine
from breakglass.adapters.store_sql import StoreSql, read_document, write_document
from breakglass.core.model import Request, Session, Sid, State
from breakglass.ports import PortError, StaleError, Trouble
from tests.simulators.people import BEN, a_session, an_event

EPOCH = datetime.fromtimestamp(0, tz=UTC)
UTC_TIMES = st.integers(1_600_000_000_000_000, 4_000_000_000_000_000).map(lambda at: EPOCH + timedelta(microseconds=at))
st.register_type_strategy(datetime, UTC_TIMES)
SESSIONS = st.builds(
    Session,
    request=st.builds(Request, sid=st.just(Sid("abcdefghij"))),
    version=st.integers(1, 10**6),
)


@pytest.fixture
async def path(tmp_path) -> Path:
    """A store with one session in it, closed."""
    store = await StoreSql.open(tmp_path / "store.sqlite")
    await store.create(a_session(), an_event())
    await store.close()
    return tmp_path / "store.sqlite"


async def refusal(path: Path) -> PortError:
    with pytest.raises(PortError) as refused:
        await StoreSql.open(path)
    return refused.value


# --- the document -----------------------------------------------------------------------------------------------------


@given(SESSIONS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_every_session_survives_the_round_trip_and_keeps_its_digest(session):
    again = read_document("abcdefghij", write_document(session))
    assert again == session
    assert again.request.digest == session.request.digest


@pytest.mark.parametrize(
    ("key", "value"),
    [("version", "1"), ("version", 1.5), ("state", "exploded"), ("request", None), ("flags", [1]), ("changed_at", 12)],
)
def test_a_document_of_other_types_is_unreadable_not_coerced(key, value):
    document = json.dumps(json.loads(write_document(a_session())) | {key: value})
    with pytest.raises(PortError, match=r"^session abcdefghij in the store is not readable; restore the store from a backup$"):
        read_document("abcdefghij", document)


def test_a_field_of_a_newer_tower_is_refused_instead_of_lost_at_the_next_change():
    document = json.dumps(json.loads(write_document(a_session())) | {"moon_phase": "full"})
    with pytest.raises(PortError, match=r"^session abcdefghij was written by a newer Tower; run that one$"):
        read_document("abcdefghij", document)


def test_a_reason_that_is_not_unicode_is_invalid_and_not_a_crash():
    with pytest.raises(PortError, match=r"^session abcdefghij holds text that is not Unicode; ask again without it$") as refused:
        write_document(a_session(reason="\ud800"))
    assert refused.value.trouble is Trouble.INVALID


# --- opening ----------------------------------------------------------------------------------------------------------


async def test_what_was_written_is_there_after_a_restart(path):
    store = await StoreSql.open(path)
    assert await store.load("abcdefghij") == a_session()
    await store.close()


async def test_nobody_else_on_the_machine_can_read_the_store(path):
    store = await StoreSql.open(path)
    await store.create(a_session("bbbbbbbbbb", requester=BEN), an_event(sid="bbbbbbbbbb"))
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
    assert modes == {"store.sqlite": 0o600, "store.sqlite-wal": 0o600, "store.sqlite-shm": 0o600}
    await store.close()


async def test_the_tables_in_the_code_are_those_of_the_migrations(path):
    engine = store_sql_engine.open_sqlite(path)
    there = {name: {one["name"] for one in inspect(engine).get_columns(name)} for name in inspect(engine).get_table_names()}
    engine.dispose()
    assert there == {table.name: {column.name for column in table.columns} for table in store_sql_engine.metadata.sorted_tables}


async def test_every_commit_is_synced_and_references_are_enforced(path):
    engine = store_sql_engine.open_sqlite(path)
    with store_sql_engine.transaction(engine, write=False) as connection:
        said = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    engine.dispose()
    assert said == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 2000}


@pytest.mark.parametrize("keep", [0, 1, 100, 511])
async def test_a_store_cut_to_almost_nothing_is_refused_and_not_begun_anew(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    error = await refusal(path)
    assert error.trouble is Trouble.FATAL
    assert str(error) == f"the store {path} was cut short; restore it from a backup"


@pytest.mark.parametrize("keep", [512, 4096, 5000, 20480])
async def test_a_truncated_store_is_refused(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    error = await refusal(path)
    assert error.trouble is Trouble.FATAL
    assert str(error) == f"the store {path} is damaged; restore it from a backup"


async def test_a_file_that_is_no_database_is_refused(path):
    path.write_bytes(b"not a database, just words" * 1000)
    assert str(await refusal(path)) == f"the store {path} is damaged; restore it from a backup"


async def test_another_programs_database_is_refused_and_left_as_it_was(tmp_path):
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE cats (name TEXT)")
    theirs.close()
    assert str(await refusal(path)) == f"{path} is not a Tower store; name another file"
    with sqlite3.connect(path) as again:
        assert again.execute("SELECT name FROM sqlite_master").fetchall() == [("cats",)]
    again.close()


async def test_a_schema_newer_than_this_tower_is_refused(path):
    sqlite_do(path, "INSERT INTO migration VALUES (7, '0007_moon.sql', 'x', 'later')")
    error = await refusal(path)
    assert error.trouble is Trouble.FATAL
    assert str(error) == f"the store {path} has schema 7 and this Tower knows 1; run the Tower that wrote it"


async def test_a_migration_edited_after_it_was_applied_is_refused(path):
    sqlite_do(path, "UPDATE migration SET checksum = 'other'")
    assert str(await refusal(path)) == (
        f"the store {path} was made by another 0001_sessions.sql than this Tower's; run the Tower that made it"
    )


async def test_a_crash_while_making_the_store_leaves_nothing_that_looks_like_one(tmp_path, path):
    (tmp_path / ".new.sqlite.0000.new").write_bytes(b"half a database")
    store = await StoreSql.open(tmp_path / "new.sqlite")
    assert await store.find() == []
    await store.close()


async def test_two_towers_making_the_store_at_once_get_one_store(tmp_path):
    path = tmp_path / "store.sqlite"
    stores = await asyncio.gather(*(StoreSql.open(path) for _ in range(4)))
    await stores[0].create(a_session(), an_event())
    assert [await store.load("abcdefghij") for store in stores] == [a_session()] * 4
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.endswith(".new")) == []
    for store in stores:
        await store.close()


def sqlite_do(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


# --- running ----------------------------------------------------------------------------------------------------------


async def test_a_store_locked_by_another_process_says_so_in_time_and_can_still_be_read(path):
    store = await StoreSql.open(path)
    thief = sqlite3.connect(path, isolation_level=None)
    thief.execute("BEGIN IMMEDIATE")
    with pytest.raises(PortError) as refused:
        await store.append(an_event("late"))
    assert refused.value.trouble is Trouble.TRANSIENT
    assert str(refused.value) == f"the store {path} is locked by another process; end that process or try again"
    assert await store.load("abcdefghij") == a_session()
    thief.execute("ROLLBACK")
    thief.close()
    await store.append(an_event("later"))
    assert [one.name for one in await store.of(Sid("abcdefghij"))] == ["session.requested", "later"]
    await store.close()


async def test_the_event_loop_goes_on_while_the_store_waits_for_a_lock(path):
    store = await StoreSql.open(path)
    thief = sqlite3.connect(path, isolation_level=None)
    thief.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(store.append(an_event("late")))
    while not waiting.done():  # every turn of the loop is proof; a blocked loop would give none
        await asyncio.sleep(0.01)
        thief.execute("ROLLBACK") if thief.in_transaction else None
    await waiting
    thief.close()
    await store.close()


async def fill(store: StoreSql) -> None:
    for number in range(1000):
        await store.append(an_event("filler", details={"n": str(number), "words": "x" * 2000}))


@pytest.mark.root
async def test_a_full_disk_refuses_the_write_and_keeps_what_was_there(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], check=True)
    try:
        store = await StoreSql.open(disk / "store.sqlite")
        with pytest.raises(PortError) as refused:
            await fill(store)
        assert refused.value.trouble is Trouble.FATAL
        assert str(refused.value) == f"the store {disk / 'store.sqlite'} cannot be written: the disk is full; make room"
        written = await store.of(Sid("abcdefghij"))
        assert [one.details["n"] for one in written] == [str(number) for number in range(len(written))]
        await store.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


async def test_a_disk_that_errs_in_the_middle_of_a_commit_leaves_it_unknown_and_says_look(path):
    store = await StoreSql.open(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))  # the write-ahead log may not grow past it: EFBIG
    try:
        with pytest.raises(PortError) as refused:
            await fill(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.trouble is Trouble.UNKNOWN
    assert str(refused.value) == f"the store {path} could not be written: disk error; look at its disk, then at what it holds"
    await store.append(an_event("after"))
    assert (await store.of(Sid("abcdefghij")))[-1].name == "after"
    await store.close()


@pytest.mark.root
async def test_a_read_only_disk_is_refused_at_opening(path):
    subprocess.run(["mount", "--bind", path.parent, path.parent], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", path.parent], check=True)
    try:
        error = await refusal(path)
        missing = await refusal(path.parent / "new.sqlite")
    finally:
        subprocess.run(["umount", "-l", path.parent], check=True)
    assert error.trouble is Trouble.FATAL
    assert str(error) == f"the store {path} cannot be opened; look at its path, its rights and whether its disk is read-only"
    assert (
        str(missing)
        == f"the store {path.parent / 'new.sqlite'} cannot be used: Read-only file system; look at its disk and rights"
    )


async def test_a_row_that_was_damaged_is_said_and_not_skipped(path):
    sqlite_do(path, "UPDATE session SET document = '{'")
    store = await StoreSql.open(path)
    for read in (store.load("abcdefghij"), store.find()):
        with pytest.raises(
            PortError, match=r"^session abcdefghij in the store is not readable; restore the store from a backup$"
        ):
            await read
    await store.close()


async def test_a_closed_store_refuses_in_words(path):
    store = await StoreSql.open(path)
    await store.close()
    await store.close()
    with pytest.raises(PortError, match=r"is closed; start Tower again$"):
        await store.load("abcdefghij")


async def test_old_tickets_nobody_took_are_swept(path):
    from tests.contracts.test_store import a_ticket

    store = await StoreSql.open(path)
    await store.put("a" * 64, a_ticket())
    await store.put("b" * 64, a_ticket(expires_at=a_ticket().expires_at + timedelta(minutes=11)))
    assert await store.take("a" * 64) is None
    assert await store.take("b" * 64) is not None
    await store.close()


async def test_towers_racing_from_two_threads_and_stores_never_both_win(path):
    """Two processes' worth of stores, each with its own threads and loop, swap the same row over and over."""
    wins: list[int] = []

    def tower(number: int) -> None:
        async def swap() -> None:
            store = await StoreSql.open(path)
            for _ in range(60):
                current = await store.load("abcdefghij")
                changed = a_session(version=current.version + 1, state=State.APPROVED)
                try:
                    await store.replace(changed, an_event(f"swap.{changed.version}.{number}"))
                    wins.append(changed.version)
                except StaleError:
                    pass
            await store.close()

        asyncio.run(swap())

    threads = [threading.Thread(target=tower, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(2, len(wins) + 2))
    store = await StoreSql.open(path)
    assert (await store.load("abcdefghij")).version == len(wins) + 1
    assert len(await store.of(Sid("abcdefghij"))) == len(wins) + 1
    await store.close()


# --- death ------------------------------------------------------------------------------------------------------------

DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from sqlalchemy import event
from breakglass.adapters.store_sql import StoreSql
from tests.simulators.people import a_session, an_event, BEN

async def main():
    store = await StoreSql.open(Path(sys.argv[1]))
    where = store._engine if sys.argv[2] == "commit" else store._engine.pool
    event.listen(where, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    await store.create(a_session("bbbbbbbbbb", requester=BEN), an_event(sid="bbbbbbbbbb"))

asyncio.run(main())
"""


@pytest.mark.parametrize(("moment", "there"), [("commit", False), ("checkin", True)])
async def test_killed_before_the_commit_nothing_is_there_and_after_it_everything(path, moment, there):
    died = subprocess.run([sys.executable, "-c", DYING, path, moment], check=False, cwd=Path(__file__).parents[2])
    assert died.returncode == -signal.SIGKILL
    store = await StoreSql.open(path)
    assert (await store.load("bbbbbbbbbb") is not None) is there
    assert len(await store.of(Sid("bbbbbbbbbb"))) == int(there)
    await store.close()


WRITING = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from breakglass.adapters.store_sql import StoreSql
from tests.simulators.people import a_session, an_event

async def main():
    store = await StoreSql.open(Path(sys.argv[1]))
    session = await store.load("abcdefghij")
    while True:
        session = replace(session, version=session.version + 1)
        await store.replace(session, an_event(f"v{session.version}"))
        print(session.version, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_killed_at_any_moment_every_acknowledged_change_is_whole_and_there(path):
    for written in (1, 6, 17):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITING, path], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        said = [int(writer.stdout.readline()) for _ in range(written)]
        os.kill(writer.pid, signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        writer.stdout.close()
        store = await StoreSql.open(path)
        version = (await store.load("abcdefghij")).version
        events = await store.of(Sid("abcdefghij"))
        await store.close()
        assert version in {said[-1], said[-1] + 1}
        assert [one.name for one in events] == ["session.requested", *(f"v{number}" for number in range(2, version + 1))]
