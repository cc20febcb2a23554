"""A site for Tower on a lab cluster: policies and rights installed, keys made, `site.yaml` written, the process started.

Lab, outside the layers: what `breakglass init` and Argo CD do on a real site. It must never be taken for an installation.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyrage  # type: ignore[import-untyped]
import yaml

from breakglass.adapters.identity_local import create_key, mint, read_key
from breakglass.core.model import EntityRef, Tier, entity_ref
from breakglass.render import Inputs, render
from lab import install
from lab.api import Cluster

PORTAL = "system:serviceaccount:tower:portal"
APP = "component:default/checkout"
ON_CALL = "platform on-call, +1 555 0100"


@dataclass(slots=True)
class Site:
    """Everything a Tower on one lab cluster needs, in one folder."""

    folder: Path
    cluster: Cluster
    port: int
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """`site.yaml`."""
        return self.folder / "site.yaml"

    @property
    def url(self) -> str:
        """Where Tower listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What the Tower process said."""
        return self.folder / "tower.log"

    @property
    def state(self) -> Path:
        """Store, spool and vault."""
        return self.folder / "state"

    def reviewer_key(self) -> str:
        """The age identity that opens what was typed."""
        return (self.folder / "reviewer.key").read_text().strip()

    def token(self, person: str, minutes: int = 60) -> str:
        """A token of the local identity, as `breakglass dev token` prints it."""
        ref = entity_ref(person, kind="user")
        return mint(read_key(self.folder / "identity.key"), EntityRef(str(ref)), minutes, datetime.now(tz=UTC))

    def renew_portal(self) -> None:
        """Give the portal a fresh bound token, an hour long."""
        fresh = self.cluster.kubeconfig_with_token(self.cluster.token("tower", "portal"), "portal")
        (self.folder / "portal.kubeconfig").write_bytes(fresh.read_bytes())
        (self.folder / "portal.kubeconfig").chmod(0o600)

    def start(self, program: tuple[str, ...] = ("-m", "breakglass.cli"), seconds: float = 30) -> None:
        """Start the Tower process and return when it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, "serve", "--site", str(self.file), "--dev"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        give_up = time.monotonic() + seconds
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"Tower did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether the process answers at all."""
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def stop(self, seconds: float = 60) -> None:
        """SIGTERM, and wait until it has sealed and gone."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(seconds)

    def ask(self, person: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """One API call as this person: status and answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data=data, method=method)
        request.add_header("Authorization", f"Bearer {self.token(person)}")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=200) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


def make(cluster: Cluster, folder: Path, **changes: Any) -> Site:
    """Install policies and rights on the cluster; write keys, catalog, cicd.yaml and `site.yaml` into a new folder."""
    folder.mkdir(parents=True, mode=0o700)
    rendered = render(Inputs(tier=Tier(cluster.tier), portal=PORTAL, images=(cluster.debug_image,)))
    with cluster.client() as admin:
        install.install(admin, rendered)
    site = Site(folder=folder, cluster=cluster, port=_free_port())
    site.renew_portal()
    create_key(folder / "identity.key")
    (folder / "catalog-info.yaml").write_bytes(cluster.catalog_file.read_bytes())
    cluster.delivery_repository(folder / "checkout.git")
    site.file.write_text(yaml.safe_dump(_decisions(site) | changes, sort_keys=False))
    return site


def _decisions(site: Site) -> dict[str, Any]:
    return {
        "profile": "try",
        "listen": {"host": "127.0.0.1", "port": site.port},
        "state_dir": "state",
        "clusters": [{"name": site.cluster.name, "kubeconfig": "portal.kubeconfig", "tier": site.cluster.tier}],
        "catalog": {"file": "catalog-info.yaml"},
        "deployments": {"local": {APP: "checkout.git"}},
        "identity": {"local": {"key_file": "identity.key"}},
        "admins": "group:default/tower-admins",
        "auditors": "group:default/auditors",
        "recipients": [_recipient(site.folder / f"{name}.key") for name in ("reviewer", "recovery")],
        "debug_images": [site.cluster.debug_image],
        "on_call": ON_CALL,
        "limits": {"reserve_bytes": 64 << 20},
    }


def _recipient(key_file: Path) -> str:
    identity = pyrage.x25519.Identity.generate()
    key_file.write_text(f"{identity}\n")
    key_file.chmod(0o600)
    return str(identity.to_public())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
