"""What a bench needs: a cluster, the policies, an app, Tower as a process of its own; gone again at the end, also after an error.

`TOWER_LAB=<state directory>` uses a standing cluster instead and leaves it standing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from lightkube import codecs
from lightkube.resources.core_v1 import Pod

from bench.figures import Report
from lab import processes
from lab import site as sites
from lab.api import Cluster
from lab.steps import to_stderr

NAMESPACE = "checkout"
OWNERS = 24
"""Beside the demo's two: one open session each, so whoever measures many shells at once needs as many people."""

Measure = Callable[[sites.Site, int], Report]


@contextlib.contextmanager
def standing(what: str, *, program: tuple[str, ...] = ("-m", "breakglass.cli")) -> Iterator[sites.Site]:
    """A site with a Tower that answers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        if lab := os.environ.get("TOWER_LAB"):
            cluster = Cluster.load(Path(lab)).load_supervisor()
        else:
            cluster = Cluster.up(f"bench-{what}-{os.getpid()}")
            stack.callback(cluster.down)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tower-bench-")))
        site = sites.make(cluster, folder / "site")
        with (site.folder / "catalog-info.yaml").open("a") as catalog:
            catalog.write("".join(map(_owner, owners())))
        stack.callback(_stop, site)
        site.start(program)
        yield site


def _stop(site: sites.Site) -> None:
    """End Tower; when it does not end by itself its log is worth more than its life."""
    try:
        site.stop()
    except Exception:  # noqa: BLE001 - whatever it is, the process must go
        site.kill()
        to_stderr(site.log.read_text()[-2000:])


def owners() -> list[str]:
    """People who own the app, for as many sessions at once."""
    return [f"owner{number}" for number in range(1, OWNERS + 1)]


def _owner(name: str) -> str:
    head = "---\napiVersion: backstage.io/v1alpha1\nkind: User\nmetadata: {name: %s}\n" % name  # noqa: UP031 - braces
    return head + f"spec: {{profile: {{displayName: {name}}}, memberOf: [checkout-team]}}\n"


@contextlib.contextmanager
def pod(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """A fresh pod of the app, running: name and UID. Debug containers never leave a pod, so no bench fills the app's own."""
    name = f"bench-{secrets.token_hex(4)}"
    spec = {
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000},
        "containers": [{"name": "checkout", "image": cluster.app_image}],
    }
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }
    with cluster.client() as client:

        def running() -> bool:
            status = client.get(Pod, name, namespace=NAMESPACE).status
            ready = [c for c in (status.conditions if status else None) or [] if c.type == "Ready" and c.status == "True"]
            return bool(ready)

        made = client.apply(codecs.from_dict(manifest)).metadata
        assert made is not None
        assert made.uid is not None
        try:
            processes.wait_until("the bench's pod", running, 60, every=0.1)
            yield name, made.uid
        finally:
            with contextlib.suppress(Exception):  # recycled after process access, or the cluster is going down anyway
                client.delete(Pod, name, namespace=NAMESPACE, grace_period=0)


def load() -> float:
    """The machine's load over the last minute: a figure measured beside other work is no figure."""
    return os.getloadavg()[0]


def run(what: str, measure: Measure, runs: int) -> None:
    """The command line every bench has; exits with 1 when a limit does not hold."""

    @click.command(help=(sys.modules[measure.__module__].__doc__ or "").strip())
    @click.option("--json", "as_json", is_flag=True, help="The last line is one JSON object; everything else goes to stderr.")
    @click.option("-n", "wanted", type=click.IntRange(1), default=runs, show_default=True, help="How many times.")
    def main(*, as_json: bool, wanted: int) -> None:
        before = load()
        with standing(what) as site:
            report = measure(site, wanted)
        click.echo(f"bench.{what}, n = {wanted}, load {before:.1f} before and {load():.1f} after", err=as_json)
        for line in report.table():
            click.echo(line, err=as_json)
        for name in report.broken():
            click.echo(f"  does not hold: {name}", err=True)
        if as_json:
            click.echo(report.line())
        sys.exit(0 if report.ok else 1)

    main()
