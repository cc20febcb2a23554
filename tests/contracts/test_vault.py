"""The contract of Vault, on the simulator and on a directory."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta

import pytest

from breakglass.ports import PortError, Trouble
from tests.simulators.people import NOW


async def test_an_object_is_read_back_as_it_was_written(vault):
    data = bytes(range(256)) * 300
    stored = await vault.put("sessions/abcdefghij/case.json", data, retain_until=NOW)
    assert (stored.key, stored.size, stored.sha256) == ("sessions/abcdefghij/case.json", 76800, hashlib.sha256(data).hexdigest())
    assert await vault.get("sessions/abcdefghij/case.json") == data


async def test_an_empty_object_is_an_object(vault):
    await vault.put("empty", b"", retain_until=NOW)
    assert await vault.get("empty") == b""


async def test_the_same_bytes_again_are_harmless(vault):
    first = await vault.put("a/b", b"words", retain_until=NOW)
    assert await vault.put("a/b", b"words", retain_until=NOW + timedelta(days=1)) == first


@pytest.mark.parametrize("other", [b"", b"Words", b"words and more"])
async def test_other_bytes_under_the_same_key_are_a_conflict_and_the_first_stay(vault, other):
    await vault.put("a/b", b"words", retain_until=NOW)
    with pytest.raises(PortError, match=r"holds another a/b already; it is never overwritten$") as refused:
        await vault.put("a/b", other, retain_until=NOW)
    assert refused.value.trouble is Trouble.CONFLICT
    assert await vault.get("a/b") == b"words"


async def test_a_missing_object_is_not_found(vault):
    with pytest.raises(PortError) as refused:
        await vault.get("a/b")
    assert refused.value.trouble is Trouble.NOT_FOUND


async def test_keys_below_a_prefix_are_sorted_and_no_others(vault):
    for key in ("s/abc/2", "s/abc/10", "s/abd/1", "s/abc", "t"):
        await vault.put(key if key != "s/abc" else "s/abc0", b"x", retain_until=NOW)
    assert list(await vault.keys("s/abc/")) == ["s/abc/10", "s/abc/2"]
    assert list(await vault.keys("s/ab")) == ["s/abc/10", "s/abc/2", "s/abc0", "s/abd/1"]
    assert list(await vault.keys("")) == ["s/abc/10", "s/abc/2", "s/abc0", "s/abd/1", "t"]
    assert list(await vault.keys("nothing/here/")) == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "a/../../b",
        "..",
        ".",
        "a//b",
        "a/",
        "a/./b",
        "a\\b",
        "a\x00b",
        "a\nb",
        "a\x1bb",
        "\u202ea",
        "k" * 513,
    ],
)
async def test_a_key_that_could_lead_elsewhere_is_invalid(vault, key):
    with pytest.raises(PortError) as refused:
        await vault.put(key, b"x", retain_until=NOW)
    assert refused.value.trouble is Trouble.INVALID
    assert list(await vault.keys("")) == []


async def test_writers_race_for_one_key_and_one_objects_bytes_stay(vault):
    for number in range(10):
        key = f"race/{number}"
        written = [f"writer {writer}".encode() * 1000 for writer in range(4)]
        done = await asyncio.gather(*(vault.put(key, data, retain_until=NOW) for data in written), return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == ["PortError", "PortError", "PortError", "Stored"]
        (winner,) = (data for data, one in zip(written, done, strict=True) if not isinstance(one, PortError))
        assert await vault.get(key) == winner


async def test_a_probe_of_a_good_vault_says_usable_and_leaves_nothing(vault):
    probe = await vault.probe()
    assert probe.usable is True
    assert probe.locked is False
    assert list(await vault.keys("")) == []
