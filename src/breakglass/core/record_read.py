"""Layer 7. The record, read: canonical or rejected, segment by segment in bounded memory, every fault named. Pure.

The format is `spec/record.md`. Must never: mend, skip or guess; what `Writer` would not have written is not a record.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from breakglass.core import record as w
from breakglass.core.model import canonical_json
from breakglass.core.record import End, Header, Kind, Typed

SEGMENT_MAX: Final = 32 << 20
"""No segment object is longer: the writer cuts far below, a reader need not believe it."""
_INTERVAL: Final = re.compile(rb"(0|[1-9][0-9]{0,9})\.([0-9]{6})")
_EVENT: Final = re.compile(rb'\[((?:0|[1-9][0-9]{0,9})\.[0-9]{6}), "([ormx])", (".*")\]', re.DOTALL)


class Fault(StrEnum):
    """What is wrong with a record."""

    TOO_LONG = "too_long"
    TORN = "torn"
    BAD_HEADER = "bad_header"
    BAD_LINE = "bad_line"
    NOT_CANONICAL = "not_canonical"
    NO_SEAL = "no_seal"
    AFTER_SEAL = "after_seal"
    OUT_DIGEST = "out_digest"
    IN_DIGEST = "in_digest"
    CHAIN = "chain"
    COUNTS = "counts"
    ORDER = "order"
    OTHER_SESSION = "other_session"
    AFTER_END = "after_end"
    NO_END = "no_end"
    BAD_INPUT = "bad_input"
    SEALED_OTHERWISE = "sealed_otherwise"


class RecordInvalid(Exception):  # noqa: N818 - what the spec calls it
    """This is not a record, or not the one it says. `where` names segment and line, never content."""

    def __init__(self, code: Fault, where: str) -> None:
        super().__init__(f"{where}: {code.value.replace('_', ' ')}")
        self.code = code
        self.where = where


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event: microseconds since the record began, its code (o, r, m, x), its text, and for output the exact bytes."""

    at_us: int
    code: str
    text: str = field(repr=False)
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment whose lines and digests hold; `wrapped_key` and `inputs` are None when its input object was not at hand."""

    number: int
    events: tuple[Event, ...] = field(repr=False)
    chain: bytes
    end: End | None
    wrapped_key: bytes | None = field(repr=False)
    inputs: tuple[bytes, ...] | None = field(repr=False)


class Reader:
    """Reads segments in their order and holds on to the chain. One a record; dead after the first fault."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.number = 0
        self.chain = b""
        self.at_us = 0
        self.end: End | None = None
        self.output_bytes = 0
        self.inputs = 0
        self._wrapped: bytes | None = None

    def segment(self, out: bytes, inp: bytes | None) -> Segment:
        """The next segment.

        1. Its size is bounded. 2. Header (first segment) and place: this number, this link, this session. 3. Every line is one
        the writer would have written. 4. The seal's digests are those of the bytes. 5. The link follows from them. 6. Counts.
        Whether the record is *complete* is `finish`'s to say; who made it is not to be seen from it.
        """
        number = self.number + 1
        where = f"segment {number}"
        if self.end is not None:
            raise RecordInvalid(Fault.AFTER_END, where)
        if len(out) > SEGMENT_MAX or (inp is not None and len(inp) > SEGMENT_MAX):  # (1)
            raise RecordInvalid(Fault.TOO_LONG, where)
        lines = _lines(out, where)
        if number == 1:  # (2)
            self.header = _header(lines[0])
            self.chain = w.first_link(self.header.sid, self.header.request_digest)
            lines = lines[1:]
        if self.header is None or not lines or lines[0] != w.seg_line(number, self.chain)[:-1]:
            raise RecordInvalid(_misplaced(lines, self.chain), where)
        if len(lines) < 2 or not lines[-1].startswith(w.SEAL):
            raise RecordInvalid(Fault.NO_SEAL, where)
        events, self.at_us = _events(lines[1:-1], self.at_us, where)  # (3)
        seal = _seal(lines[-1], where)
        body = out[: -len(lines[-1]) - 1]
        if seal["n"] != number or seal["out_sha256"] != hashlib.sha256(body).hexdigest():  # (4)
            raise RecordInvalid(Fault.OUT_DIGEST, where)
        wrapped, inputs = None, None
        if inp is not None:
            if seal["in_sha256"] != hashlib.sha256(inp).hexdigest():
                raise RecordInvalid(Fault.IN_DIGEST, where)
            wrapped, inputs = _input(inp, self.header.sid, number, where)
            self._same_key(wrapped, where)
            self.inputs += len(inputs)
        end = None if seal["end"] is None else End(reason=seal["end"]["reason"], cut=seal["end"]["cut"])
        chain = w.link(self.chain, number, bytes.fromhex(seal["out_sha256"]), bytes.fromhex(seal["in_sha256"]), end)  # (5)
        if chain.hex() != seal["chain"]:
            raise RecordInvalid(Fault.CHAIN, where)
        shown = sum(len(event.data) for event in events)
        if (seal["events"], seal["out_bytes"]) != (len(events), shown) or (
            inp is not None and seal["in_bytes"] != len(inp)
        ):  # (6)
            raise RecordInvalid(Fault.COUNTS, where)
        self.number, self.chain, self.end = number, chain, end
        self.output_bytes += shown
        return Segment(number=number, events=tuple(events), chain=chain, end=end, wrapped_key=wrapped, inputs=inputs)

    def finish(self) -> End:
        """The record's end; without one it is torn or still being written."""
        if self.end is None:
            raise RecordInvalid(Fault.NO_END, f"after segment {self.number}")
        return self.end

    def _same_key(self, wrapped: bytes, where: str) -> None:
        if self._wrapped is not None and self._wrapped != wrapped:
            raise RecordInvalid(Fault.BAD_INPUT, where)
        self._wrapped = wrapped


def decrypt_input(segments: Iterator[Segment], sid: str, key: bytes) -> Iterator[Typed]:
    """What was typed, on the reviewer's side: every input record in order under the session key.

    A record that was dropped, swapped or taken from elsewhere does not open: `RecordInvalid(bad_input)`.
    """
    aead = ChaCha20Poly1305(key)
    counter = 0
    for segment in segments:
        where = f"segment {segment.number}, input"
        if segment.inputs is None:
            raise RecordInvalid(Fault.BAD_INPUT, where)
        for sealed in segment.inputs:
            counter += 1
            try:
                plain = aead.decrypt(counter.to_bytes(12, "big"), sealed, w.input_aad(sid, segment.number, counter))
            except InvalidTag:
                raise RecordInvalid(Fault.BAD_INPUT, where) from None
            yield from _typed(plain, where)


class Whole(NamedTuple):
    """What of an unsealed segment is whole: bytes of the object, events, and the output bytes they hold."""

    length: int
    events: int
    output_bytes: int


def whole_lines(out: bytes, number: int, prev: bytes, header: Header) -> Whole:
    """After a crash: the longest prefix of whole valid lines of an unsealed segment.

    A `#b` line without its `o` line is not whole. All zero when not even the segment's own first lines are there.
    """
    head = (w.header_line(header) if number == 1 else b"") + w.seg_line(number, prev)
    if not out.startswith(head):
        return Whole(0, 0, 0)
    good = at = len(head)
    events = shown = 0
    exact: bytes | None = None
    while (stop := out.find(b"\n", at)) >= 0:
        line = out[at:stop]
        try:
            if exact is None and line.startswith(w.EXACT):
                exact = line
            else:
                event = _event(line, exact, 0, "")
                good, events, shown, exact = stop + 1, events + 1, shown + len(event.data), None
        except RecordInvalid:
            break
        at = stop + 1
    return Whole(good, events, shown)


def whole_inputs(inp: bytes, header: bytes) -> int:
    """After a crash: the length of the longest prefix of whole input records, the header line included; 0 without that."""
    if not inp.startswith(header):
        return 0
    at = len(header)
    while len(inp) - at >= 4:
        (length,) = w.LENGTH.unpack_from(inp, at)
        if length > SEGMENT_MAX or at + 4 + length > len(inp):
            break
        at += 4 + length
    return at


def read_header(out: bytes) -> Header:
    """The header of a record's first segment, sealed or not."""
    return _header(out.partition(b"\n")[0])


# --- one piece each ---------------------------------------------------------------------------------------------------


def _lines(out: bytes, where: str) -> list[bytes]:
    if not out.endswith(b"\n"):
        raise RecordInvalid(Fault.TORN, where)
    return out[:-1].split(b"\n")


def _misplaced(lines: list[bytes], chain: bytes) -> Fault:
    """Why a segment's first line is not the one expected: another place in the order, another session, or no such line."""
    if not lines or not lines[0].startswith(w.SEG):
        return Fault.BAD_LINE
    value = _object(lines[0].removeprefix(w.SEG), "")
    return Fault.OTHER_SESSION if value.get("prev") != chain.hex() and value.get("n") == 1 else Fault.ORDER


def _object(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object in its one canonical form."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RecordInvalid(Fault.BAD_LINE, where) from None
    try:
        if not isinstance(value, dict) or canonical_json(value) != text:
            raise RecordInvalid(Fault.NOT_CANONICAL, where)
    except ValueError:
        raise RecordInvalid(Fault.NOT_CANONICAL, where) from None
    return value


def _header(line: bytes) -> Header:
    value = _object(line, "header")
    try:
        tower, term = value["tower"], value["term"]
        header = Header(
            sid=tower["sid"],
            request_digest=tower["request"],
            cols=term["cols"],
            rows=term["rows"],
            started_at=datetime.fromtimestamp(value["timestamp"], tz=UTC),
        )
        exact = isinstance(header.sid, str) and isinstance(header.request_digest, str) and w.header_line(header) == line + b"\n"
    except (KeyError, TypeError, ValueError, OverflowError, OSError, AttributeError):
        raise RecordInvalid(Fault.BAD_HEADER, "header") from None
    if not exact:
        raise RecordInvalid(Fault.BAD_HEADER, "header")
    return header


def _events(lines: list[bytes], at_us: int, where: str) -> tuple[list[Event], int]:
    events: list[Event] = []
    exact: bytes | None = None
    for index, line in enumerate(lines):
        here = f"{where}, line {index + 2}"
        if exact is None and line.startswith(w.EXACT):
            exact = line
            continue
        event = _event(line, exact, at_us, here)
        exact, at_us = None, event.at_us
        events.append(event)
    if exact is not None:
        raise RecordInvalid(Fault.BAD_LINE, where)
    return events, at_us


def _event(line: bytes, exact: bytes | None, at_us: int, where: str) -> Event:
    """One event line, with the `#b` line before it; read, written again, compared."""
    found = _EVENT.fullmatch(line)
    if found is None:
        raise RecordInvalid(Fault.AFTER_SEAL if line.startswith(w.SEAL) else Fault.BAD_LINE, where)
    seconds = _INTERVAL.fullmatch(found[1])
    try:
        text = json.loads(found[3])
    except ValueError:
        raise RecordInvalid(Fault.BAD_LINE, where) from None
    code = found[2].decode()
    if seconds is None or (exact is not None and code != "o"):
        raise RecordInvalid(Fault.BAD_LINE, where)
    micros = int(seconds[1]) * 1_000_000 + int(seconds[2])
    try:
        data = (
            b""
            if code != "o"
            else text.encode()
            if exact is None
            else base64.b64decode(exact.removeprefix(w.EXACT), validate=True)
        )
        again = w.output_lines(micros, data) if code == "o" else w.event_line(micros, code, text)
    except ValueError:
        raise RecordInvalid(Fault.NOT_CANONICAL, where) from None
    if again != (b"" if exact is None else exact + b"\n") + line + b"\n":
        raise RecordInvalid(Fault.NOT_CANONICAL, where)
    return Event(at_us=at_us + micros, code=code, text=text, data=data)


def _exact(line: bytes) -> bytes:
    return base64.b64decode(line.removeprefix(w.EXACT), validate=True)


def _seal(line: bytes, where: str) -> dict[str, Any]:
    value = _object(line.removeprefix(w.SEAL), where)
    end = value.get("end")
    shape = {name: type(item) for name, item in value.items() if name != "end"}
    if shape != _SEAL_SHAPE or "end" not in value or not (end is None or _is_end(end)):
        raise RecordInvalid(Fault.BAD_LINE, where)
    if not all(re.fullmatch("[0-9a-f]{64}", value[name]) for name in ("chain", "in_sha256", "out_sha256")):
        raise RecordInvalid(Fault.BAD_LINE, where)
    return value


_SEAL_SHAPE = {"chain": str, "events": int, "in_bytes": int, "in_sha256": str, "n": int, "out_bytes": int, "out_sha256": str}


def _is_end(end: object) -> bool:
    return isinstance(end, dict) and {name: type(item) for name, item in end.items()} == {"cut": bool, "reason": str}


def _input(inp: bytes, sid: str, number: int, where: str) -> tuple[bytes, tuple[bytes, ...]]:
    line, newline, _ = inp.partition(b"\n")
    value = _object(line, where)
    try:
        wrapped = base64.b64decode(value["key"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise RecordInvalid(Fault.BAD_INPUT, where) from None
    header = w.input_header(sid, number, wrapped)
    if not newline or line + b"\n" != header:
        raise RecordInvalid(Fault.BAD_INPUT, where)
    if whole_inputs(inp, header) != len(inp):
        raise RecordInvalid(Fault.BAD_INPUT, where)
    records, at = [], len(header)
    while at < len(inp):
        (length,) = w.LENGTH.unpack_from(inp, at)
        records.append(inp[at + 4 : at + 4 + length])
        at += 4 + length
    return wrapped, tuple(records)


def _typed(plain: bytes, where: str) -> Iterator[Typed]:
    at = 0
    while at < len(plain):
        if len(plain) - at < w.ENTRY.size:
            raise RecordInvalid(Fault.BAD_INPUT, where)
        at_us, kind, length = w.ENTRY.unpack_from(plain, at)
        at += w.ENTRY.size
        if kind not in set(Kind) or at + length > len(plain):
            raise RecordInvalid(Fault.BAD_INPUT, where)
        yield Typed(at_us=at_us, kind=Kind(kind), data=plain[at : at + length])
        at += length
