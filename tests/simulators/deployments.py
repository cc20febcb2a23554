"""Deployments in memory: environments by app, with faults on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from breakglass.core.facts import AppFacts
from breakglass.core.model import EntityRef, Environment, Tier
from breakglass.ports import PortError, Trouble
from tests.simulators.faults import Faults, around
from tests.simulators.people import NOW

COMMIT = "c0ffee" * 6 + "c0ff"


@dataclass(slots=True)
class MemoryDeployments:
    """Deployments; fill `by_app`."""

    faults: Faults = field(default_factory=Faults)
    by_app: dict[EntityRef, list[Environment]] = field(default_factory=dict)

    def add(self, app: str, name: str, cluster: str, namespace: str, tier: Tier = Tier.FLIGHT) -> Environment:
        """One environment of an app, by its full reference."""
        ref = EntityRef(app)
        made = Environment(app=ref, name=name, cluster=cluster, namespace=namespace, tier=tier, commit=COMMIT, read_at=NOW)
        self.by_app.setdefault(ref, []).append(made)
        return made

    async def environments(self, app: AppFacts) -> Sequence[Environment]:
        """All environments of the app."""
        with around(await self.faults.before("environments"), "environments"):
            if app.app not in self.by_app:
                words = "give its catalog entity the annotation tower.hangar/cicd"
                raise PortError(Trouble.INVALID, f"where {app.app} is deployed is not known; {words}")
            return list(self.by_app[app.app])
