"""What `verify` checks, offline, on a directory of a record's objects: both lanes' chain, sizes, manifest, case files.

Layer 7, read by a stranger. Must never: say "verified" of an origin, look past a fault, or import more than core.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from breakglass.core.evidence import CASE_FORMAT, MANIFEST_FORMAT, prefix
from breakglass.core.model import EntityRef, Flag, Person, Sid, canonical_json, digest_of
from breakglass.core.record import segment_name
from breakglass.core.record_read import OBJECT_MAX, Reader, RecordInvalid

JSON_MAX = 4 << 20
_KNOWN = re.compile(r"seg-[0-9]{6}\.(cast|in)|case-[1-9]\.json|manifest\.json")

TRUST = (
    "whoever runs Tower and its vault: nothing is signed yet, so they could have written another record, as consistent",
    "whoever gave you these files, as long as you did not take them from the vault yourself",
    "the identity provider and the catalog: people are named as they asserted them",
)
NOT_PROVED = (
    "origin: there is no signature in this version",
    "time: there is no anchor in a log in this version; all times are Tower's and the API server's own",
    "that no other session was left out",
    "network traffic from the debug container",
    "what code ran inside the app under process access",
    "what was typed: the input lane is encrypted to the reviewers; here only its digests were checked",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that was looked at; `ok` is None when there was nothing to look at, which proves nothing."""

    what: str
    ok: bool | None
    detail: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What came out. `ok` when nothing is wrong and the record is whole; never more than that."""

    sid: str = ""
    steps: list[Step] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing that was looked at is wrong, and the record is whole. Input objects that are not at hand are no fault."""
        return bool(self.steps) and all(step.ok is not False for step in self.steps)

    def add(self, what: str, found: tuple[bool | None, str]) -> None:
        """One more step, and what came of it."""
        self.steps.append(Step(what=what, ok=found[0], detail=found[1]))


class MissingError(Exception):
    """There is no record to look at; `str()` says what was expected."""


def examine(directory: Path, *, inputs: bool = True) -> Report:
    """Look at everything in the directory. `inputs` False: the input objects were kept from whoever looks, and may be missing.

    1. The files: known names only, segments numbered without a gap, none longer than a record's can be.
    2. The output lane: every line as the writer writes it, every digest, every link of the chain.
    3. The input lane: each object is the one its seal names. (Its content stays encrypted.)
    4. The end: the record has one, and whether it was cut.
    5. The manifest names exactly these objects, with these digests, sizes and this chain.
    6. Each case file is of this request: its own digest is computed again; the approval names it, and is not the requester's.
    7. The supervisor's digest of the output, where one shell makes it comparable.
    Who signed, and where it is anchored, is nobody's to check yet: `NOT_PROVED`.
    """
    names = _names(directory)
    report = Report()
    manifest = _json(directory, "manifest.json", MANIFEST_FORMAT)
    witness = _last_words(manifest)
    lane = _Lane(directory, names, inputs=inputs, hashed=witness[0] if witness else 0)
    report.add("the files", lane.complete())  # (1)
    lane.read()
    report.sid = lane.reader.header.sid if lane.reader.header else ""
    report.add("the output lane's chain", lane.output())  # (2)
    report.add("the input lane's digests", lane.input())  # (3)
    report.add("the record's end", lane.end())  # (4)
    report.add("the manifest", _manifest(manifest, lane, directory, names))  # (5)
    report.add("the case files", _cases(directory, names, lane))  # (6)
    report.add("the supervisor's witness", _witness(witness, lane))  # (7)
    return report


def _names(directory: Path) -> frozenset[str]:
    try:
        entries = [path for path in directory.iterdir() if stat.S_ISREG(path.lstat().st_mode)]
    except OSError as error:
        raise MissingError(f"{directory} cannot be read ({error.strerror})") from None
    names = frozenset(path.name for path in entries)
    if segment_name(1) + ".cast" not in names:
        raise MissingError(
            f"{directory} holds no record: {segment_name(1)}.cast is expected in it, as in a vault's sessions/<sid>/"
        )
    return names


def _read(directory: Path, name: str, limit: int) -> bytes:
    with (directory / name).open("rb") as file:
        return file.read(limit + 1)


class _Lane:
    """Both lanes, read once, in order, a segment at a time."""

    def __init__(self, directory: Path, names: frozenset[str], *, inputs: bool, hashed: int) -> None:
        """`hashed`: how many output bytes the supervisor's digest covers."""
        self._directory, self._names, self._inputs, self._hashed = directory, names, inputs, hashed
        self.count = sum(name.endswith(".cast") for name in names)
        self.reader = Reader()
        self.fault: RecordInvalid | None = None
        self.without_input = 0
        self.sums: dict[str, tuple[str, int]] = {}
        self.kept: dict[str, str] = {}
        self.output_sha256 = hashlib.sha256()

    def complete(self) -> tuple[bool, str]:
        strangers = sorted(name for name in self._names if not _KNOWN.fullmatch(name))
        if strangers:
            return False, f"not part of a record: {', '.join(strangers[:5])}"
        wanted = {f"{segment_name(n)}.cast" for n in range(1, self.count + 1)}
        if missing := sorted(wanted - self._names):
            return False, f"segments are numbered with a gap: {missing[0]} is not there"
        return True, f"{len(self._names)} files, {self.count} segments numbered without a gap"

    def read(self) -> None:
        try:
            for number in range(1, self.count + 1):
                name = segment_name(number)
                if f"{name}.cast" not in self._names:
                    return
                inp = self._load(f"{name}.in") if f"{name}.in" in self._names else None
                self.without_input += inp is None
                segment = self.reader.segment(self._load(f"{name}.cast"), inp)
                if inp is None:
                    self.kept[f"{name}.in"] = segment.seal.in_sha256.hex()
                for event in segment.events:
                    self.output_sha256.update(event.data[: max(0, self._hashed)])
                    self._hashed -= len(event.data)
        except RecordInvalid as fault:
            self.fault = fault

    def _load(self, name: str) -> bytes:
        data = _read(self._directory, name, OBJECT_MAX)
        self.sums[name] = (hashlib.sha256(data).hexdigest(), len(data))
        return data

    def output(self) -> tuple[bool, str]:
        if self.fault is not None:
            return False, f"{self.fault} (segments 1 to {self.reader.number} hold)"
        return (
            True,
            f"{self.reader.number} segments, {self.reader.output_bytes} bytes of output, chain head {self.reader.chain.hex()}",
        )

    def input(self) -> tuple[bool | None, str]:
        if self.fault is not None:
            return False, "not looked at behind the fault"
        if self.without_input:
            what = f"{self.without_input} of {self.count} input objects are not here"
            return (False, what) if self._inputs else (None, f"{what}: they are for reviewers; their digests are in the chain")
        return True, f"{self.count} objects, {self.reader.inputs} encrypted records, each the one its seal names"

    def end(self) -> tuple[bool, str]:
        if self.fault is not None:
            return False, "not reached"
        try:
            end = self.reader.finish()
        except RecordInvalid as fault:
            return False, f"{fault}: it is still being written, was torn, or its last segments were taken away"
        return True, f"ended: {end.reason}" + ("; its tail was cut by a crash and is declared lost" if end.cut else "")


def _json(directory: Path, name: str, form: str) -> dict[str, Any] | None:
    """A canonical JSON object of the named format; None when it is not there or is anything else."""
    try:
        data = _read(directory, name, JSON_MAX)
        value = json.loads(data)
        good = isinstance(value, dict) and value.get("format") == form and canonical_json(value) == data
    except (OSError, ValueError, RecursionError):
        return None
    return value if good else None


def _manifest(manifest: dict[str, Any] | None, lane: _Lane, directory: Path, names: frozenset[str]) -> tuple[bool, str]:
    if manifest is None:
        return False, "there is no manifest in its canonical form: the record is not sealed yet, or this is not all of it"
    reader = lane.reader
    sid = str(manifest.get("sid"))
    if reader.header is None or (sid, manifest.get("request_digest")) != (reader.header.sid, reader.header.request_digest):
        return False, "it is another session's or another request's"
    said = {str(each["key"]).removeprefix(prefix(Sid(sid))): (each["sha256"], each["bytes"]) for each in _objects(manifest)}
    found = {name: lane.sums.get(name) or _sum(directory, name) for name in names - {"manifest.json"}}
    found |= {name: (digest, said[name][1]) for name, digest in lane.kept.items() if name in said}
    if extra := sorted(set(found) - set(said)):
        return False, f"it does not name {extra[0]}"
    if missing := sorted(set(said) - set(found)):
        return False, f"it names {missing[0]}, which is not here"
    if wrong := sorted(name for name in said if said[name] != found[name]):
        return False, f"digest or size of {wrong[0]} is not the one it names"
    record = manifest.get("record")
    if record != {
        "segments": reader.number,
        "chain": reader.chain.hex(),
        "output_bytes": reader.output_bytes,
        "cut": reader.end is not None and reader.end.cut,
    }:
        return False, "it says another chain, count or end than the record"
    flags = manifest.get("flags") or []
    if Flag.DIGEST_MISMATCH.value in flags:
        return False, "it says itself that the supervisor saw other bytes than Tower (digest_mismatch)"
    return True, f"names exactly these {len(said)} objects and this chain" + (
        f"; flags: {', '.join(map(str, flags))}" if flags else ""
    )


def _objects(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    objects = manifest.get("objects")
    wanted = {"key", "sha256", "bytes"}
    return [each for each in objects if isinstance(each, dict) and wanted <= set(each)] if isinstance(objects, list) else []


def _sum(directory: Path, name: str) -> tuple[str, int]:
    data = _read(directory, name, OBJECT_MAX)
    return hashlib.sha256(data).hexdigest(), len(data)


def _cases(directory: Path, names: frozenset[str], lane: _Lane) -> tuple[bool | None, str]:
    cases = sorted(name for name in names if name.startswith("case-"))
    header = lane.reader.header
    if not cases or header is None:
        return False, "there is none: nothing says who asked and who said yes"
    words = ""
    for name in cases:
        case = _json(directory, name, CASE_FORMAT)
        if case is None:
            return False, f"{name} is not a case file in its canonical form"
        good, words = _case(case, header.sid, header.request_digest)
        if not good:
            return False, f"{name}: {words}"
    return True, f"{len(cases)}, of this request; {words}"


def _case(case: dict[str, Any], sid: str, request_digest: str) -> tuple[bool, str]:
    """(6) for one case file."""
    try:
        request, target, approval = case["request"], case["target"], case["approval"]
        again = digest_of(
            {
                **{
                    name: request[name]
                    for name in (
                        "after_process_access",
                        "app",
                        "asked_at",
                        "container",
                        "environment",
                        "minutes",
                        "mode",
                        "process_access",
                        "reason",
                    )
                },
                "cluster": target["cluster"],
                "commit": target["cicd_commit"],
                "namespace": target["namespace"],
                "requester": request["requester"]["ref"],
                "sid": case["sid"],
                "tier": target["tier"],
            }
        )
        requester, kind = request["requester"], approval["kind"]
        if (case["sid"], request["digest"], again) != (sid, request_digest, request_digest):
            return False, "what it says was asked does not have the digest that the record hangs on"
        return _approval(approval, kind, requester, request_digest, target["tier"])
    except (KeyError, TypeError):
        return False, "a part of it is missing"


def _approval(approval: dict[str, Any], kind: str, requester: dict[str, Any], digest: str, tier: str) -> tuple[bool, str]:
    asked = f"{requester['ref']} asked"
    if kind == "approved":
        approver = approval["approver"]
        if approval["request_digest"] != digest:
            return False, "the approval is of another request"
        if _person(approver).same(_person(requester)):
            return False, "the requester approved their own request"
        return True, f"{asked}, {approver['ref']} approved this very request"
    if kind == "glass_broken":
        return True, f"{asked}, {approval['breaker']['ref']} broke the glass"
    if kind == "ground" and tier == "ground":
        return True, f"{asked}; on Ground nobody approves"
    return False, "nobody approved it"


def _person(said: dict[str, Any]) -> Person:
    return Person(ref=EntityRef(said["ref"]), aliases=frozenset(said["aliases"]))


def _last_words(manifest: dict[str, Any] | None) -> tuple[int, str] | None:
    """How many output bytes the supervisor of the only shell hashed, and to what."""
    shells = manifest.get("shells") if manifest else None
    try:
        words = json.loads(shells[0]["supervisor"]) if isinstance(shells, list) and len(shells) == 1 else {}
        size, digest = words["out_bytes"], words["out_sha256"]
    except (KeyError, TypeError, ValueError):
        return None
    return (size, digest) if type(size) is int and size >= 0 and isinstance(digest, str) else None


def _witness(witness: tuple[int, str] | None, lane: _Lane) -> tuple[bool | None, str]:
    """A witness, not a proof: the shell's user can write another. Tower's own comparison, sealed, is the flag digest_mismatch."""
    if witness is None or lane.fault is not None:
        return None, "not compared: comparable only for a whole record of one shell whose supervisor left its last words"
    size, digest = witness
    if size > lane.reader.output_bytes:
        return None, "not comparable: the shell was killed with bytes on their way that were never delivered, nor shown"
    agrees = digest == lane.output_sha256.hexdigest()
    return (
        (True, f"its digest of the first {size} bytes of output is the record's")
        if agrees
        else (None, "DIFFERS: its digest of the output is not the record's; the shell's user can do that, ask what they did")
    )
