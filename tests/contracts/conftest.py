"""Each port's contract runs on its simulator and on the real adapter: `store`, `vault`, `catalog`, `deployments`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from breakglass.adapters.store_sql import StoreSql
from breakglass.adapters.vault_dir import VaultDir
from tests.simulators.store import MemoryStore
from tests.simulators.vault import MemoryVault

Stores = MemoryStore | StoreSql


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path) -> AsyncIterator[Stores]:
    """Store, Audit and Tickets, empty."""
    if request.param == "memory":
        yield MemoryStore()
        return
    opened = await StoreSql.open(tmp_path / "store.sqlite")
    yield opened
    await opened.close()


@pytest.fixture(params=["memory", "directory"])
def vault(request, tmp_path) -> MemoryVault | VaultDir:
    """A vault, empty."""
    return MemoryVault() if request.param == "memory" else VaultDir(tmp_path / "vault")
