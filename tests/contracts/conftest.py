"""Each port's contract runs on its simulator and on the real adapter: `store`, `vault`, `catalog`, `deployments`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from breakglass.adapters.catalog_file import CatalogFile
from breakglass.adapters.store_sql import StoreSql
from breakglass.adapters.vault_dir import VaultDir
from tests.simulators.catalog import MemoryCatalog, demo_catalog
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


@pytest.fixture(params=["memory", "file"])
def catalog(request) -> MemoryCatalog | CatalogFile:
    """The demo's catalog: the simulator's and the lab's file must say the same."""
    return demo_catalog() if request.param == "memory" else CatalogFile(Path("lab/demo/catalog-info.yaml").resolve())
