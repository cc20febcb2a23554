"""`verify` and `replay` as commands: what they read, print and never claim. The checks are in `core/test_verify.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import records
from tests.cli.pty_person import environment, here, without_terminal
from tests.simulators.tower import ListeningTower


@pytest.fixture
def record(tmp_path: Path) -> Path:
    directory = tmp_path / "record"
    directory.mkdir()
    records.write(directory)
    return directory


def _changed(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(record: Path) -> None:
        data = (record / name).read_bytes()
        assert data.count(old) >= 1
        (record / name).write_bytes(data.replace(old, new, 1))

    return change


def test_verify_imports_neither_a_server_nor_a_client() -> None:
    code = "import sys, breakglass.cli.verify; print('\\n'.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    foreign = {"httpx2", "fastapi", "sqlalchemy", "lightkube", "pyrage"}
    assert loaded.isdisjoint({*foreign, "breakglass.ports", "breakglass.service", "breakglass.web"})


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_verdict_never_claims_an_origin(
    record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(["verify", str(record)], {}, monkeypatch) == 0
    out = capfd.readouterr().out
    assert "1. The manifest is canonical and says all it must. holds: session abcdefgh23, 5 objects\n" in out
    assert "verdict: consistent with itself; origin NOT proved\n" in out
    assert "whom you must trust:\n" in out
    assert "  - Origin: that Tower made these files, and when." in out


def test_a_wrong_record_is_exit_code_1_and_json_says_which_step(
    record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _changed("seg-000001.cast", b"gr\xc3\xbc\xc3\x9fe", b"gruesse")(record)
    assert here(["verify", str(record), "--json"], {}, monkeypatch) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["consistent"], found["origin_proved"]) == (False, False)
    wrong = [(step["n"], step["code"]) for step in found["steps"] if step["result"] == "failed"]
    assert wrong[0] == (3, "out_digest")


def test_a_directory_without_a_record_is_usage_and_says_what_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(["verify", str(tmp_path)], {}, monkeypatch) == 2
    assert "manifest.json is expected in it" in capfd.readouterr().err


async def _sealed_on(tower: ListeningTower, record: Path) -> str:
    """A session on the server whose record is the one in the directory."""
    tower.service.objects = {path.name: path.read_bytes() for path in record.iterdir()}
    tower.service.rows[records.SID] = records.session()
    return records.SID


async def test_a_session_is_verified_from_the_servers_own_objects(tower: ListeningTower, record: Path, tmp_path: Path) -> None:
    sid = await _sealed_on(tower, record)
    code, out, _ = await without_terminal(["verify", sid, "--json"], environment(tower.url, "ana", tmp_path))
    assert code == 0
    assert json.loads(out)["consistent"] is True


async def test_a_person_who_may_not_replay_gets_the_refusal(tower: ListeningTower, record: Path, tmp_path: Path) -> None:
    sid = await _sealed_on(tower, record)
    code, _, err = await without_terminal(["verify", sid], environment(tower.url, "oz", tmp_path))
    assert code == 3
    assert b"(not_entitled)" in err


def test_a_link_in_the_directory_is_no_part_of_the_record(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (record / "seg-000002.cast").rename(tmp_path / "elsewhere")
    (record / "seg-000002.cast").symlink_to(tmp_path / "elsewhere")
    assert here(["verify", str(record)], {}, monkeypatch) == 1
    assert "in the manifest and not here: seg-000002.cast" in capfd.readouterr().out


# --- replay -----------------------------------------------------------------------------------------------------------


def test_a_replay_shows_the_text_and_lets_no_sequence_reach_the_clipboard(
    record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(["replay", str(record), "--speed", "100"], {}, monkeypatch) == 0
    out, err = capfd.readouterr()
    assert "grüße" in out
    assert "\x1b[31mred" in out
    assert "\x1b]52" not in out
    assert "ZXZpbA" not in out
    assert "tower: shell 1 on pod checkout-1" in out
    assert "tower: played, not verified" in err


def test_a_replay_as_text_has_no_escape_at_all(
    record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(["replay", str(record), "--text"], {}, monkeypatch) == 0
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert "red\n" in out


def test_a_replay_stops_at_the_fault_and_says_so(
    record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _changed("seg-000002.cast", b"exit", b"evil")(record)
    assert here(["replay", str(record), "--text"], {}, monkeypatch) == 1
    out, err = capfd.readouterr()
    assert "grüße" in out
    assert "evil" not in out
    assert "tower: the record is wrong from here on: segment 2" in err


async def test_a_replay_from_the_server_asks_for_no_input(tower: ListeningTower, record: Path, tmp_path: Path) -> None:
    sid = await _sealed_on(tower, record)
    code, out, _ = await without_terminal(["replay", sid, "--text"], environment(tower.url, "ana", tmp_path))
    assert code == 0
    assert "grüße".encode() in out
