"""`breakglass doctor`: look at everything a session will stand on, under the portal's own identity; each red line has its fix.

Must never: change anything anywhere (its one write to a cluster is a dry run that must be refused), or call green what it
could not look at.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import click

from breakglass.adapters.catalog_file import CatalogFile
from breakglass.adapters.cicd_git import CicdGit
from breakglass.adapters.vault_dir import VaultDir
from breakglass.cli import say
from breakglass.cli.codes import Exit, UsageError
from breakglass.cli.doctor_cluster import Check, cluster_checks, green, red, unknown
from breakglass.cli.serve import load
from breakglass.cli.wiring import STORE, VAULT, cicd, local_key
from breakglass.config import Site
from breakglass.core.facts import AppFacts
from breakglass.core.model import EntityRef, Environment
from breakglass.ports import PortError


@click.command()
@click.option("--site", "site_file", type=click.Path(path_type=Path), required=True, help="The site's site.yaml.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def doctor(site_file: Path, *, as_json: bool) -> Exit:
    """Check a site line by line: ok, RED with its fix, or not looked at with the reason."""
    try:
        site = load(site_file)
    except UsageError as error:
        checks = [red("config", str(error), "Mend that place in site.yaml; docs/reference/config.md has every key.")]
    else:
        checks = asyncio.run(_looked(site, site_file))
    healthy = all(check.ok is not False for check in checks)
    if as_json:
        say.document({"healthy": healthy, "checks": [_fields(check) for check in checks]})
    else:
        _shown(checks)
    return Exit.DONE if healthy else Exit.WRONG


def _fields(check: Check) -> dict[str, str | bool | None]:
    return {"name": check.name, "ok": check.ok, "sentence": check.sentence, "fix": check.fix}


def _shown(checks: Sequence[Check]) -> None:
    words = {True: "ok ", False: "RED", None: "?  "}
    width = max(len(check.name) for check in checks)
    for check in checks:
        say.text(f"{words[check.ok]}  {check.name.ljust(width)}  {check.sentence}")
        if check.ok is False:
            say.text(f"     {' ' * width}  fix: {check.fix}")
    reds = sum(check.ok is False for check in checks)
    blind = sum(check.ok is None for check in checks)
    say.line(f"{len(checks)} checks, {reds} red, {blind} not looked at")


async def _looked(site: Site, site_file: Path) -> list[Check]:
    """The machine first, then who and where, then every cluster at once."""
    checks = [green("config", f"{site_file} is in order, profile {site.profile}")]
    checks += [unknown("profile", warning) for warning in site.warnings()]
    checks += [_state(site), _identity(site), _store(site), await _vault(site)]
    catalog = CatalogFile(site.catalog.file)
    checks += await _people(site, catalog)
    environments, found = await _environments(site, catalog)
    checks += found
    looks = [cluster_checks(site, entry, [e for e in environments if e.cluster == entry.name]) for entry in site.clusters]
    for each in await asyncio.gather(*looks):
        checks += each
    return checks


def _state(site: Site) -> Check:
    fix = f"Make {site.state_dir} a directory of Tower's user on a local disk, mode 0700."
    try:
        site.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode, free = site.state_dir.stat().st_mode, shutil.disk_usage(site.state_dir).free
    except OSError as error:
        return red("state", f"{site.state_dir} cannot be used: {error.strerror}", fix)
    if mode & 0o077:
        return red("state", f"others can look into {site.state_dir}", f"chmod 700 {site.state_dir}")
    need = site.limits.reserve_bytes + site.limits.record_bytes
    if free < need:
        words = f"{free >> 20} MiB are free in {site.state_dir}; one long record and the reserve need {need >> 20} MiB"
        return red("state", words, "Give it room, or lower limits.record_bytes.")
    return green("state", f"{site.state_dir}, {free >> 30} GiB free")


def _identity(site: Site) -> Check:
    try:
        local_key(site)
    except PortError as error:
        return red("identity", str(error), "The sentence says it.")
    return green("identity", f"local key {site.identity.local.key_file}, readable by its owner only")


def _store(site: Site) -> Check:
    path = site.state_dir / STORE
    if not path.exists():
        return unknown("store", "not made yet; breakglass serve makes it")
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=2) as database:
            words = database.execute("pragma quick_check").fetchone()[0]
        database.close()
    except sqlite3.Error as error:
        return red("store", f"{path} cannot be read: {error}", "Stop Tower, put its last backup in its place; docs/operate.md.")
    return (
        green("store", "SQLite, whole")
        if words == "ok"
        else red("store", f"{path} is damaged: {words}", "Put its last backup in its place.")
    )


async def _vault(site: Site) -> Check:
    probe = await VaultDir(site.state_dir / VAULT).probe()
    if not probe.usable:
        return red("vault", probe.sentence, "Without a vault there are no sessions: give it room and rights.")
    return green("vault", probe.sentence)


async def _people(site: Site, catalog: CatalogFile) -> list[Check]:
    """Who can approve, break and review."""
    try:
        apps, admins = await catalog.apps(), await catalog.members(EntityRef(site.admins))
    except PortError as error:
        return [red("catalog", str(error), "Mend the catalog file; the sentence names the place.")]
    checks = [
        green("catalog", f"{len(apps)} apps")
        if apps
        else red("catalog", "no apps", "Put the apps and their owners into the catalog.")
    ]
    count = f"{len(admins)} in {site.admins}"
    fix = f"Add people to {site.admins}: with fewer than two nobody may break the glass."
    checks.append(green("admins", count) if len(admins) >= 2 else red("admins", count, fix))
    checks.append(green("recipients", f"{len(site.recipients)} can read what was typed; none of them is Tower"))
    return checks


async def _environments(site: Site, catalog: CatalogFile) -> tuple[list[Environment], list[Check]]:
    """Where every app runs, as its own repository says."""
    deployments = cicd(site, dev=site.profile == "try")
    try:
        apps = await catalog.apps()
    except PortError:
        return [], [unknown("cicd", "without a catalog there is nothing to look up")]
    try:
        answers = await asyncio.gather(*(_answer(deployments, app) for app in apps))
    finally:
        await deployments.close()
    environments: list[Environment] = []
    checks: list[Check] = []
    for app, answer in zip(apps, answers, strict=True):
        checks.append(_cicd(site, app, answer))
        environments += [] if isinstance(answer, str) else answer
    return environments, checks


async def _answer(deployments: CicdGit, app: AppFacts) -> Sequence[Environment] | str:
    try:
        return await deployments.environments(app)
    except PortError as error:
        return str(error)


def _cicd(site: Site, app: AppFacts, answer: Sequence[Environment] | str) -> Check:
    name = f"cicd {app.app.rpartition('/')[2]}"
    if app.cicd is None and app.app not in site.deployments.local:
        return unknown(name, "names no cicd.yaml (annotation tower.hangar/cicd), so nobody gets a shell there")
    if isinstance(answer, str):
        return red(name, answer, "Until its cicd.yaml can be read nobody gets a shell there; tell its owners.")
    if strangers := sorted({e.cluster for e in answer if site.tier_of(e.cluster) is None}):
        return red(
            name,
            f"names the cluster {strangers[0]}, which is not registered",
            "Add it under clusters in site.yaml, or mend cicd.yaml.",
        )
    if differ := [e for e in answer if site.tier_of(e.cluster) is not e.tier]:
        return red(
            name, f"{differ[0].name} says {differ[0].tier}, the registry says otherwise", "Both must agree: mend the wrong one."
        )
    stale = ", from an old copy: git is down" if any(e.stale for e in answer) else ""
    return green(name, ", ".join(f"{e.name} on {e.cluster} ({e.tier.words})" for e in answer) + stale)
