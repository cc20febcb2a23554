"""The process itself, with a site whose cluster does not answer: it starts, says so, lets people in, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from breakglass.cli.main import run
from tests.cli.pty_person import CLI, environment, without_terminal

pytestmark = pytest.mark.slow

CATALOG = """\
apiVersion: backstage.io/v1alpha1
kind: Component
metadata: {name: checkout}
spec: {type: service, lifecycle: production, owner: "group:default/checkout-team"}
---
apiVersion: backstage.io/v1alpha1
kind: Group
metadata: {name: checkout-team}
spec: {type: team, children: [], members: [ana, ben]}
---
apiVersion: backstage.io/v1alpha1
kind: Group
metadata: {name: tower-admins}
spec: {type: team, children: [], members: [carla]}
---
apiVersion: backstage.io/v1alpha1
kind: User
metadata: {name: ana}
spec: {memberOf: [checkout-team]}
---
apiVersion: backstage.io/v1alpha1
kind: User
metadata: {name: ben}
spec: {memberOf: [checkout-team]}
---
apiVersion: backstage.io/v1alpha1
kind: User
metadata: {name: carla}
spec: {memberOf: [tower-admins]}
"""
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: demo
contexts: [{name: demo, context: {cluster: demo, user: portal}}]
clusters: [{name: demo, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: portal, user: {token: not-a-token}}]
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def site(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    """A trial's folder, its keys made by the CLI itself."""
    assert run(["dev", "keys", str(tmp_path / "keys")]) == 0
    recipients = capfd.readouterr().out
    (tmp_path / "catalog-info.yaml").write_text(CATALOG)
    (tmp_path / "portal.kubeconfig").write_text(KUBECONFIG)
    (tmp_path / "site.yaml").write_text(
        f"""\
profile: try
listen: {{host: 127.0.0.1, port: {_free_port()}}}
state_dir: state
clusters: [{{name: demo, kubeconfig: portal.kubeconfig, tier: flight}}]
catalog: {{file: catalog-info.yaml}}
identity: {{local: {{key_file: identity.key}}}}
admins: group:default/tower-admins
auditors: group:default/auditors
{recipients}
debug_images: ["registry.example/tower/debug@sha256:{"0" * 64}"]
on_call: "+1 555 0100"
"""
    )
    return tmp_path / "site.yaml"


@contextlib.asynccontextmanager
async def serving(site: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process and its URL, once it listens."""
    process = await asyncio.create_subprocess_exec(
        *CLI, "serve", "--site", str(site), "--dev", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while b"listening on " not in (line := await process.stderr.readline()):
                assert line, "it ended before it listened"
        yield process, line.decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _token(site: Path, person: str) -> str:
    code, out, err = await without_terminal(["dev", "token", person, "--site", str(site)], environment("", "ana", site.parent))
    assert code == 0, err
    assert b"WARNING Tower's local identity, not for production" in err
    return out.decode().strip()


async def test_a_trial_starts_lets_people_in_and_stops_in_order(site: Path) -> None:
    async with serving(site) as (process, url):
        env = {**environment(url, "ana", site.parent), "BREAKGLASS_TOKEN": await _token(site, "ana")}
        code, out, _ = await without_terminal(["sessions", "--json"], env)
        assert code == 0
        assert json.loads(out) == {"sessions": []}
        code, _, err = await without_terminal(["shell", "checkout/production", "-r", "checkout is slow"], env)
        assert code == 3
        assert b"tower: what you can do:" in err
        async with httpx2.AsyncClient(base_url=url) as anybody:
            ready = await anybody.get("/readyz")
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0


async def test_a_second_tower_on_the_same_state_does_not_start(site: Path) -> None:
    async with serving(site):
        code, _, err = await without_terminal(["serve", "--site", str(site), "--dev"], environment("", "ana", site.parent))
    assert code == 1
    assert b"another Tower runs on" in err


async def test_a_trial_must_be_meant(site: Path) -> None:
    code, _, err = await without_terminal(["serve", "--site", str(site)], environment("", "ana", site.parent))
    assert code == 2
    assert b"start it with --dev if that is meant" in err


async def test_a_port_that_is_taken_is_said_and_nothing_is_started(site: Path) -> None:
    port = int(site.read_text().split("port: ")[1].split("}")[0])
    with socket.create_server(("127.0.0.1", port)):
        code, _, err = await without_terminal(["serve", "--site", str(site), "--dev"], environment("", "ana", site.parent))
    assert code == 2
    assert b"cannot listen on 127.0.0.1" in err


def test_a_misspelt_site_is_a_sentence_and_exit_code_2(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    site.write_text(site.read_text() + "on_cal: me\n")
    assert run(["serve", "--site", str(site), "--dev"]) == 2
    assert "on_cal" in capfd.readouterr().err


# --- dev --------------------------------------------------------------------------------------------------------------


def test_keys_are_made_once_and_for_their_owner_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["dev", "keys", str(tmp_path)]) == 0
    assert "AGE-SECRET-KEY" not in capfd.readouterr().out
    for name in ("reviewers.key", "recovery.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert "AGE-SECRET-KEY-1" in (tmp_path / name).read_text()
    assert run(["dev", "keys", str(tmp_path)]) == 2
    assert "a key is never replaced" in capfd.readouterr().err


@pytest.mark.parametrize("person", ["component:default/checkout", "a b", "", "\u202e"])
def test_a_token_is_for_a_person(site: Path, capfd: pytest.CaptureFixture[str], person: str) -> None:
    assert run(["dev", "token", person, "--site", str(site)]) == 2
    assert "is no person of a catalog" in capfd.readouterr().err


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_the_doctor_names_every_red_line_and_its_fix(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--site", str(site), "--json"]) == 1
    found = {check["name"]: check for check in json.loads(capfd.readouterr().out)["checks"]}
    assert [name for name, check in found.items() if check["ok"] is False] == ["admins", "cluster demo"]
    assert all(check["fix"] for check in found.values() if check["ok"] is False)
    assert found["admins"]["sentence"] == "1 in group:default/tower-admins"
    assert "not locked" in found["vault"]["sentence"]
    assert found["store"]["ok"] is None


def test_the_doctor_says_what_is_wrong_with_the_site_itself(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    site.write_text("profile: [")
    assert run(["doctor", "--site", str(site)]) == 1
    out = capfd.readouterr().out
    assert out.startswith("RED  config")
    assert "fix: Mend that place in site.yaml" in out
