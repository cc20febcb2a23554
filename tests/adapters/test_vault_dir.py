"""What can happen to a vault in a directory: full and read-only disks, symlinks, crashes, and its own machine's owner."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from breakglass.adapters.vault_dir import NOT_LOCKED, VaultDir
from breakglass.ports import PortError, Trouble
from tests.simulators.people import NOW


@pytest.fixture
def vault(tmp_path) -> VaultDir:
    return VaultDir(tmp_path / "vault")


def retained(tmp_path: Path, key: str) -> str:
    return json.loads((tmp_path / "vault" / "retain" / key).read_bytes())["retain_until"]


async def fails(vault: VaultDir, data: bytes = b"x", key: str = "a/b") -> PortError:
    with pytest.raises(PortError) as refused:
        await vault.put(key, data, retain_until=NOW)
    return refused.value


async def test_objects_and_folders_are_closed_to_everybody_else(vault, tmp_path):
    await vault.put("a/b", b"x", retain_until=NOW)
    modes = {str(one.relative_to(tmp_path)): oct(stat.S_IMODE(one.stat().st_mode)) for one in (tmp_path / "vault").rglob("*")}
    assert modes == {
        "vault/objects": "0o700",
        "vault/objects/a": "0o700",
        "vault/objects/a/b": "0o400",
        "vault/retain": "0o700",
        "vault/retain/a": "0o700",
        "vault/retain/a/b": "0o400",
        "vault/tmp": "0o700",
    }


async def test_how_long_to_keep_is_written_beside_and_never_shortened(vault, tmp_path):
    await vault.put("a/b", b"x", retain_until=NOW + timedelta(days=2))
    await vault.put("a/b", b"x", retain_until=NOW)
    assert retained(tmp_path, "a/b") == (NOW + timedelta(days=2)).isoformat()
    await vault.put("a/b", b"x", retain_until=NOW + timedelta(days=3))
    assert retained(tmp_path, "a/b") == (NOW + timedelta(days=3)).isoformat()


async def test_a_write_that_lost_its_retention_in_a_crash_gets_it_when_repeated(vault, tmp_path):
    await vault.put("a/b", b"x", retain_until=NOW)
    (tmp_path / "vault" / "retain" / "a" / "b").unlink()
    await vault.put("a/b", b"x", retain_until=NOW)
    assert retained(tmp_path, "a/b") == NOW.isoformat()


async def test_the_probe_says_plainly_that_it_is_not_locked(vault):
    probe = await vault.probe()
    assert (probe.usable, probe.locked, probe.sentence) == (True, False, NOT_LOCKED)
    assert NOT_LOCKED == "write-once, not locked: whoever owns this machine can delete records"


async def test_old_leftovers_of_crashes_are_swept_and_fresh_ones_are_not(vault, tmp_path):
    await vault.put("a/b", b"x", retain_until=NOW)
    old, fresh = tmp_path / "vault" / "tmp" / "old", tmp_path / "vault" / "tmp" / "fresh"
    old.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert list(await vault.keys("")) == ["a/b"]
    await vault.probe()
    assert [one.name for one in (tmp_path / "vault" / "tmp").iterdir()] == ["fresh"]


async def test_a_symlinked_folder_does_not_lead_a_record_out_of_the_vault(vault, tmp_path):
    await vault.put("a/b", b"x", retain_until=NOW)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "vault" / "objects" / "trap").symlink_to(tmp_path / "elsewhere")
    error = await fails(vault, key="trap/record")
    assert str(error).endswith("holds an object or symlink where a folder belongs; use another key")
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_symlink_in_an_objects_place_is_neither_followed_nor_replaced(vault, tmp_path):
    await vault.put("a/b", b"x", retain_until=NOW)
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "vault" / "objects" / "a" / "c").symlink_to(tmp_path / "secret")
    with pytest.raises(PortError, match=r"holds a symlink where a folder or object belongs; look at who put it there$"):
        await vault.get("a/c")
    assert str(await fails(vault, key="a/c")).endswith(
        "holds a symlink where a folder or object belongs; look at who put it there"
    )


async def test_a_folder_in_an_objects_place_is_said(vault):
    await vault.put("a/b/c", b"x", retain_until=NOW)
    error = await fails(vault, key="a/b")
    assert (error.trouble, str(error)) == (Trouble.CONFLICT, "b in the vault is not a file; use another key")
    await vault.put("d", b"x", retain_until=NOW)
    assert (await fails(vault, key="d/e")).trouble is Trouble.CONFLICT


@pytest.mark.root
async def test_a_full_disk_is_fatal_leaves_no_half_object_and_room_mends_it(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        vault = VaultDir(disk / "vault")
        await vault.put("first", b"x" * 20000, retain_until=NOW)
        error = await fails(vault, b"y" * 60000)
        assert (error.trouble, str(error)) == (Trouble.FATAL, f"the vault {disk / 'vault'} is full; make room")
        assert list(await vault.keys("")) == ["first"]
        assert list((disk / "vault" / "tmp").iterdir()) == []
        await vault.put("a/b", b"y" * 100, retain_until=NOW)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


async def test_a_file_size_limit_is_fatal_in_words(vault, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, hard))
    try:
        error = await fails(vault, b"y" * 20000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(error) == f"the vault {tmp_path / 'vault'} may not hold a file this large; raise the limit on file size"


@pytest.mark.root
async def test_a_read_only_vault_is_fatal_and_its_probe_says_why(vault, tmp_path):
    await vault.put("a/b", b"x", retain_until=NOW)
    subprocess.run(["mount", "--bind", tmp_path, tmp_path], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", tmp_path], check=True)
    try:
        error = await fails(vault, key="a/c")
        probe = await vault.probe()
        assert await vault.get("a/b") == b"x"
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
    words = f"the vault {tmp_path / 'vault'} is read-only; mount it for writing"
    assert (error.trouble, str(error)) == (Trouble.FATAL, words)
    assert (probe.usable, probe.locked, probe.sentence) == (False, False, words)


async def test_a_vault_that_is_a_file_is_unusable_in_words(tmp_path):
    (tmp_path / "vault").write_text("not a folder")
    probe = await VaultDir(tmp_path / "vault").probe()
    assert probe.usable is False
    assert os.strerror(errno.EEXIST) in probe.sentence


WRITING = """
import asyncio, sys
from pathlib import Path
from breakglass.adapters.vault_dir import VaultDir
from tests.simulators.people import NOW

async def main():
    vault = VaultDir(Path(sys.argv[1]))
    number = 0
    while True:
        await vault.put(f"s/{number:04}", str(number).encode() * 5000, retain_until=NOW)
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@pytest.mark.slow
async def test_killed_at_any_moment_every_acknowledged_object_is_whole_and_no_other_is_torn(tmp_path):
    for written in (1, 9):
        vault = VaultDir(tmp_path / f"vault{written}")
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITING, tmp_path / f"vault{written}"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        said = [int(writer.stdout.readline()) for _ in range(written)]
        os.kill(writer.pid, signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        writer.stdout.close()
        keys = list(await vault.keys("s/"))
        assert keys[: len(said)] == [f"s/{number:04}" for number in said]
        assert len(keys) <= len(said) + 1
        for number, key in enumerate(keys):
            assert await vault.get(key) == str(number).encode() * 5000
