"""A vault in memory: write-once, with faults on demand; `locked` says whether it pretends to Object Lock."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from breakglass.ports import PortError, Stored, Trouble, VaultProbe
from tests.simulators.faults import Faults, around


@dataclass(slots=True)
class MemoryVault:
    """Vault; `objects` and `retain` are open to look at, and to tamper with."""

    faults: Faults = field(default_factory=Faults)
    objects: dict[str, bytes] = field(default_factory=dict)
    retain: dict[str, datetime] = field(default_factory=dict)
    locked: bool = False

    async def put(self, key: str, data: bytes, *, retain_until: datetime) -> Stored:
        """Once."""
        with around(await self.faults.before("put"), "put"):
            parts = key.split("/")
            if not key.isprintable() or len(key.encode()) > 512 or "\\" in key or any(part in {"", ".", ".."} for part in parts):
                raise PortError(Trouble.INVALID, f"a vault key is names joined by single slashes, not {key[:60]!r}")
            if self.objects.setdefault(key, data) != data:
                raise PortError(Trouble.CONFLICT, f"the vault holds another {key} already; it is never overwritten")
            self.retain[key] = max(self.retain.get(key, retain_until), retain_until)
            return Stored(key=key, version="1", sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    async def get(self, key: str) -> bytes:
        """The bytes."""
        with around(await self.faults.before("get"), "get"):
            if key not in self.objects:
                raise PortError(Trouble.NOT_FOUND, f"the vault holds no {key}")
            return self.objects[key]

    async def keys(self, prefix: str) -> Sequence[str]:
        """Sorted."""
        with around(await self.faults.before("keys"), "keys"):
            return sorted(key for key in self.objects if key.startswith(prefix))

    async def probe(self) -> VaultProbe:
        """As planned: a fault on `probe` makes it unusable."""
        try:
            await self.faults.before("probe")
        except PortError as error:
            return VaultProbe(usable=False, locked=False, sentence=str(error))
        return VaultProbe(usable=True, locked=self.locked, sentence="in memory: gone with the process")
