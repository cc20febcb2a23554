"""The doctor on a real cluster: green where it is as it should be, and not fooled by a credential that may too much."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from breakglass.cli.main import run
from lab import site as lab_site
from lab.api import Cluster

pytestmark = pytest.mark.lab


def _looked(site: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    run(["doctor", "--site", str(site), "--json"])
    return {check["name"]: check for check in json.loads(capfd.readouterr().out)["checks"]}


def test_a_cluster_as_rendered_is_green_in_every_line(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site = lab_site.make(cluster, tmp_path / "site")
    found = _looked(site.file, capfd)
    assert [name for name, check in found.items() if check["ok"] is False] == []
    assert found[f"cluster {cluster.name} policies"]["sentence"].startswith("tower-breakglass-rolebinding refused")
    assert found[f"cluster {cluster.name} rights"]["ok"] is True


def test_a_portal_that_may_too_much_is_red_and_the_surplus_is_named(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site = lab_site.make(cluster, tmp_path / "site")
    shutil.copy(cluster.admin_kubeconfig, tmp_path / "site" / "portal.kubeconfig")
    found = _looked(site.file, capfd)[f"cluster {cluster.name} rights"]
    assert found["ok"] is False
    for right in ("bind clusterroles cluster-admin", "get secrets", "create pods/exec", "impersonate users"):
        assert right in found["sentence"]
