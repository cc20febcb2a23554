"""A forger changes one thing in a record; `verify` says which step it breaks. An honest record is consistent, not authentic."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from breakglass.cli.examine import Report, examine
from breakglass.core.model import canonical_json
from breakglass.core.record import End
from tests.cli import records
from tests.cli.pty_person import environment, here, without_terminal
from tests.simulators.tower import ListeningTower


@pytest.fixture
def record(tmp_path: Path) -> Path:
    directory = tmp_path / "record"
    directory.mkdir()
    records.write(directory)
    return directory


def _wrong(report: Report) -> list[str]:
    return [step.what for step in report.steps if step.ok is False]


def test_an_honest_record_holds_in_every_step(record: Path) -> None:
    report = examine(record)
    assert [step.ok for step in report.steps] == [True] * 7, report.steps
    assert report.sid == records.SID
    assert "user:default/ana asked, user:default/ben approved this very request" in report.steps[5].detail


def test_a_record_cut_by_a_crash_is_consistent_and_says_so(tmp_path: Path) -> None:
    records.write(tmp_path, end=End(reason="tower_died", cut=True))
    report = examine(tmp_path)
    assert report.ok
    assert report.steps[3].detail == "ended: tower_died; its tail was cut by a crash and is declared lost"


def _flip(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(record: Path) -> None:
        data = (record / name).read_bytes()
        assert data.count(old) >= 1
        (record / name).write_bytes(data.replace(old, new, 1))

    return change


def _delete(*names: str) -> Callable[[Path], None]:
    return lambda record: [(record / name).unlink() for name in names] and None  # type: ignore[func-returns-value]


def _swap(one: str, two: str) -> Callable[[Path], None]:
    def change(record: Path) -> None:
        shutil.move(record / one, record / "x")
        shutil.move(record / two, record / one)
        shutil.move(record / "x", record / two)

    return change


@pytest.mark.parametrize(
    ("forge", "steps"),
    [
        (_flip("seg-000001.cast", b"gr\xc3\xbc\xc3\x9fe", b"gruesse"), {"the output lane's chain"}),
        (_flip("seg-000002.cast", b"[0.400000", b"[0.400001"), {"the output lane's chain"}),
        (_flip("seg-000001.in", b"\n", b"\nAAAA\n"), {"the output lane's chain"}),
        (_flip("seg-000001.cast", b"tower:seal", b"tower:sea1"), {"the output lane's chain"}),
        (_delete("seg-000002.cast", "seg-000002.in"), {"the record's end", "the manifest"}),
        (_delete("seg-000001.in"), {"the input lane's digests"}),
        (_swap("seg-000001.cast", "seg-000002.cast"), {"the output lane's chain"}),
        (_delete("manifest.json"), {"the manifest"}),
        (_delete("case-1.json"), {"the case files", "the manifest"}),
        (_flip("case-1.json", b'"minutes":30', b'"minutes":60'), {"the case files", "the manifest"}),
        (_flip("case-1.json", b'"reason":"checkout', b'"reason":"Checkout'), {"the case files", "the manifest"}),
        (_flip("manifest.json", b'"cut":false', b'"cut":true'), {"the manifest"}),
        (_flip("manifest.json", b'"flags":[]', b'"flags":["digest_mismatch"]'), {"the manifest"}),
        (_flip("manifest.json", b"{", b"{ "), {"the manifest"}),
        (lambda record: (record / "seg-000004.cast").write_bytes(b""), {"the files"}),
        (lambda record: (record / "notes.txt").write_bytes(b""), {"the files", "the manifest"}),
    ],
)
def test_a_forged_record_is_wrong_where_it_was_forged(record: Path, forge: Callable[[Path], None], steps: set[str]) -> None:
    forge(record)
    report = examine(record)
    assert not report.ok
    assert steps <= set(_wrong(report)), report.steps


def test_a_requester_who_approved_under_another_name_is_found_out(tmp_path: Path) -> None:
    records.write(tmp_path, of=records.self_approved())
    report = examine(tmp_path)
    assert _wrong(report) == ["the case files"]
    assert report.steps[5].detail == "case-1.json: the requester approved their own request"


def test_a_flight_session_that_nobody_approved_is_wrong(record: Path) -> None:
    case = json.loads((record / "case-1.json").read_bytes())
    case["approval"] = {"kind": "ground"}
    (record / "case-1.json").write_bytes(canonical_json(case))
    report = examine(record)
    assert report.steps[5].detail == "case-1.json: nobody approved it"


def test_another_sessions_case_file_does_not_fit(record: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    other = tmp_path / "other"
    other.mkdir()
    of = records.session()
    records.write(other, of=replace(of, request=replace(of.request, reason="another reason")))
    shutil.copy(other / "case-1.json", record / "case-1.json")
    assert "the case files" in _wrong(examine(record))


def test_verify_imports_neither_a_server_nor_a_client() -> None:
    code = "import sys, breakglass.cli.verify; print('\\n'.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    assert loaded.isdisjoint(
        {"httpx2", "fastapi", "sqlalchemy", "lightkube", "pyrage", "breakglass.ports", "breakglass.service", "breakglass.web"}
    )


def test_inputs_kept_from_an_owner_are_no_fault_when_the_manifest_names_what_the_seals_name(record: Path) -> None:
    _delete("seg-000001.in", "seg-000002.in")(record)
    report = examine(record, inputs=False)
    assert report.ok
    assert report.steps[2].ok is None
    _flip("manifest.json", json.loads((record / "manifest.json").read_bytes())["objects"][2]["sha256"].encode(), b"0" * 64)(
        record
    )
    assert _wrong(examine(record, inputs=False)) == ["the manifest"]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_verdict_never_claims_an_origin(
    record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(["verify", str(record)], {}, monkeypatch) == 0
    out = capfd.readouterr().out
    assert "1. the files: holds: 6 files, 2 segments numbered without a gap\n" in out
    assert "verdict: consistent with itself; origin NOT proved\n" in out
    assert "whom you must trust:\n" in out
    assert "  - origin: there is no signature in this version\n" in out


def test_a_wrong_record_is_exit_code_1_and_json_says_which_step(
    record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _flip("seg-000001.cast", b"gr\xc3\xbc\xc3\x9fe", b"gruesse")(record)
    assert here(["verify", str(record), "--json"], {}, monkeypatch) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["ok"], found["origin_proved"]) == (False, False)
    assert [step["n"] for step in found["steps"] if step["ok"] is False] == [2, 3, 4, 5, 6]


def test_a_directory_without_a_record_is_usage_and_says_what_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(["verify", str(tmp_path)], {}, monkeypatch) == 2
    assert "seg-000001.cast is expected in it" in capfd.readouterr().err


async def _sealed_on(tower: ListeningTower, record: Path) -> str:
    """A session on the server whose record is the one in the directory."""
    tower.service.objects = {path.name: path.read_bytes() for path in record.iterdir()}
    tower.service.rows[records.SID] = records.session()
    return records.SID


async def test_a_session_is_verified_from_the_servers_own_objects(tower: ListeningTower, record: Path, tmp_path: Path) -> None:
    sid = await _sealed_on(tower, record)
    code, out, _ = await without_terminal(["verify", sid, "--json"], environment(tower.url, "ana", tmp_path))
    assert code == 0
    assert json.loads(out)["ok"] is True


async def test_a_person_who_may_not_replay_gets_the_refusal(tower: ListeningTower, record: Path, tmp_path: Path) -> None:
    sid = await _sealed_on(tower, record)
    code, _, err = await without_terminal(["verify", sid], environment(tower.url, "oz", tmp_path))
    assert code == 3
    assert b"(not_entitled)" in err


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
    _flip("seg-000002.cast", b"exit", b"evil")(record)
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
