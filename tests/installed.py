"""The real cluster with layers 4 and 5 in place, for the tests of both: what `breakglass render` writes, applied and enforced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from breakglass.core.model import Tier
from breakglass.render import Inputs, render
from lab.api import Cluster
from lab.install import install
from tests.asking import Api, Who

PORTAL = "system:serviceaccount:tower:portal"
PREVIOUS_IMAGE = "registry.example.test/tower/debug@sha256:" + "1" * 64
REPOSITORY = Path(__file__).parents[1]


def inputs(image: str) -> Inputs:
    """A Flight cluster that pins this image and the one before it."""
    return Inputs(tier=Tier.FLIGHT, portal=PORTAL, images=(image, PREVIOUS_IMAGE))


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[Api]:
    """The API server, with the portal's rights and the policies enforced."""
    with cluster.client() as client:
        install(client, render(inputs(cluster.debug_image)))
    made = Api(cluster=cluster)
    yield made
    made.close()


@pytest.fixture(scope="session")
def thief(cluster: Cluster, api: Api) -> Who:
    """Somebody with the portal's own token."""
    return Who(token=cluster.token("tower", "portal"))
