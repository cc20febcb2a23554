"""The simulators fail as they say: what failed did not happen, what lost its answer did, what is slow is only late."""

from __future__ import annotations

import asyncio

import pytest

from breakglass.ports import PortError, Trouble
from tests.simulators.faults import SLOW_SECONDS, Fault, Faults
from tests.simulators.people import NOW, a_session, an_event
from tests.simulators.store import MemoryStore
from tests.simulators.vault import MemoryVault


@pytest.mark.parametrize(
    ("fault", "trouble", "there"),
    [(Fault.FAIL, Trouble.TRANSIENT, False), (Fault.FAIL_BUT_HAPPENED, Trouble.UNKNOWN, True)],
)
async def test_a_failed_write_is_there_only_when_its_answer_was_lost(fault, trouble, there):
    store, vault = MemoryStore(Faults().at("create", fault)), MemoryVault(Faults().at("put", fault))
    for call in (store.create(a_session(), an_event()), vault.put("a", b"x", retain_until=NOW)):
        with pytest.raises(PortError) as refused:
            await call
        assert refused.value.trouble is trouble
    assert (bool(store.sessions), bool(store.events), bool(vault.objects)) == (there, there, there)


async def test_only_the_nth_call_fails():
    store = MemoryStore(Faults().at("append", Fault.FAIL, nth=2))
    await store.append(an_event("first"))
    with pytest.raises(PortError):
        await store.append(an_event("second"))
    await store.append(an_event("third"))
    assert [event.name for event in store.events] == ["first", "third"]


@pytest.mark.looptime
async def test_a_slow_call_is_late_and_happens():
    store = MemoryStore(Faults().at("append", Fault.SLOW))
    began = asyncio.get_running_loop().time()
    await store.append(an_event())
    assert asyncio.get_running_loop().time() - began == SLOW_SECONDS
    assert len(store.events) == 1


async def test_a_vault_with_a_bad_probe_is_unusable_in_words():
    probe = await MemoryVault(Faults().at("probe", Fault.FAIL)).probe()
    assert (probe.usable, probe.sentence) == (False, "probe failed, as planned")
