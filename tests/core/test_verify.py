"""Against whoever can touch the files: what does not hold together is named; what was not looked at is not called proved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakglass.core import evidence
from breakglass.core import session as machine
from breakglass.core.model import EndReason, EntityRef, Flag, Session, Sid, canonical_json
from breakglass.core.record import End, Header, Kind, Typed, Writer, segment_name
from breakglass.core.record_read import Fault
from breakglass.core.targets import Target
from breakglass.core.verify import Failure, Result, Verified, verify

from . import builders as b

OUTPUT = (b"$ ls\r\n", "grüße\r\n".encode(), b"\xff\xfe\r\n", b"$ exit\r\n")
TARGET = Target(pod="checkout-1", pod_uid="uid-1", node="node-1", container="web", uid=1000, gid=2000)
Files = dict[str, bytes]


def words(output: bytes = b"".join(OUTPUT)) -> str:
    return json.dumps({"out_bytes": len(output), "out_sha256": hashlib.sha256(output).hexdigest(), "final": True})


def session(asked: Session = b.ASKED, approve: machine.Event = b.APPROVE, witness: str = words()) -> Session:
    closed = b.after(asked, approve, b.START, b.ACTIVE, b.END)
    shells = (replace(closed.shells[0], witness=witness, grant_uid="g-1", terminated_at=b.NOW),)
    return replace(closed, shells=shells)


def record(held: Session, *, cut: bool = False) -> tuple[Files, str, int]:
    """Three segments, an output line each and two keystrokes in the second; the chain's head; the bytes of output."""
    header = Header(sid=held.sid, request_digest=held.request.digest, cols=80, rows=24, started_at=b.NOW)
    writer = Writer(header, key=bytes(32), wrapped_key=b"wrapped")
    files: Files = {}
    seal = None
    for number in (1, 2, 3):
        out, inp = writer.begin()
        if number == 1:
            out += writer.marker("shell 1 on pod checkout-1", 1).out
        pieces = OUTPUT[number - 1 : number] if number < 3 else OUTPUT[2:]
        for piece in pieces:
            out += writer.output(piece, number * 1000).out
        if number == 2:
            inp += writer.input([Typed(at_us=2000, kind=Kind.TYPED, data=key) for key in (b"l", b"s")])
        line, seal = writer.seal(End(reason=EndReason.ENDED_BY_REQUESTER.value, cut=cut) if number == 3 else None)
        files |= {f"{segment_name(number)}.cast": out + line, f"{segment_name(number)}.in": inp}
    assert seal is not None
    return files, seal.chain.hex(), writer.output_bytes


def whole(held: Session | None = None, *, cut: bool = False) -> Files:
    """Everything the vault holds of one session."""
    held = held or session()
    files, chain, size = record(held, cut=cut)
    case = evidence.case_file(held, held.shells[0], TARGET, image="debug:1", evidence={}, now=b.NOW)
    files["case-1.json"] = canonical_json(case)
    said = {"segments": 3, "chain": chain, "output_bytes": size, "cut": cut}
    return files | {"manifest.json": canonical_json(evidence.manifest(held, objects=objects(held.sid, files), record=said))}


def objects(sid: str, files: Files) -> list[dict[str, Any]]:
    return [
        {"key": evidence.prefix(Sid(sid)) + name, "version": "1", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in sorted(files.items())
        if name != "manifest.json"
    ]


def again(files: Files, name: str, change: Callable[[dict[str, Any]], None]) -> Files:
    """A canonical file changed by hand; a case file with the manifest made to agree."""
    value = json.loads(files[name])
    change(value)
    files = {**files, name: canonical_json(value)}
    if name == "manifest.json":
        return files
    return again(files, "manifest.json", lambda manifest: manifest.update(objects=objects(manifest["sid"], files)))


def failed(found: Verified) -> dict[int, Failure | Fault | None]:
    return {step.number: step.code for step in found.steps if step.result is Result.FAILED}


def test_a_whole_record_holds_in_every_step() -> None:
    found = verify(whole())
    assert [step.result for step in found.steps] == [Result.HOLDS] * 11, found.steps
    assert found.consistent
    assert found.sid == "abcdefghij"
    assert len(found.proved) == 11


def test_origin_is_never_called_proved() -> None:
    found = verify(whole())
    assert any(sentence.startswith("Origin: that Tower made these files") for sentence in found.not_proved)
    assert any("nothing is signed or anchored" in sentence for sentence in found.trust)


def test_a_cut_record_says_so_and_may_end_for_another_reason_than_its_session() -> None:
    files = whole(cut=True)
    files = again(files, "manifest.json", lambda manifest: manifest["ended"].update(reason="idle"))
    found = verify(files)
    assert found.consistent
    assert found.steps[3].detail == "ended_by_requester, cut by a crash or a fault"


def test_without_the_input_lane_it_is_said_and_not_proved() -> None:
    files = {name: data for name, data in whole().items() if not name.endswith(".in")}
    found = verify(files)
    assert found.consistent
    assert found.steps[10].result is Result.NOT_LOOKED_AT
    assert found.steps[10].detail == "input lane not looked at (3 of 3 files are not here); its digests are in the seals"
    assert found.steps[10].sentence not in found.proved


def test_an_object_is_loaded_once_and_never_two_segments_at_a_time() -> None:
    loaded: list[str] = []
    alive: list[int] = [0, 0]

    class Counted(bytes):
        """Bytes that are counted while somebody holds them; every segment's two objects make one."""

        def __del__(self) -> None:
            alive[0] -= 1

    class Lazy(Mapping[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            loaded.append(name)
            if not name.startswith("seg-"):
                return files[name]
            alive[0] += 1
            alive[1] = max(alive)
            return Counted(files[name])

        def __iter__(self) -> Iterator[str]:
            return iter(files)

        def __len__(self) -> int:
            return len(files)

    files = whole()
    assert verify(Lazy()).consistent
    assert alive == [0, 2]
    assert sorted(loaded) == sorted(files)


def test_a_session_without_a_shell_has_an_empty_record_and_that_holds() -> None:
    held = b.after(b.ASKED, b.APPROVE, b.END)
    said = {"segments": 0, "chain": "", "output_bytes": 0, "cut": True}
    found = verify({"manifest.json": canonical_json(evidence.manifest(held, objects=[], record=said))})
    assert found.consistent
    assert found.steps[3].detail == "no shell was ever shown: there is nothing recorded"


@pytest.mark.parametrize("asked", [b.BREAK, b.APPROVE])
def test_both_ways_to_a_yes_on_flight_are_told_apart(asked: machine.Event) -> None:
    found = verify(whole(session(approve=asked)))
    said = {b.BREAK: "carla broke the glass", b.APPROVE: "ben approved"}[asked]
    assert said in found.steps[7].detail


Change = Callable[[Files], Files]


def drop(name: str) -> Change:
    return lambda files: {key: data for key, data in files.items() if key != name}


def flip(name: str, at: int = -40) -> Change:
    return lambda files: {**files, name: files[name][:at] + bytes([files[name][at] ^ 1]) + files[name][at + 1 :]}


def change(name: str, **fields: object) -> Change:
    return lambda files: again(files, name, lambda value: value.update(fields))


def inside(name: str, part: str, **fields: object) -> Change:
    return lambda files: again(files, name, lambda value: value[part].update(fields))


def shell(**fields: object) -> Change:
    return lambda files: again(files, "manifest.json", lambda value: value["shells"][0].update(fields))


def listed(at: int, **fields: object) -> Change:
    return lambda files: again(files, "manifest.json", lambda value: value["objects"][at].update(fields))


def other_session(files: Files) -> Files:
    """Segment 2 of another session in the place of ours."""
    other = session(machine.new(replace(b.REQUEST, sid=Sid("zzzzzzzzzz")), b.NOW), machine.Approve(at=b.NOW, approver=b.BEN,
                    request_digest=replace(b.REQUEST, sid=Sid("zzzzzzzzzz")).digest))  # fmt: skip
    theirs = whole(other)
    return {**files, "seg-000002.cast": theirs["seg-000002.cast"], "seg-000002.in": theirs["seg-000002.in"]}


def without_last(files: Files) -> Files:
    """The last segment taken away, and the manifest made to agree."""
    files = {name: data for name, data in files.items() if not name.startswith("seg-000003")}
    return again(files, "case-1.json", lambda _: None)


TAMPERED: list[tuple[Change, dict[int, Failure | Fault]]] = [
    (drop("manifest.json"), {1: Failure.MANIFEST_MISSING}),
    (lambda files: {**files, "manifest.json": files["manifest.json"] + b"\n"}, {1: Failure.MANIFEST_INVALID}),
    (change("manifest.json", format="tower.hangar/manifest/v2"), {1: Failure.MANIFEST_INVALID}),
    (change("manifest.json", sid="../../etc1"), {1: Failure.MANIFEST_INVALID}),
    (change("manifest.json", shells=[]), {9: Failure.CASE_DIFFERS}),
    (shell(number=2), {1: Failure.MANIFEST_INVALID}),
    (shell(number=True), {1: Failure.MANIFEST_INVALID}),
    (lambda files: {**files, "seg-000004.in": b""}, {2: Failure.OBJECT_EXTRA}),
    (lambda files: {**files, "notes.txt": b""}, {2: Failure.OBJECT_EXTRA}),
    (drop("case-1.json"), {2: Failure.OBJECT_MISSING, 9: Failure.CASE_DIFFERS}),
    (drop("seg-000002.cast"), {2: Failure.OBJECT_MISSING, 3: Failure.OBJECT_MISSING}),
    (drop("seg-000003.cast"), {2: Failure.OBJECT_MISSING, 4: Fault.NO_END, 6: Failure.RECORD_DIFFERS}),
    (without_last, {4: Fault.NO_END, 6: Failure.RECORD_DIFFERS}),
    (lambda files: {**files, "seg-000002.cast": files["seg-000003.cast"]}, {3: Fault.ORDER, 5: Failure.OBJECT_DIFFERS}),
    (lambda files: {**files, "seg-000002.in": files["seg-000003.in"]}, {3: Fault.IN_DIGEST, 5: Failure.OBJECT_DIFFERS}),
    (flip("seg-000002.in"), {3: Fault.IN_DIGEST, 5: Failure.OBJECT_DIFFERS}),
    (other_session, {3: Fault.LINK, 5: Failure.OBJECT_DIFFERS}),
    (listed(0, bytes=1), {5: Failure.OBJECT_DIFFERS}),
    (listed(0, sha256="0" * 64), {5: Failure.OBJECT_DIFFERS}),
    (listed(0, sha256="F" * 64), {1: Failure.MANIFEST_INVALID}),
    (listed(0, bytes="1"), {1: Failure.MANIFEST_INVALID}),
    (listed(0, key="sessions/abcdefghij/seg-000001.in"), {2: Failure.MANIFEST_INVALID, 5: Failure.OBJECT_DIFFERS}),
    (listed(0, key="sessions/zzzzzzzzzz/case-1.json"), {2: Failure.MANIFEST_INVALID}),
    (listed(0, key="sessions/abcdefghij/../../case-1.json"), {2: Failure.MANIFEST_INVALID}),
    (inside("manifest.json", "record", chain="0" * 64), {6: Failure.RECORD_DIFFERS}),
    (inside("manifest.json", "record", segments=2), {6: Failure.RECORD_DIFFERS}),
    (inside("manifest.json", "record", output_bytes=1), {6: Failure.RECORD_DIFFERS}),
    (inside("manifest.json", "record", cut=True), {6: Failure.RECORD_DIFFERS}),
    (inside("manifest.json", "ended", reason="idle"), {6: Failure.RECORD_DIFFERS}),
    (change("manifest.json", ended=None), {6: Failure.RECORD_DIFFERS}),
    (
        change("manifest.json", request_digest="sha256:" + "0" * 64),
        {6: Failure.RECORD_DIFFERS, 7: Failure.CASE_DIFFERS},
    ),
    (flip("case-1.json"), {5: Failure.OBJECT_DIFFERS}),
    (lambda files: {**files, "case-1.json": b"{}"}, {5: Failure.OBJECT_DIFFERS, 7: Failure.CASE_INVALID}),
    (change("case-1.json", sid="zzzzzzzzzz"), {7: Failure.CASE_DIFFERS}),
    (inside("case-1.json", "request", reason="nothing to see here"), {7: Failure.CASE_DIFFERS}),
    (inside("case-1.json", "request", minutes=60), {7: Failure.CASE_DIFFERS}),
    (inside("case-1.json", "target", cluster="flight-2"), {7: Failure.CASE_DIFFERS}),
    (inside("case-1.json", "shell", number=2), {7: Failure.CASE_DIFFERS}),
    (inside("case-1.json", "approval", request_digest="sha256:" + "1" * 64), {8: Failure.NOT_APPROVED}),
    (inside("case-1.json", "approval", approver={"ref": "user:default/a", "aliases": ["ANA@hangar.example"]}),
     {8: Failure.NOT_APPROVED}),
    (change("case-1.json", approval={"kind": "ground"}), {8: Failure.NOT_APPROVED}),
    (inside("case-1.json", "target", pod_uid="uid-2"), {9: Failure.CASE_DIFFERS}),
    (shell(debug_container="debug-x"), {9: Failure.CASE_DIFFERS}),
    (shell(case="sha256:" + "0" * 64), {9: Failure.CASE_DIFFERS}),
    (change("manifest.json", flags=[Flag.DIGEST_MISMATCH.value]), {10: Failure.SUPERVISOR_DIFFERS}),
]  # fmt: skip


@pytest.mark.parametrize(("tamper", "codes"), TAMPERED)
def test_what_was_tampered_with_is_named(tamper: Change, codes: dict[int, Failure | Fault]) -> None:
    found = verify(tamper(whole()))
    assert failed(found) == codes, found.steps
    assert not found.consistent


def test_two_whole_records_cannot_be_spliced_under_one_manifest() -> None:
    ours = whole()
    theirs = whole(session(machine.new(replace(b.REQUEST, reason="another reason"), b.NOW), machine.Approve(
        at=b.NOW, approver=b.BEN, request_digest=replace(b.REQUEST, reason="another reason").digest)))  # fmt: skip
    found = verify({**theirs, "manifest.json": ours["manifest.json"]})
    assert failed(found) == {5: Failure.OBJECT_DIFFERS, 6: Failure.RECORD_DIFFERS, 7: Failure.CASE_DIFFERS}


def test_the_shells_user_can_cast_doubt_and_not_break_the_record() -> None:
    found = verify(whole(session(witness=words(b"x" * 5))))
    assert found.steps[9].result is Result.DOUBTED
    assert found.steps[9].code is Failure.SUPERVISOR_DIFFERS
    assert found.consistent
    assert found.steps[9].sentence not in found.proved


def test_a_supervisor_killed_before_its_last_word_vouches_for_what_it_saw_until_then() -> None:
    assert verify(whole(session(witness=words(b"".join(OUTPUT)[:7])))).steps[9].result is Result.HOLDS


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"out_bytes":true,"out_sha256":""}', words(b"x" * 10_000)])
def test_a_supervisor_that_said_nothing_usable_is_not_looked_at(text: str) -> None:
    step = verify(whole(session(witness=text))).steps[9]
    assert (step.result, step.detail) == (Result.NOT_LOOKED_AT, "it left no digest of output that came through whole")


def test_output_before_the_first_shell_and_of_a_stranger_pod_is_not_the_shells() -> None:
    held = session()
    held = replace(held, shells=(replace(held.shells[0], pod="checkout-2"),))
    assert verify(whole(held)).steps[9].result is Result.NOT_LOOKED_AT


WHOLE = whole()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_no_byte_of_any_file_can_change_unnoticed(name: str, data: st.DataObject) -> None:
    old = WHOLE[name]
    at = data.draw(st.integers(0, len(old) - 1))
    new = old[:at] + data.draw(st.binary(max_size=3)) + old[at + data.draw(st.integers(0, 3)) :]
    found = verify({**WHOLE, name: new})
    if new == old:
        assert found.consistent
    elif name != "manifest.json":
        assert not found.consistent
    else:  # the manifest is what the others are compared with; nothing but a signature could hold it
        assert all(step.result is not Result.HOLDS or step.detail for step in found.steps)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*WHOLE, "case-2.json", "seg-000001.cast.part"]), st.binary(max_size=100)))
def test_whatever_the_files_are_the_answer_is_a_finding(files: Files) -> None:
    assert not verify(files).consistent


def test_an_actor_is_named_as_the_case_file_names_them() -> None:
    assert EntityRef("user:default/ana") in verify(WHOLE).steps[7].detail
