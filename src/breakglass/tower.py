"""What Tower is made of: its ports and its site's settings as one frozen value. Decides nothing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from breakglass.core.model import EntityRef
from breakglass.ports import (
    Audit,
    Catalog,
    Cluster,
    Deployments,
    Identity,
    Notifier,
    Permissions,
    Store,
    Tickets,
    Vault,
)
from breakglass.spool import Limits


def utc_now() -> datetime:
    """The wall clock, aware."""
    return datetime.now(tz=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The three things that are not deterministic: wall time, monotonic seconds, random bytes."""

    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    random: Callable[[int], bytes] = secrets.token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What site.yaml decides for the orchestration; `config.py` reads the file."""

    state_dir: Path
    portal: str
    admins: EntityRef
    auditors: EntityRef
    images: tuple[str, ...]
    recipients: tuple[str, ...]
    on_call: str
    protected_namespaces: frozenset[str]
    limits: Limits

    @property
    def spool(self) -> Path:
        """Where live records lie until they are locked: one directory a session."""
        return self.state_dir / "spool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Everything a session needs, wired once by `cli/serve.py` or by a test."""

    settings: Settings
    clusters: Mapping[str, Cluster]
    store: Store
    audit: Audit
    tickets: Tickets
    vault: Vault
    identity: Identity
    permissions: Permissions
    catalog: Catalog
    deployments: Deployments
    notifier: Notifier
    clock: Clock = field(default_factory=Clock)
