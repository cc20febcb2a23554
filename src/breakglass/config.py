"""`site.yaml`: everything a site decides, read strictly, or one sentence with the place in the file and what to write there.

Outside the layers; `docs/reference/config.md` is made from these models. Must never: fill in what was misspelt, take a secret
(it takes the names of files that hold one), or let Tower's local identity into anything but a trial.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import pyrage  # type: ignore[import-untyped]
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from breakglass.core.model import EntityRef, Tier, entity_ref, is_dns_label
from breakglass.core.strict_yaml import Malformed, document, kind_of, problem
from breakglass.spool import Limits
from breakglass.tower import Settings

LIMIT: Final = 256 * 1024
"""Bytes of site.yaml."""
ALWAYS_PROTECTED: Final = frozenset({"kube-node-lease", "kube-public", "kube-system", "kyverno"})

_IMAGE = re.compile(r"[a-z0-9.\-]+(:[0-9]{1,5})?(/[a-z0-9]+([._\-]+[a-z0-9]+)*)+@sha256:[0-9a-f]{64}")
_NETLOC = re.compile(r"[a-z0-9]([a-z0-9.\-]*[a-z0-9])?(:[0-9]{1,5})?")


class ConfigError(Exception):
    """The file is not one Tower starts with; `str()` is one sentence: where, and what to write."""


# --- what a value may be ----------------------------------------------------------------------------------------------


def _path(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"must be the path of a file or folder, not {kind_of(value) if value != '' else 'nothing'}")
    folder = (info.context or {}).get("folder", Path())
    return Path(folder) / Path(value).expanduser()


def _label(value: str) -> str:
    if not is_dns_label(value):
        raise ValueError("must be 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit")
    return value


def _group(value: str) -> EntityRef:
    ref = entity_ref(value, kind="group")
    if ref is None or not ref.startswith("group:"):
        raise ValueError("must name a group of the catalog, as in group:default/tower-admins")
    return ref


def _component(value: str) -> EntityRef:
    ref = entity_ref(value)
    if ref is None or not ref.startswith("component:"):
        raise ValueError("must name an app of the catalog, as in component:default/checkout")
    return ref


def _words(value: str) -> str:
    if not value.strip() or len(value) > 300 or not value.isprintable():
        raise ValueError("must be one line of 1 to 300 printable characters")
    return value.strip()


def _recipient(value: str) -> str:
    try:
        return str(pyrage.x25519.Recipient.from_str(value.strip()))
    except (pyrage.RecipientError, ValueError):
        raise ValueError("must be an age recipient, as in age1…: the public line that age-keygen prints") from None


def _image(value: str) -> str:
    if not _IMAGE.fullmatch(value):
        raise ValueError("must name an image by its digest, as in registry.example/tower/debug@sha256:<64 hex digits>")
    return value


def _netloc(value: str) -> str:
    if not _NETLOC.fullmatch(value):
        raise ValueError("must be a host name in lower case, with :port when it is not 443")
    return value


def _webhook(value: str) -> str:
    parts = urlsplit(value)
    plain = parts.scheme == "http" and _is_loopback(parts.hostname or "")
    if not value.isprintable() or parts.username is not None or not parts.hostname or not (parts.scheme == "https" or plain):
        raise ValueError("must be an https URL without user and password (http only to this machine)")
    return value


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _distinct(values: list[str]) -> list[str]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"the same twice ({value[:80]}); they must differ")
    return values


FilePath = Annotated[Path, BeforeValidator(_path)]
Label = Annotated[str, AfterValidator(_label)]
GroupRef = Annotated[str, AfterValidator(_group)]
AppRef = Annotated[str, AfterValidator(_component)]
Words = Annotated[str, AfterValidator(_words)]
Recipient = Annotated[str, AfterValidator(_recipient)]
Image = Annotated[str, AfterValidator(_image)]
Netloc = Annotated[str, AfterValidator(_netloc)]
WebhookUrl = Annotated[str, AfterValidator(_webhook)]
Distinct = AfterValidator(_distinct)


# --- the file ---------------------------------------------------------------------------------------------------------


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Listen(_Part):
    """Where people and their CLIs reach Tower."""

    host: Words = Field("127.0.0.1", description="Address to listen on. Profile `try`: this machine only.")
    port: int = Field(8443, ge=1, le=65535, description="TCP port.")


class Portal(_Part):
    """Tower's ServiceAccount, the same in every cluster."""

    namespace: Label = Field("tower", description="Its namespace; always protected.")
    name: Label = Field("portal", description="Its name.")


class ClusterEntry(_Part):
    """One registered cluster."""

    name: Label = Field(description="What cicd.yaml calls it.")
    kubeconfig: FilePath = Field(description="Kubeconfig with the portal's credential, and no other's.")
    tier: Literal["ground", "flight"] = Field(description="`flight` is production. The cluster's own label must say the same.")


class CatalogSource(_Part):
    """Who owns what."""

    file: FilePath = Field(description="`catalog-info.yaml` in Backstage's format; read again whenever it changes.")


class GitHost(_Part):
    """A git host whose repositories may say where apps run."""

    username: Words | None = Field(None, description="User for its token; many hosts take any.")
    token_file: FilePath | None = Field(None, description="File with a token that may read; sent to this host only.")
    ca_file: FilePath | None = Field(None, description="Certificates to trust instead of the system's.")


class DeploymentsSource(_Part):
    """Where cicd.yaml is read: an app's catalog annotation `tower.hangar/cicd` names a repository on one of these hosts."""

    hosts: dict[Netloc, GitHost] = Field({}, description="Git hosts by name; a repository anywhere else is refused.")
    local: dict[AppRef, FilePath] = Field({}, description="Profile `try` only: an app's local repository.")


class LocalIdentitySource(_Part):
    """Tower's own word on who somebody is. Not for production."""

    key_file: FilePath = Field(description="Ed25519 key, mode 0600; whoever reads it is anybody.")


class IdentitySource(_Part):
    """Who signs people in."""

    local: LocalIdentitySource = Field(description="Profile `try` only.")


class Webhook(_Part):
    """Who hears that somebody asks, waits, breaks the glass, or is stuck."""

    url: WebhookUrl = Field(description="Receives JSON by POST.")
    secret_file: FilePath | None = Field(None, description="Secret that signs notices (`X-Tower-Signature`).")


class NotifyTarget(_Part):
    """Where notices go; without this, to Tower's log."""

    webhook: Webhook | None = Field(None, description="One receiver.")


class RecordLimits(_Part):
    """What bounds a live record. At a limit the session ends; nothing is ever left out of a record."""

    record_bytes: int = Field(1 << 30, ge=1 << 20, le=1 << 40, description="Bytes of one session's record.")
    reserve_bytes: int = Field(256 << 20, ge=1 << 20, le=1 << 40, description="Bytes that must stay free on the spool's disk.")
    commit_seconds: float = Field(5.0, ge=0.5, le=30.0, description="Seconds that one write to disk may take.")


class Site(_Part):
    """The whole file. Paths are relative to its folder."""

    profile: Literal["try", "small", "full"] = Field(
        description="`try`: a trial on one machine, local identity. `small` and `full` need an identity provider.",
    )
    listen: Listen = Field(Listen(host="127.0.0.1", port=8443), description="Where Tower listens.")
    state_dir: FilePath = Field(description="Folder for the store, the spool, the vault and copies of git; a local disk.")
    portal: Portal = Field(Portal(namespace="tower", name="portal"), description="Tower's identity in the clusters.")
    clusters: list[ClusterEntry] = Field(min_length=1, max_length=100, description="Every cluster Tower may open a session in.")
    catalog: CatalogSource = Field(description="Where ownership is read.")
    deployments: DeploymentsSource = Field(DeploymentsSource(hosts={}, local={}), description="Where cicd.yaml is read.")
    identity: IdentitySource = Field(description="Who signs people in.")
    admins: GroupRef = Field(description="Group that may break the glass and reviews; two people or more.")
    auditors: GroupRef = Field(description="Group that may read, replay and verify, and nothing else.")
    recipients: Annotated[list[Recipient], Distinct] = Field(
        min_length=2,
        max_length=10,
        description="age recipients who can read what was typed: reviewers, and an offline key.",
    )
    debug_images: Annotated[list[Image], Distinct] = Field(
        min_length=1, max_length=2, description="The debug image by digest, and during an update the one before it."
    )
    on_call: Words = Field(description="Whom to call, shown with every wait.")
    notify: NotifyTarget = Field(NotifyTarget(webhook=None), description="Who is told.")
    limits: RecordLimits = Field(
        RecordLimits(record_bytes=1 << 30, reserve_bytes=256 << 20, commit_seconds=5.0), description="Bounds of a live record."
    )
    protected_namespaces: list[Label] = Field([], max_length=500, description="No session opens here.")

    @model_validator(mode="after")
    def _together(self) -> Site:
        """What one field alone cannot say."""
        names = [cluster.name for cluster in self.clusters]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"clusters: {twins[0]} is there twice; give each its own name")
        if self.admins == self.auditors:
            raise ValueError("auditors: must be another group than admins")
        if self.profile != "try":
            raise ValueError(f"profile: {self.profile} needs an identity provider, and identity.local is for a trial; write try")
        if not _is_loopback(self.listen.host):
            raise ValueError("listen.host: in profile try Tower listens on this machine only; write 127.0.0.1")
        return self

    @property
    def protected(self) -> frozenset[str]:
        """Every namespace that no session opens in: the site's, the cluster's own, the portal's."""
        return ALWAYS_PROTECTED | {self.portal.namespace, *self.protected_namespaces}

    @property
    def portal_user(self) -> str:
        """The portal as Kubernetes names it."""
        return f"system:serviceaccount:{self.portal.namespace}:{self.portal.name}"

    def warnings(self) -> tuple[str, ...]:
        """What people must be told at every start, in whole sentences."""
        said = ["Profile try: Tower itself asserts who people are. Whoever reads its key is anybody. Not for production."]
        if self.notify.webhook is None:
            said.append("No notify.webhook: nobody is told that somebody waits; notices are in this log only.")
        return tuple(said)

    def tier_of(self, cluster: str) -> Tier | None:
        """The registry's word on a cluster; None for one that is not registered."""
        return next((Tier(entry.tier) for entry in self.clusters if entry.name == cluster), None)

    def settings(self) -> Settings:
        """What the orchestration needs of it."""
        return Settings(
            state_dir=self.state_dir,
            portal=self.portal_user,
            admins=EntityRef(self.admins),
            auditors=EntityRef(self.auditors),
            images=tuple(self.debug_images),
            recipients=tuple(self.recipients),
            on_call=self.on_call,
            protected_namespaces=self.protected,
            limits=Limits(
                record_bytes=self.limits.record_bytes,
                reserve_bytes=self.limits.reserve_bytes,
                commit_seconds=self.limits.commit_seconds,
            ),
        )


def read_site(path: Path) -> Site:
    """The site's decisions, or `ConfigError`. Nothing outside the file is looked at: `breakglass doctor` does that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ConfigError(f"{path} is not a file; name your site.yaml")
        with os.fdopen(descriptor, "rb") as file:
            raw = file.read(LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name your site.yaml, or look at its rights") from error
    return parse_site(raw, path)


def parse_site(raw: bytes, path: Path) -> Site:
    """The same from bytes that stand at `path`: messages name it, and relative paths begin in its folder."""
    found = document(raw, limit=LIMIT)
    if isinstance(found, Malformed):
        raise ConfigError(f"{path}: {found.sentence}")
    try:
        return Site.model_validate(found.value, context={"folder": path.absolute().parent})
    except ValidationError as error:
        raise ConfigError(f"{path}: {problem(error.errors())}") from None
