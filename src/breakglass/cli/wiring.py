"""The composition root: a site's decisions become adapters, a `Tower`, its service and its reaper. The one place that knows all.

Must never: choose an adapter by anything but `site.yaml`, or start what the site does not name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from breakglass.adapters.catalog_file import CatalogFile
from breakglass.adapters.cicd_git import CicdGit, Host
from breakglass.adapters.identity_local import LocalIdentity, create_key, read_key
from breakglass.adapters.kubernetes import connected
from breakglass.adapters.notify_log import NotifyLog
from breakglass.adapters.notify_webhook import NotifyWebhook
from breakglass.adapters.permissions_builtin import BuiltinPermissions
from breakglass.adapters.store_sql import StoreSql
from breakglass.adapters.vault_dir import VaultDir
from breakglass.config import Site
from breakglass.core.model import EntityRef, Tier
from breakglass.judging import Judge
from breakglass.notices import Notices
from breakglass.ports import Notifier, PortError, Trouble
from breakglass.reaper import Reaper
from breakglass.rows import Rows
from breakglass.running import Running
from breakglass.service import Service
from breakglass.tower import Tower

STORE, VAULT, CACHE, LOCK = "tower.db", "vault", "git", "lock"
"""What lies in the site's state directory, beside `spool/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wired:
    """Everything that runs, connected and not yet started."""

    tower: Tower
    service: Service
    running: Running
    reaper: Reaper


class Wire(Protocol):
    """How a Tower is put together: `wired`, or a test's own."""

    def __call__(self, site: Site, *, dev: bool) -> AbstractAsyncContextManager[Wired]:
        """Everything connected until the block ends."""
        ...


@asynccontextmanager
async def wired(site: Site, *, dev: bool) -> AsyncIterator[Wired]:
    """Tower as the site decides it, until the block ends. `PortError` when something it stands on is not there.

    1. The state directory is ours alone: a second Tower on it would close the first one's sessions. 2. Store, vault, catalog,
    git, identity, notices, clusters: no cluster is asked anything yet. 3. The orchestration over them.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(_alone(site.state_dir))  # (1)
        store = await StoreSql.open(site.state_dir / STORE)  # (2)
        stack.push_async_callback(store.close)
        catalog = CatalogFile(site.catalog.file)
        clusters = {}
        for entry in site.clusters:
            cluster = connected(entry.name, Tier(entry.tier), kubeconfig=entry.kubeconfig)
            clusters[entry.name] = await stack.enter_async_context(cluster)
        deployments = cicd(site, dev=dev)
        stack.push_async_callback(deployments.close)
        settings = site.settings()
        tower = Tower(
            settings=settings,
            clusters=clusters,
            store=store,
            audit=store,
            tickets=store,
            vault=VaultDir(site.state_dir / VAULT),
            identity=LocalIdentity(local_key(site), catalog),
            permissions=BuiltinPermissions(catalog, settings.admins, settings.auditors),
            catalog=catalog,
            deployments=deployments,
            notifier=_notifier(site, stack),
        )
        yield orchestrated(tower)  # (3)


def orchestrated(tower: Tower) -> Wired:
    """The orchestration over these ports, connected and not yet started."""
    rows = Rows(tower.store, tower.clock.now)
    judge = Judge(tower)
    notices = Notices(tower, judge)
    running = Running(tower, rows, notices)
    service = Service(tower, rows, running, judge, notices)
    return Wired(tower=tower, service=service, running=running, reaper=Reaper(tower, rows, running, notices))


def cicd(site: Site, *, dev: bool) -> CicdGit:
    """Where cicd.yaml is read; local repositories count only in a trial."""
    hosts = {
        name: Host(username=host.username or "", token_file=host.token_file, ca_file=host.ca_file)
        for name, host in site.deployments.hosts.items()
    }
    local = {EntityRef(app): path for app, path in site.deployments.local.items()}
    return CicdGit(cache=site.state_dir / CACHE, hosts=hosts, dev=dev, local=local)


def local_key(site: Site) -> Ed25519PrivateKey:
    """The trial's identity key; made at first use, never replaced."""
    path = site.identity.local.key_file
    if not path.exists():
        with contextlib.suppress(PortError):  # somebody else was faster: read theirs
            create_key(path)
    return read_key(path)


def _notifier(site: Site, stack: AsyncExitStack) -> Notifier:
    if site.notify.webhook is None:
        return NotifyLog()
    webhook = NotifyWebhook(site.notify.webhook.url, site.notify.webhook.secret_file)
    stack.push_async_callback(webhook.close)
    return webhook


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Hold the state directory's lock; `conflict` when another process does."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PortError(Trouble.FATAL, f"the state directory {state_dir} cannot be used: {error.strerror}") from error
    with os.fdopen(descriptor, "rb"):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = f"another Tower runs on {state_dir}; stop it first, or give this one its own"
            raise PortError(Trouble.CONFLICT, words) from None
        yield
