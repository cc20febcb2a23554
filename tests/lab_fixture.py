"""The session's real cluster: up at first use, down at the end, also after a failure or an interrupt.

`TOWER_LAB=<state directory>` uses a standing cluster instead (with the supervisor as it is now) and leaves it standing.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from image import build
from lab import binaries, cleanup
from lab.api import Cluster
from lab.layout import Layout
from lab.steps import Steps, to_stderr


def pytest_configure(config: pytest.Config) -> None:
    """Let a polite kill run the fixtures' ends, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Build what the lab needs before the first test, whose time limit is not meant for builds of many minutes."""
    wanted = any(item.get_closest_marker("lab") for item in session.items)
    if session.config.option.collectonly or not wanted or os.environ.get("TOWER_LAB"):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        steps = Steps()
        binaries.ensure_system(steps)
        binaries.ensure_all(steps)
        with steps.step("debug image's packages"):
            build.base_layer(build.cache_dir())


def remove_orphans() -> None:
    """Take down clusters of test runs that were killed before they could do it themselves."""
    for state in Path(tempfile.gettempdir()).glob("tower-lab-test-*"):
        owner = state.name.split("-")[3]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            cleanup.down(Layout.of(state.name.removeprefix("tower-lab-"), state))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One cluster with the demo app, for every test of this run that is marked `lab`."""
    if standing := os.environ.get("TOWER_LAB"):
        yield Cluster.load(Path(standing)).load_supervisor()
        return
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        remove_orphans()
        to_stderr("")
        made = Cluster.up(f"test-{os.getpid()}")
    try:
        yield made
    finally:
        made.down()
