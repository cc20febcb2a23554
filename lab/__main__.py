"""`python -m lab up|down|status|build`: a real cluster on this machine, and nothing of it left afterwards.

Lab, outside the layers. It must never end with success when what it was asked for is not there.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Final

import click

from image import build as debug_image
from lab import binaries, cleanup, lifecycle
from lab.api import Cluster
from lab.layout import LabError, Layout
from lab.steps import Steps, to_stderr

NAME: Final = click.option("--name", default="demo", show_default=True, help="the cluster's name")
STATE: Final = click.option(
    "--state-dir", type=click.Path(path_type=Path), help="where it lives [default: $TMPDIR/tower-lab-NAME]"
)


@click.group()
def main() -> None:
    """Start and remove real one-node Kubernetes clusters."""


@main.command()
@NAME
@STATE
@click.option("--tier", default="flight", show_default=True, help="what the label on kube-system says")
@click.option("--bare", is_flag=True, help="without the demo app")
def up(name: str, state_dir: Path | None, tier: str, *, bare: bool) -> None:
    """Bring a cluster up; builds what is missing; does nothing when it is up already."""
    cluster = Cluster.up(name, state_dir=state_dir, tier=tier, demo=not bare)
    to_stderr(f"{name} is up; for kubectl:")
    print(f"export KUBECONFIG={cluster.admin_kubeconfig}")


@main.command()
@NAME
@STATE
def down(name: str, state_dir: Path | None) -> None:
    """Remove a cluster whole, also after a crash."""
    layout, steps = Layout.of(name, state_dir), Steps()
    with lifecycle.exclusive(layout), steps.step(f"{name} down"):
        cleanup.down(layout)
    if left := cleanup.leftovers(layout):
        raise LabError(f"something is left of {name}: {'; '.join(left)}")


@main.command()
@NAME
@STATE
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def status(name: str, state_dir: Path | None, *, as_json: bool) -> None:
    """Say what runs; exit code 1 when it is not whole."""
    layout = Layout.of(name, state_dir)
    found = (
        Cluster.load(layout.state).status()
        if layout.record.exists()
        else {"name": name, "state_dir": str(layout.state), "not_running": ["all"]}
    )
    if as_json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:<12} {value}")
    sys.exit(1 if found["not_running"] else 0)


@main.command()
def build() -> None:
    """Build what the lab needs and stop there."""
    steps = Steps()
    binaries.ensure_system(steps)
    tools = binaries.ensure_all(steps)
    with steps.step("debug image's packages", "45 s, once"):
        tools["debug image's packages"] = debug_image.base_layer(debug_image.cache_dir()).path
    for name, path in tools.items():
        print(f"{name:<26} {path}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill cleans up as Ctrl-C does
    try:
        main(prog_name="python -m lab")
    except LabError as error:
        to_stderr(f"lab: {error}")
        sys.exit(1)
