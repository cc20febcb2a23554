"""The contract of Deployments, on the simulator and on git."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from breakglass.adapters.cicd_git import CicdGit
from breakglass.core.facts import AppFacts
from breakglass.core.model import EntityRef, Tier
from breakglass.ports import PortError, Trouble
from tests.simulators.deployments import MemoryDeployments
from tests.simulators.git_host import GitHost
from tests.simulators.people import CHECKOUT, NOW

APP = AppFacts(app=CHECKOUT, owners=frozenset())
FILE = b"""{apiVersion: tower.hangar/v1, kind: Delivery, app: checkout, environments: {
  production: {cluster: demo, namespace: checkout, tier: flight}, staging: {cluster: dev, namespace: checkout, tier: ground}}}"""


@pytest.fixture(params=["memory", "git"])
def deployments(request, tmp_path) -> Iterator[MemoryDeployments | CicdGit]:
    """Checkout in two environments."""
    if request.param == "memory":
        made = MemoryDeployments()
        made.add(CHECKOUT, "production", "demo", "checkout")
        made.add(CHECKOUT, "staging", "dev", "checkout", Tier.GROUND)
        yield made
        return
    host = GitHost(folder=tmp_path)
    host.commit("repo", FILE)
    yield CicdGit(cache=tmp_path / "cache", dev=True, local={CHECKOUT: tmp_path / "repo"}, now=lambda: NOW)
    host.repos["/repo"].close()


async def test_every_environment_has_its_cluster_namespace_tier_and_evidence(deployments):
    found = await deployments.environments(APP)
    assert [(one.name, one.cluster, one.namespace, one.tier) for one in found] == [
        ("production", "demo", "checkout", Tier.FLIGHT),
        ("staging", "dev", "checkout", Tier.GROUND),
    ]
    assert {(one.app, one.read_at, one.stale, len(one.commit)) for one in found} == {(CHECKOUT, NOW, False, 40)}


async def test_an_app_nobody_says_where_it_runs_is_invalid_and_not_empty(deployments):
    with pytest.raises(PortError) as refused:
        await deployments.environments(replace(APP, app=EntityRef("component:default/ledger")))
    words = "where component:default/ledger is deployed is not known; give its catalog entity the annotation tower.hangar/cicd"
    assert (refused.value.trouble, str(refused.value)) == (Trouble.INVALID, words)
