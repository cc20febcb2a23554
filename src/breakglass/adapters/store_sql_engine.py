"""The database under the store: opened durably, migrated forward only, and every way it can fail said in one sentence.

Part of `store_sql`, outside the layers. Must never: begin anew over a database that is there, or go on after a doubt.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, create_engine, event, inspect, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError

from breakglass.ports import PortError, Trouble

BUSY_MS: Final = 2000
"""How long a write waits for another process's lock before it gives up, in milliseconds."""

SMALLEST: Final = 512
"""The smallest page, so the smallest database, in bytes (SQLite, "Database File Format", §1.3.2)."""

_IDENTITY: Final = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}
_FILE = re.compile(r"(?P<number>[0-9]{4})_[a-z0-9_]+\.sql")

metadata: Final = MetaData()


def _table(name: str, texts: str, integers: str = "") -> Table:
    columns = [Column(one, String) for one in texts.split()] + [Column(one, Integer) for one in integers.split()]
    return Table(name, metadata, *columns)


SESSION: Final = _table("session", "sid state app requester request_digest asked_at changed_at document", "version")
ALIAS: Final = _table("session_alias", "sid alias", "open")
AUDIT: Final = _table("audit", "name at actor sid app code details", "seq")
TICKET: Final = _table("ticket", "hash person sid role origin expires_at")
MIGRATION: Final = _table("migration", "name checksum applied_at", "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered file of SQL and what it hashes to."""

    number: int
    name: str
    checksum: str
    sql: str

    def statements(self, dialect: str) -> Iterator[str]:
        """Its statements in this engine's words: comments gone, one at a time (drivers run one)."""
        lines = (line for line in self.sql.splitlines() if not line.lstrip().startswith("--"))
        for statement in "\n".join(lines).replace("{identity}", _IDENTITY[dialect]).split(";"):
            if statement.strip():
                yield statement.strip()


def migrations() -> tuple[Migration, ...]:
    """The files of `migrations/`, in order, numbered 1, 2, 3 … without a hole."""
    found = []
    for file in sorted(resources.files("breakglass.adapters.migrations").iterdir(), key=lambda one: one.name):
        if match := _FILE.fullmatch(file.name):
            raw = file.read_bytes()
            checksum = hashlib.sha256(raw).hexdigest()
            found.append(Migration(number=int(match["number"]), name=file.name, checksum=checksum, sql=raw.decode()))
    return tuple(found)


# --- opening ----------------------------------------------------------------------------------------------------------


def open_sqlite(path: Path) -> Engine:
    """The database at `path`, whole and of this Tower's schema; made when there is none.

    1. Make a new one beside it and rename it into place, so a file without a schema is always damage, never a beginning.
    2. A file below the smallest is refused: SQLite would begin anew over a few bytes and forget who has a session open.
    3. Connections are durable (WAL, synchronous FULL) and enforce references. 4. SQLite's own check finds no damage.
    5. Migrations that are applied are the ones we know; the missing ones are applied. Rows are the store's part.
    """
    with failures(f"the store {path}", write=True):
        if not path.exists():
            _make(path)  # (1)
        if path.stat().st_size < SMALLEST:  # (2)
            raise PortError(Trouble.FATAL, f"the store {path} was cut short; restore it from a backup")
        engine = _engine(path)  # (3)
        try:
            _check(engine, path)  # (4)
            migrate(engine, str(path))  # (5)
        except BaseException:
            engine.dispose()
            raise
        return engine


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        engine = _engine(new)
        try:
            with transaction(engine, write=True) as connection:
                connection.exec_driver_sql(
                    "CREATE TABLE migration "
                    "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at TEXT NOT NULL)"
                )
            migrate(engine, str(path))
        finally:
            engine.dispose()  # the last connection closed folds the WAL into the file
        with suppress(FileExistsError):  # another process was first: theirs is as good
            os.link(new, path)
        _sync_folder(path.parent)
    finally:
        new.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _engine(path: Path) -> Engine:
    # `mode=rw`: SQLite itself must never make an empty database where ours has gone missing.
    url = URL.create("sqlite", database=f"file:{path.resolve()}", query={"mode": "rw", "uri": "true"})
    engine = create_engine(url, connect_args={"timeout": BUSY_MS / 1000}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _durable(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late and too weak
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise PortError(Trouble.FATAL, f"the store {path} cannot keep a write-ahead log there; put it on a local disk")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A write takes its lock first, so two of them queue up instead of failing half way (SQLite, "BEGIN IMMEDIATE").
        write = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _check(engine: Engine, path: Path) -> None:
    with transaction(engine, write=False) as connection:
        verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if verdict != "ok":
        raise PortError(Trouble.FATAL, f"the store {path} is damaged; restore it from a backup")


def migrate(engine: Engine, name: str) -> None:
    """Apply what is missing, each migration in a transaction of its own; refuse a schema that is newer or was edited."""
    known = migrations()
    if not inspect(engine).has_table("migration"):
        raise PortError(Trouble.FATAL, f"{name} is not a Tower store; name another file")
    for migration in known:
        with transaction(engine, write=True) as connection:
            applied = {row.number: row for row in connection.execute(select(MIGRATION))}
            if newest := max((number for number in applied if number > len(known)), default=0):
                raise PortError(
                    Trouble.FATAL,
                    f"the store {name} has schema {newest} and this Tower knows {len(known)}; run the Tower that wrote it",
                )
            if migration.number not in applied:
                _apply(connection, migration)
            elif applied[migration.number].checksum != migration.checksum:
                raise PortError(
                    Trouble.FATAL,
                    f"the store {name} was made by another {migration.name} than this Tower's; run the Tower that made it",
                )


def _apply(connection: Connection, migration: Migration) -> None:
    for statement in migration.statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
    connection.execute(
        MIGRATION.insert().values(
            number=migration.number,
            name=migration.name,
            checksum=migration.checksum,
            applied_at=datetime.now(tz=UTC).isoformat(timespec="microseconds"),
        )
    )


# --- transactions and their failures ----------------------------------------------------------------------------------


@contextmanager
def transaction(engine: Engine, *, write: bool) -> Iterator[Connection]:
    """One transaction: committed on leaving, rolled back on any exception. A writing one holds the lock from its start."""
    with engine.connect().execution_options(write=write) as connection, connection.begin():
        yield connection


@contextmanager
def failures(name: str, *, write: bool) -> Iterator[None]:
    """Turn what the engine or the disk says into a `PortError` with a sentence; a constraint's no and the rest pass."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise _trouble(name, error.orig, write=write) from error
    except sqlite3.Error as error:
        raise _trouble(name, error, write=write) from error
    except OSError as error:
        raise PortError(Trouble.FATAL, f"{name} cannot be used: {error.strerror}; look at its disk and rights") from error


_TROUBLES: Final = {
    sqlite3.SQLITE_BUSY: (Trouble.TRANSIENT, "is locked by another process; end that process or try again"),
    sqlite3.SQLITE_LOCKED: (Trouble.TRANSIENT, "is locked by another process; end that process or try again"),
    sqlite3.SQLITE_FULL: (Trouble.FATAL, "cannot be written: the disk is full; make room"),
    sqlite3.SQLITE_READONLY: (Trouble.FATAL, "cannot be written: it is read-only; give Tower's user the right to write there"),
    sqlite3.SQLITE_CANTOPEN: (Trouble.FATAL, "cannot be opened; look at its path, its rights and whether its disk is read-only"),
    sqlite3.SQLITE_CORRUPT: (Trouble.FATAL, "is damaged; restore it from a backup"),
    sqlite3.SQLITE_NOTADB: (Trouble.FATAL, "is damaged; restore it from a backup"),
}


def _trouble(name: str, error: BaseException | None, *, write: bool) -> PortError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _TROUBLES:
        trouble, words = _TROUBLES[code]
        return PortError(trouble, f"{name} {words}")
    if code == sqlite3.SQLITE_IOERR and write:
        # A commit whose fsync failed may be found there after a restart, or not (SQLite, "How To Corrupt", §3).
        return PortError(Trouble.UNKNOWN, f"{name} could not be written: disk error; look at its disk, then at what it holds")
    return PortError(Trouble.FATAL, f"{name} failed ({type(error).__name__}); look at its disk and Tower's version")
