"""The small commands: answers on standard output, everything else on standard error, nobody's words raw."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from breakglass.core.model import State
from tests.cli.conftest import Sits
from tests.cli.pty_person import environment, here, without_terminal
from tests.simulators.service import ASK
from tests.simulators.tower import ListeningTower

As = Callable[[str], httpx2.AsyncClient]


@pytest.fixture
async def asked(tower: ListeningTower, as_: As) -> dict[str, str]:
    async with as_("ana") as ana:
        session: dict[str, str] = (await ana.post("/sessions", json=ASK)).json()
        return session


async def test_can_shows_every_environment_and_why_not(tower: ListeningTower, tmp_path: Path) -> None:
    code, out, _ = await without_terminal(["can", "checkout"], environment(tower.url, "oz", tmp_path))
    assert code == 0
    assert b"prod: Flight (production), flight-1/checkout" in out
    assert b"ACTION   YOU  WHY NOT" in out
    assert b"request  no   Only owners of the app may ask for a session. (not_entitled)" in out


async def test_can_as_json_is_the_servers_own_document(tower: ListeningTower, tmp_path: Path) -> None:
    code, out, _ = await without_terminal(["can", "checkout", "--json"], environment(tower.url, "ana", tmp_path))
    found = json.loads(out)
    assert code == 0
    assert found["environments"][0]["capabilities"][0]["allowed"] is True


async def test_an_unknown_app_is_a_refusal_and_not_a_stack_trace(tower: ListeningTower, tmp_path: Path) -> None:
    for app in ("nothing", "a/b/c/d", "../../me", "%00", "\u202eapp", ""):
        code, out, err = await without_terminal(["can", app], environment(tower.url, "ana", tmp_path))
        assert (code, out) == (3, b""), app
        assert b"Traceback" not in err
        assert b"tower: what you can do:" in err


async def test_sessions_are_listed_newest_first_and_their_words_are_harmless(
    tower: ListeningTower, as_: As, tmp_path: Path
) -> None:
    from dataclasses import replace

    async with as_("ana") as ana:
        await ana.post("/sessions", json=ASK)
    sid, row = next(iter(tower.service.rows.items()))
    tower.service.rows[sid] = replace(row, request=replace(row.request, reason="\x1b]0;owned\x07\u202etxet"))
    code, out, _ = await without_terminal(["sessions"], environment(tower.url, "ben", tmp_path))
    assert code == 0
    assert sid.encode() in out
    assert b"\\x1b]0;owned\\x07\\u202etxet" in out
    assert b"\x1b" not in out


async def test_approve_shows_what_it_is_about_and_asks(tower: ListeningTower, sits: Sits, asked: dict[str, str]) -> None:
    async with sits("ben", "approve", asked["sid"][:5]) as person:
        await person.sees("user:default/ana asks for component:default/checkout in prod, Flight \\(production\\)\r\n")
        await person.sees("because: checkout answers 500 since the deploy")
        await person.sees("no process access: the shell is beside the app")
        await person.sees(f"request {asked['request_digest']}")
        await person.sees(r"tower: approve [a-z2-7]{10}\? \[y/N\]")
        person.types(b"y\r")
        assert await person.leaves() == 0
    assert tower.service.rows[next(iter(tower.service.rows))].state is State.APPROVED


async def test_no_answer_is_no_approval(tower: ListeningTower, sits: Sits, asked: dict[str, str]) -> None:
    async with sits("ben", "approve", asked["sid"]) as person:
        await person.sees(r"\[y/N\]")
        person.types(b"\r")
        assert await person.leaves() == 4
    assert tower.service.rows[next(iter(tower.service.rows))].state is State.REQUESTED


async def test_a_script_must_say_what_it_approves(tower: ListeningTower, asked: dict[str, str], tmp_path: Path) -> None:
    env = environment(tower.url, "ben", tmp_path)
    code, _, err = await without_terminal(["approve", asked["sid"]], env)
    assert code == 2
    assert b"--yes or --digest says it" in err
    code, _, err = await without_terminal(["approve", asked["sid"], "--digest", "sha256:" + "0" * 64], env)
    assert code == 3
    assert b"(digest_mismatch)" in err
    code, out, _ = await without_terminal(["approve", asked["sid"], "--digest", asked["request_digest"], "--json"], env)
    assert code == 0
    assert json.loads(out)["approval"]["approver"] == "user:default/ben"


async def test_ones_own_approval_is_refused_in_words(tower: ListeningTower, asked: dict[str, str], tmp_path: Path) -> None:
    code, _, err = await without_terminal(["approve", asked["sid"], "--yes"], environment(tower.url, "ana", tmp_path))
    assert code == 3
    assert b"tower: you asked for this; somebody else must approve it (self_approval)" in err


@pytest.mark.parametrize(("verb", "who", "reason"), [("deny", "ben", "denied"), ("withdraw", "ana", "withdrawn")])
async def test_deny_and_withdraw_close_a_request(
    tower: ListeningTower, asked: dict[str, str], tmp_path: Path, verb: str, who: str, reason: str
) -> None:
    code, out, _ = await without_terminal([verb, asked["sid"], "--json"], environment(tower.url, who, tmp_path))
    assert code == 0
    assert json.loads(out)["ended"]["reason"] == reason


async def test_end_waits_for_the_seal_when_asked_to(tower: ListeningTower, asked: dict[str, str], tmp_path: Path) -> None:
    env = environment(tower.url, "ana", tmp_path)
    code, out, _ = await without_terminal(["end", asked["sid"], "--wait", "--json"], env)
    assert code == 0
    assert json.loads(out)["state"] == "sealed"
    code, _, err = await without_terminal(["end", asked["sid"]], env)
    assert code == 3
    assert b"is over (wrong_state)" in err


# --- the token --------------------------------------------------------------------------------------------------------


async def test_a_token_file_others_can_read_is_refused(tower: ListeningTower, tmp_path: Path) -> None:
    env = environment(tower.url, "ana", tmp_path)
    del env["BREAKGLASS_TOKEN"]
    path = tmp_path / ".config" / "breakglass" / "token"
    path.parent.mkdir(parents=True)
    path.write_text("token-ana\n")
    path.chmod(0o644)
    code, _, err = await without_terminal(["sessions"], env)
    assert code == 2
    assert b"others can read your token: chmod 600" in err
    path.chmod(0o600)
    code, _, _ = await without_terminal(["sessions"], env)
    assert code == 0


async def test_no_token_says_where_it_is_looked_for(tower: ListeningTower, tmp_path: Path) -> None:
    env = environment(tower.url, "ana", tmp_path)
    del env["BREAKGLASS_TOKEN"]
    code, _, err = await without_terminal(["sessions"], env)
    assert code == 2
    assert b"no token: set BREAKGLASS_TOKEN or write one to" in err


@pytest.mark.parametrize(
    "url", ["http://tower.example:8443", "http://10.0.0.1", "ftp://127.0.0.1", "https://user:pw@tower.example", "tower"]
)
def test_a_token_never_goes_to_an_address_it_should_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], url: str
) -> None:
    assert here(["sessions"], environment(url, "ana", tmp_path), monkeypatch) == 2
    assert "token-ana" not in capfd.readouterr().err


async def test_a_wrong_token_is_not_signed_in_and_not_printed(tower: ListeningTower, tmp_path: Path) -> None:
    env = {**environment(tower.url, "ana", tmp_path), "BREAKGLASS_TOKEN": "secret-of-mine"}
    code, out, err = await without_terminal(["sessions", "--json"], env)
    assert code == 3
    assert json.loads(out)["error"]["code"] == "not_signed_in"
    assert b"secret-of-mine" not in out + err
