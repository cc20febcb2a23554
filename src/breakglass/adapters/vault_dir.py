"""A vault in a directory: an object is written once and read back; nothing here overwrites or removes one.

Layer 7's store for a first site. It is write-once, not locked: whoever owns the machine can delete records, and `probe` says
so. Must never: follow a symlink, call an object stored before its bytes and its name are on disk, or offer a delete.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from breakglass.ports import PortError, Stored, Trouble, VaultProbe

KEY_MAX: Final = 512
"""Bytes of a key in UTF-8; each part between slashes at most 255, the file system's limit."""
LEFTOVER_SECONDS: Final = 3600
"""How old a half-written file must be before it is somebody's crash and not somebody's write."""
VERSION: Final = "1"
"""An object in a directory has one version: its only one."""

NOT_LOCKED: Final = "write-once, not locked: whoever owns this machine can delete records"

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class VaultDir:
    """Vault over a directory: `objects/<key>` (mode 0400), `retain/<key>` with the time it must be kept to, `tmp/`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, key: str, data: bytes, *, retain_until: datetime) -> Stored:
        """Durable and read back on return; the same bytes again are harmless, other bytes are `conflict`."""
        parts = _parts(key)
        try:
            return await asyncio.to_thread(self._put, parts, data, retain_until)
        except FileNotFoundError:  # swept or moved away under the write; the same bytes again are harmless
            raise PortError(Trouble.TRANSIENT, f"the vault {self._root} changed during a write; try again") from None

    async def get(self, key: str) -> bytes:
        """The object's bytes; `not_found` when there is none."""
        parts = _parts(key)
        return await asyncio.to_thread(self._get, parts)

    async def keys(self, prefix: str) -> Sequence[str]:
        """The keys that begin with the prefix, sorted. Half-written objects have no key yet."""
        return await asyncio.to_thread(self._keys, prefix)

    async def probe(self) -> VaultProbe:
        """Write, read, try to overwrite, try to delete; sweep what crashes left. Never raises: says what it saw."""
        return await asyncio.to_thread(self._probe)

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _put(self, parts: tuple[str, ...], data: bytes, retain_until: datetime) -> Stored:
        """Write once.

        1. The bytes are on disk under a name nobody lists. 2. They get their name, unless it is taken (`link` never
        replaces). 3. A taken name is ours when its bytes are the same. 4. How long to keep it is on disk, never shortened.
        5. What is there is read back and compared. Locking it against this machine's owner is what this vault cannot do.
        """
        with _failures(f"the vault {self._root}"), self._folder("tmp", ()) as tmp, self._folder("objects", parts[:-1]) as folder:
            temporary = _write(tmp, data)  # (1)
            try:
                with suppress(FileExistsError):
                    os.link(temporary, parts[-1], src_dir_fd=tmp, dst_dir_fd=folder, follow_symlinks=False)  # (2)
                os.fsync(folder)
            finally:
                os.unlink(temporary, dir_fd=tmp)
            there = _read(folder, parts[-1])
            if there != data:  # (3) (5)
                raise PortError(Trouble.CONFLICT, f"the vault holds another {'/'.join(parts)} already; it is never overwritten")
            self._retain(parts, retain_until)  # (4)
        return Stored(key="/".join(parts), version=VERSION, sha256=hashlib.sha256(there).hexdigest(), size=len(there))

    def _retain(self, parts: tuple[str, ...], until: datetime) -> None:
        with self._folder("tmp", ()) as tmp, self._folder("retain", parts[:-1]) as folder:
            with suppress(FileNotFoundError, ValueError, KeyError):
                kept = datetime.fromisoformat(json.loads(_read(folder, parts[-1]))["retain_until"])
                if kept >= until:
                    return
            temporary = _write(tmp, json.dumps({"retain_until": until.astimezone(UTC).isoformat()}).encode())
            os.rename(temporary, parts[-1], src_dir_fd=tmp, dst_dir_fd=folder)
            os.fsync(folder)

    def _get(self, parts: tuple[str, ...]) -> bytes:
        try:
            with _failures(f"the vault {self._root}"), self._folder("objects", parts[:-1], make=False) as folder:
                return _read(folder, parts[-1])
        except FileNotFoundError:
            raise PortError(Trouble.NOT_FOUND, f"the vault {self._root} holds no {'/'.join(parts)}") from None

    def _keys(self, prefix: str) -> Sequence[str]:
        objects = self._root / "objects"
        start = objects / prefix.rpartition("/")[0]
        if ".." in start.parts or not start.is_relative_to(objects):
            return []
        found = []
        with _failures(f"the vault {self._root}"):
            for folder, _, files in os.walk(start, onerror=_raise_unless_missing):
                below = Path(folder).relative_to(objects)
                found += [str(below / name) for name in files]
        return sorted(key for key in found if key.startswith(prefix))

    def _probe(self) -> VaultProbe:
        name = secrets.token_hex(8)
        try:
            self._sweep()
            parts = ("probe", name)
            self._put(parts, b"first", datetime.now(tz=UTC))
            try:
                self._put(parts, b"second", datetime.now(tz=UTC))
            except PortError as error:
                if error.trouble is not Trouble.CONFLICT:
                    raise
            if self._get(parts) != b"first":
                return VaultProbe(usable=False, locked=False, sentence=f"the vault {self._root} let an object be overwritten")
            for place in ("objects", "retain"):
                with _failures(f"the vault {self._root}"), self._folder(place, ("probe",)) as folder:
                    os.unlink(name, dir_fd=folder)  # it works, so it is not locked; that is what the sentence says
        except PortError as error:
            return VaultProbe(usable=False, locked=False, sentence=str(error))
        except OSError as error:
            return VaultProbe(usable=False, locked=False, sentence=f"the vault {self._root} failed: {error.strerror}")
        return VaultProbe(usable=True, locked=False, sentence=NOT_LOCKED)

    def _sweep(self) -> None:
        with _failures(f"the vault {self._root}"), self._folder("tmp", ()) as tmp:
            for name in os.listdir(tmp):  # noqa: PTH208 (a descriptor, so that no symlink leads elsewhere)
                with suppress(FileNotFoundError):
                    if time.time() - os.stat(name, dir_fd=tmp, follow_symlinks=False).st_mtime > LEFTOVER_SECONDS:
                        os.unlink(name, dir_fd=tmp)

    @contextmanager
    def _folder(self, place: str, parts: tuple[str, ...], *, make: bool = True) -> Iterator[int]:
        """A descriptor of the folder, walked one part at a time so that no symlink leads out; made and synced when missing."""
        if make:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in (place, *parts):
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, mode=0o700, dir_fd=here)
                        os.fsync(here)
                deeper = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = deeper
            yield here
        finally:
            os.close(here)


def _parts(key: str) -> tuple[str, ...]:
    """The key's parts, or `invalid`: what a file system could read otherwise than we do is refused."""
    parts = tuple(key.split("/"))
    try:
        raw = key.encode()
    except UnicodeEncodeError:
        raw = b""
    if not raw or len(raw) > KEY_MAX or not key.isprintable() or "\\" in key:
        raise PortError(Trouble.INVALID, f"a vault key is 1 to {KEY_MAX} bytes of printable text without \\, not {key[:60]!r}")
    if any(part in {"", ".", ".."} or len(part.encode()) > 255 for part in parts):
        raise PortError(Trouble.INVALID, f"a vault key is names joined by single slashes, not {key[:60]!r}")
    return parts


def _write(folder: int, data: bytes) -> str:
    name = secrets.token_hex(16)
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)
    return name


def _read(folder: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PortError(Trouble.CONFLICT, f"{name} in the vault is not a file; use another key")
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


_WORDS: Final = {
    errno.ENOSPC: "is full; make room",
    errno.EDQUOT: "is at its quota; raise it or make room",
    errno.EFBIG: "may not hold a file this large; raise the limit on file size",
    errno.EROFS: "is read-only; mount it for writing",
    errno.EACCES: "is closed to Tower's user; give it the right to write there",
    errno.EPERM: "refused a write; it needs a file system with hard links that Tower's user owns",
    errno.ELOOP: "holds a symlink where a folder or object belongs; look at who put it there",
    errno.EISDIR: "holds a folder where an object belongs; look at who put it there",
}


@contextmanager
def _failures(name: str) -> Iterator[None]:
    """Turn what the disk says into a `PortError` with a sentence; a missing file passes, for `get` to say it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise PortError(Trouble.CONFLICT, f"{name} holds an object or symlink where a folder belongs; use another key") from error
    except OSError as error:
        words = _WORDS.get(error.errno or 0, f"failed: {error.strerror}; look at its disk")
        raise PortError(Trouble.FATAL, f"{name} {words}") from error
