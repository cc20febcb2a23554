"""Layer 7, afterwards: whether a session's files are one whole record, step by step, offline and without anybody's word. Pure.

Guarantee: a step that holds was looked at, here, in these bytes. Must never: open the input lane, mend anything, or say more than
that: nothing is signed or anchored yet, so the files prove that they agree with each other and not who made them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from breakglass.core.evidence import CASE_FORMAT, MANIFEST_FORMAT, prefix
from breakglass.core.model import Flag, Sid, is_sid
from breakglass.core.record import End, segment_name
from breakglass.core.record_read import Event, Fault, Reader, RecordInvalid
from breakglass.core.verify_case import (
    CASE_FIELDS,
    MANIFEST_FIELDS,
    OBJECT_FIELDS,
    RECORD_FIELDS,
    SHELL_FIELDS,
    approval,
    canonical,
    has,
    is_case,
    last_words,
    request_digest,
)

MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"(?:case-[1-9]\.json|seg-[0-9]{6}\.(?:cast|in))")
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_SHELL: Final = re.compile(r"shell ([1-9]) on pod (.+)")


class Result(StrEnum):
    """What a step came to. What was not looked at is not proved, and is said.

    `doubted`: somebody whose word proves nothing says otherwise, and a reader should ask why; the record is not broken by it.
    """

    HOLDS = "holds"
    FAILED = "failed"
    DOUBTED = "doubted"
    NOT_LOOKED_AT = "not_looked_at"


class Failure(StrEnum):
    """Why a step failed; a fault inside a segment has the reader's own code (`Fault`)."""

    MANIFEST_MISSING = "manifest_missing"
    MANIFEST_INVALID = "manifest_invalid"
    OBJECT_MISSING = "object_missing"
    OBJECT_EXTRA = "object_extra"
    OBJECT_DIFFERS = "object_differs"
    RECORD_DIFFERS = "record_differs"
    CASE_INVALID = "case_invalid"
    CASE_DIFFERS = "case_differs"
    NOT_APPROVED = "not_approved"
    SUPERVISOR_DIFFERS = "supervisor_differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One question, its answer, and for a failure its code. `detail` may quote names, never content."""

    number: int
    sentence: str
    result: Result
    code: Failure | Fault | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found. `proved`, `trust` (whom the reader must still trust) and `not_proved` are sentences for people."""

    sid: str
    steps: tuple[Step, ...]
    proved: tuple[str, ...]
    trust: tuple[str, ...]
    not_proved: tuple[str, ...]

    @property
    def consistent(self) -> bool:
        """Whether nothing failed. Origin is another question, and not answered here."""
        return all(step.result is not Result.FAILED for step in self.steps)


def verify(objects: Mapping[str, bytes]) -> Verified:
    """Look at a session's files: `manifest.json`, `case-N.json`, `seg-NNNNNN.cast`, and `seg-NNNNNN.in` where at hand.

    `objects` may load each file when it is asked for; each is asked for once, so one segment is in memory at a time.
    1. The manifest is canonical and says all it must. 2. It names these files and no others. 3. Every segment is what the
    recorder writes and hangs on the one before. 4. The record ends. 5. Each file has the manifest's digest and size. 6. The
    manifest says of the record what the record says. 7. The case files are this session's, and the request's digest follows
    from them. 8. Somebody else approved this very request, or glass was broken, or none need approve. 9. Each shell is the
    one of its case file. 10. The supervisor saw the output that was recorded. 11. The input lane. A step that needs what
    failed before is not looked at. Who made the files is for a signature and a log to say.
    """
    looking = _Looking(objects)
    steps: list[Step] = []
    for number, (sentence, look) in enumerate(looking.steps(), 1):
        try:
            detail = look()
        except _FailedError as failed:
            result = Result.DOUBTED if failed.doubt else Result.FAILED
            steps.append(Step(number=number, sentence=sentence, result=result, code=failed.code, detail=failed.detail))
        except _NotLookedError as why:
            steps.append(Step(number=number, sentence=sentence, result=Result.NOT_LOOKED_AT, detail=str(why)))
        else:
            steps.append(Step(number=number, sentence=sentence, result=Result.HOLDS, detail=detail))
    return Verified(
        sid=looking.sid,
        steps=tuple(steps),
        proved=tuple(step.sentence for step in steps if step.result is Result.HOLDS),
        trust=TRUST,
        not_proved=(*_unproved(steps), *NOT_PROVED),
    )


TRUST: Final = (
    "Whoever could write these files: nothing is signed or anchored, so who could replace them all could have made them all.",
    "Tower, that it recorded what the terminal said; the supervisor's digest is a second witness where step 10 holds.",
)
NOT_PROVED: Final = (
    "Origin: that Tower made these files, and when. They are consistent with each other; that is all.",
    "That no other session existed: only a log can say so.",
    "Identities: requester and approver are as Tower's identity provider asserted them.",
    "What the shell did over the network, or under process access inside the app's own processes: only the terminal is recorded.",
)


def _unproved(steps: list[Step]) -> tuple[str, ...]:
    return tuple(f"Step {step.number}, not so: {step.sentence}" for step in steps if step.result is not Result.HOLDS)


class _FailedError(Exception):
    def __init__(self, code: Failure | Fault, detail: str, *, doubt: bool = False) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.doubt = doubt


class _NotLookedError(Exception):
    pass


@dataclass(slots=True, kw_only=True)
class _Shown:
    """The output of one shell: how much, and the digest of as much of it as the supervisor vouches for."""

    pod: str
    until: int | None
    witness: dict[str, Any] | None
    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def take(self, data: bytes) -> None:
        if self.until is not None and self.size < self.until:
            self.digest.update(data[: self.until - self.size])
        self.size += len(data)


class _Looking:
    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = objects
        self._names = frozenset(objects)
        self._seen: dict[str, tuple[str, int]] = {}
        self._kept: dict[str, bytes] = {}
        self._reader = Reader()
        self._end: End | None = None
        self._manifest: dict[str, Any] | None = None
        self._cases: dict[int, dict[str, Any]] | None = None
        self._shown: dict[int, _Shown] = {}
        self._current: _Shown | None = None
        self._chained = False
        self.sid = ""

    def steps(self) -> tuple[tuple[str, Callable[[], str]], ...]:
        return (
            ("The manifest is canonical and says all it must.", self._manifest_is_whole),
            ("The manifest names these files and no others.", self._names_agree),
            ("Every segment is what the recorder writes, and hangs on the one before.", self._chain_holds),
            ("The record has its end.", self._has_end),
            ("Every file has the digest and size the manifest says.", self._digests_agree),
            ("The manifest says of the record what the record says.", self._record_agrees),
            ("The case files are of this session, and the request's digest follows from them.", self._cases_agree),
            ("Somebody else approved this very request, or glass was broken, or none need approve.", self._approved),
            ("Every shell is the one its case file was written for.", self._shells_agree),
            ("The supervisor vouches for the output that was recorded.", self._supervisor_agrees),
            ("The input lane is whole and sealed in the same chain.", self._inputs_looked_at),
        )

    def _read(self, name: str) -> bytes:
        """An object, once; a case file is kept for the steps behind."""
        if name in self._kept:
            return self._kept[name]
        data = self._objects[name]
        self._seen[name] = hashlib.sha256(data).hexdigest(), len(data)
        if name.startswith("case-"):
            self._kept[name] = data
        return data

    def _manifest_is_whole(self) -> str:
        """Step 1."""
        if MANIFEST not in self._names:
            raise _FailedError(
                Failure.MANIFEST_MISSING, "there is no manifest.json: the session is not sealed, or it was removed"
            )
        value = canonical(self._objects[MANIFEST])
        whole = value is not None and has(value, MANIFEST_FIELDS) and value["format"] == MANIFEST_FORMAT and is_sid(value["sid"])
        if value is None or not whole or not has(value["record"], RECORD_FIELDS):
            raise _FailedError(Failure.MANIFEST_INVALID, "manifest.json is not canonical, or not all it must say is there")
        if not all(has(item, OBJECT_FIELDS) and _HEX.fullmatch(item["sha256"]) for item in value["objects"]):
            raise _FailedError(Failure.MANIFEST_INVALID, "manifest.json: an object without key, version, digest or size")
        shells = value["shells"]
        if not all(has(item, SHELL_FIELDS) for item in shells) or [item["number"] for item in shells] != [
            *range(1, len(shells) + 1)
        ]:
            raise _FailedError(Failure.MANIFEST_INVALID, "manifest.json: the shells are not numbered from 1")
        self._manifest, self.sid = value, value["sid"]
        return f"session {self.sid}, {len(value['objects'])} objects"

    def _names_agree(self) -> str:
        """Step 2."""
        manifest = self._need_manifest()
        keys = [item["key"] for item in manifest["objects"]]
        folder = prefix(Sid(self.sid))
        named = [key.removeprefix(folder) for key in keys]
        if len(set(keys)) != len(keys) or not all(key.startswith(folder) for key in keys):
            raise _FailedError(Failure.MANIFEST_INVALID, "manifest.json: a key twice, or of another session")
        if not all(_NAME.fullmatch(name) for name in named):
            raise _FailedError(Failure.MANIFEST_INVALID, "manifest.json: a key that is no part of a session")
        if extra := sorted(self._names - {MANIFEST, *named}):
            raise _FailedError(Failure.OBJECT_EXTRA, f"not in the manifest: {_some(extra)}")
        if missing := sorted(name for name in named if name not in self._names and not name.endswith(".in")):
            raise _FailedError(Failure.OBJECT_MISSING, f"in the manifest and not here: {_some(missing)}")
        return f"{len(named)} named"

    def _chain_holds(self) -> str:
        """Step 3."""
        for shell in self._manifest["shells"] if self._manifest else ():
            words = last_words(shell["supervisor"])
            until = None if words is None else words["out_bytes"]
            self._shown[shell["number"]] = _Shown(pod=shell["pod"], until=until, witness=words)
        there = sorted(name for name in self._names if name.startswith("seg-") and name.endswith(".cast"))
        for number in range(1, len(there) + 1):
            name = segment_name(number)
            if f"{name}.cast" not in self._names:
                raise _FailedError(Failure.OBJECT_MISSING, f"{name}.cast is missing")
            out = self._read(f"{name}.cast")
            inp = self._read(f"{name}.in") if f"{name}.in" in self._names else None
            try:
                segment = self._reader.segment(out, inp)
            except RecordInvalid as invalid:
                raise _FailedError(invalid.code, str(invalid)) from None
            del out, inp
            for event in segment.events:
                self._take(event)
        self._chained = True
        return f"{len(there)} segments, {self._reader.output_bytes} bytes of output"

    def _take(self, event: Event) -> None:
        if event.code == "m" and (found := _SHELL.fullmatch(event.text)) is not None:
            shown = self._shown.get(int(found[1]))
            self._current = shown if shown is not None and shown.pod == found[2] else None
        elif event.code == "o" and self._current is not None:
            self._current.take(event.data)

    def _has_end(self) -> str:
        """Step 4."""
        self._need_chain()
        if self._reader.number == 0:
            return "no shell was ever shown: there is nothing recorded"
        try:
            self._end = self._reader.finish()
        except RecordInvalid as invalid:
            raise _FailedError(invalid.code, str(invalid)) from None
        return f"{self._end.reason}, cut by a crash or a fault" if self._end.cut else self._end.reason

    def _digests_agree(self) -> str:
        """Step 5."""
        manifest = self._need_manifest()
        for item in manifest["objects"]:
            name = item["key"].removeprefix(prefix(Sid(self.sid)))
            if name not in self._names:
                continue
            if name not in self._seen:
                self._read(name)
            if self._seen[name] != (item["sha256"], item["bytes"]):
                raise _FailedError(Failure.OBJECT_DIFFERS, f"{name} is not the one in the manifest")
        return f"{len(self._seen)} files"

    def _record_agrees(self) -> str:
        """Step 6."""
        manifest, reader = self._need_manifest(), self._need_chain()
        said, header = manifest["record"], reader.header
        found = {"segments": reader.number, "chain": reader.chain.hex(), "output_bytes": reader.output_bytes}
        wrong = [name for name, value in found.items() if said[name] != value]
        if header is not None:
            wrong += ["sid"] if header.sid != manifest["sid"] else []
            wrong += ["request_digest"] if header.request_digest != manifest["request_digest"] else []
            if self._end is None or said["cut"] != self._end.cut:
                wrong.append("cut")
            ended = manifest["ended"]
            if self._end is not None and not self._end.cut and (ended is None or ended.get("reason") != self._end.reason):
                wrong.append("ended")  # a record that was cut ends with what its sealer knew, and that is not always the reason
        if wrong:
            raise _FailedError(Failure.RECORD_DIFFERS, f"manifest and record do not agree on: {', '.join(wrong)}")
        return f"chain {reader.chain.hex()[:16] or 'empty'}"

    def _cases_agree(self) -> str:
        """Step 7."""
        manifest = self._need_manifest()
        cases: dict[int, dict[str, Any]] = {}
        for name in sorted(name for name in self._names if name.startswith("case-")):
            value = canonical(self._read(name))
            if value is None or not has(value, CASE_FIELDS) or value["format"] != CASE_FORMAT or not is_case(value):
                raise _FailedError(Failure.CASE_INVALID, f"{name} is not canonical, or not all it must say is there")
            if name != f"case-{value['shell']['number']}.json":
                raise _FailedError(Failure.CASE_DIFFERS, f"{name} is for another shell")
            digest = manifest["request_digest"]
            said = {value["request"]["digest"], request_digest(value)}
            if value["sid"] != manifest["sid"] or said != {digest}:
                raise _FailedError(Failure.CASE_DIFFERS, f"{name} is of another session or request")
            cases[value["shell"]["number"]] = value
        self._cases = cases
        return f"{len(cases)} case files, request {manifest['request_digest']}"

    def _approved(self) -> str:
        """Step 8."""
        if not self._need_cases():
            raise _NotLookedError("there is no case file")
        found = sorted({approval(case) for case in self._need_cases().values()})
        if not found[0][0]:
            raise _FailedError(Failure.NOT_APPROVED, found[0][1])
        return "; ".join(words for _, words in found)

    def _shells_agree(self) -> str:
        """Step 9."""
        manifest, cases = self._need_manifest(), self._need_cases()
        for shell in manifest["shells"]:
            number, case = shell["number"], cases.get(shell["number"])
            if case is None:
                if shell["grant_uid"] is not None or shell["active_at"] is not None:
                    raise _FailedError(Failure.CASE_DIFFERS, f"shell {number} had a grant, and there is no case file for it")
                continue  # it never came so far: the case file is written before the grant
            here = shell["pod"], shell["pod_uid"], shell["debug_container"]
            if here != (case["target"]["pod"], case["target"]["pod_uid"], case["shell"]["debug_container"]):
                raise _FailedError(Failure.CASE_DIFFERS, f"shell {number} is not the one its case file was written for")
            name = f"case-{number}.json"
            if shell.get("case", f"sha256:{self._seen[name][0]}") != f"sha256:{self._seen[name][0]}":
                raise _FailedError(Failure.CASE_DIFFERS, f"the grant of shell {number} names another case file")
        if strangers := sorted(set(cases) - {shell["number"] for shell in manifest["shells"]}):
            raise _FailedError(Failure.CASE_DIFFERS, f"a case file for a shell the manifest does not know: {strangers[0]}")
        return f"{len(manifest['shells'])} shells"

    def _supervisor_agrees(self) -> str:
        """Step 10."""
        self._need_chain()
        if Flag.DIGEST_MISMATCH.value in self._need_manifest()["flags"]:
            raise _FailedError(
                Failure.SUPERVISOR_DIFFERS, "Tower itself heard another digest from the supervisor's sealed stream"
            )
        compared = 0
        for number, shown in self._shown.items():
            if shown.witness is None or shown.size < shown.witness["out_bytes"]:
                continue
            if shown.digest.hexdigest() != shown.witness["out_sha256"]:
                raise _FailedError(
                    Failure.SUPERVISOR_DIFFERS,
                    f"shell {number}: its last message has another digest; the shell's user can write that message, ask them",
                    doubt=True,
                )
            compared += 1
        if not compared:
            raise _NotLookedError("it left no digest of output that came through whole")
        if compared < len(self._shown):
            raise _NotLookedError(f"its digests agree for {compared} of {len(self._shown)} shells; for the others it left none")
        return f"{compared} shells"

    def _inputs_looked_at(self) -> str:
        """Step 11."""
        self._need_chain()
        missing = sum(f"{segment_name(number)}.in" not in self._names for number in range(1, self._reader.number + 1))
        if missing:
            raise _NotLookedError(f"input lane not looked at ({missing} of {self._reader.number} files are not here); "
                                  "its digests are in the seals")  # fmt: skip
        return f"{self._reader.inputs} input records, still encrypted: only reviewers can open them"

    def _need_manifest(self) -> dict[str, Any]:
        if self._manifest is None:
            raise _NotLookedError("there is no manifest to compare with")
        return self._manifest

    def _need_cases(self) -> dict[int, dict[str, Any]]:
        if self._cases is None:
            raise _NotLookedError("the case files are not as they should be")
        return self._cases

    def _need_chain(self) -> Reader:
        if not self._chained:
            raise _NotLookedError("the segments are not as they should be")
        return self._reader


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
