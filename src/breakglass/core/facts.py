"""What a cluster and a catalog say right now, as values the rules can judge. Pure; nothing here was ever in a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from breakglass.core.model import EntityRef, Person, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A registered API server: the registry's tier, its own label's (kube-system), its version and its clock (HTTP Date)."""

    name: str
    registered_tier: Tier
    labelled_tier: str | None
    version: tuple[int, int]
    server_time: datetime
    read_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """A namespace and whose it says it is: label `tower.hangar/app`, annotation `tower.hangar/entity`."""

    name: str
    app_label: str | None
    entity: str | None
    terminating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """A regular container: what its spec asks for and, where the runtime tells (`user.linux`), its real ids."""

    name: str
    image: str
    running: bool
    uid: int | None = None
    gid: int | None = None
    supplemental_groups: tuple[int, ...] = ()
    writable_mounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugContainerFacts:
    """A `debug-*` ephemeral container on a pod, ours or a forgery; `targets_process` when it names a target container."""

    name: str
    running: bool
    waiting_reason: str | None = None
    terminated_at: datetime | None = None
    exit_code: int | None = None
    message: str = ""
    targets_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod as the API server has it, reduced to what a rule may ask about."""

    name: str
    uid: str
    namespace: str
    phase: str
    node: str | None
    node_ready: bool
    ready: bool
    terminating: bool
    created_at: datetime
    containers: tuple[ContainerFacts, ...]
    debug_containers: tuple[DebugContainerFacts, ...] = ()
    process_access: str | None = None
    mirror: bool = False
    host_namespaces: bool = False
    shares_processes: bool = False
    user_namespace: bool = False
    windows: bool = False
    fs_group: int | None = None
    supplemental_groups: tuple[int, ...] = ()
    default_container: str | None = None
    grace_seconds: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFacts:
    """A catalog entity of kind Component and who owns it *now* (`ownedBy`: people and groups)."""

    app: EntityRef
    owners: frozenset[EntityRef]
    cicd: str | None = None
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonFacts:
    """A person and the groups they are a direct member of *now* (`memberOf`); `locked` people may do nothing."""

    person: Person
    groups: frozenset[EntityRef] = field(default_factory=frozenset)
    locked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """What an actor is to an app at this moment. Admin and auditor are groups named in site.yaml."""

    owner: bool
    admin: bool
    auditor: bool
    locked: bool = False
