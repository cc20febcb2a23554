"""Layer 7. The record, read: canonical or rejected, segment by segment in bounded memory, every fault named. Pure.

The format is `spec/record.md`. Must never: mend, skip or guess; what `Writer` would not have written is not a record.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from breakglass.core import record as w
from breakglass.core.model import canonical_json, is_sid
from breakglass.core.record import Counts, End, Header, Kind, Seal, Typed

OBJECT_MAX: Final = 4 << 20
"""Bytes of a segment's output or input object: a reader need not hold more at once."""
META_MAX: Final = 64 << 10
"""Bytes of a line that is JSON of ours (header, seg, seal, input header)."""
_EVENT: Final = re.compile(r'\[(0|[1-9][0-9]{0,9})\.([0-9]{6}), "([ormx])", (".*")\]', re.DOTALL)
_SIZE: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_STATUS: Final = re.compile(r"0|[1-9][0-9]{0,2}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HEX: Final = re.compile(r"[0-9a-f]{64}")


class Fault(StrEnum):
    """What is wrong with a record (`spec/record.md`, section 7)."""

    TOO_LONG = "too_long"
    TORN = "torn"
    BAD_HEADER = "bad_header"
    BAD_LINE = "bad_line"
    NOT_CANONICAL = "not_canonical"
    NO_SEAL = "no_seal"
    ORDER = "order"
    LINK = "link"
    OTHER_SESSION = "other_session"
    OUT_DIGEST = "out_digest"
    IN_DIGEST = "in_digest"
    CHAIN = "chain"
    COUNTS = "counts"
    AFTER_END = "after_end"
    NO_END = "no_end"
    BAD_INPUT = "bad_input"
    INPUT_SEALED_OTHERWISE = "input_sealed_otherwise"


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
    """One segment whose lines and digests hold. `inputs` are sealed records, None when its input object was not at hand."""

    number: int
    events: tuple[Event, ...] = field(repr=False)
    seal: Seal
    wrapped_key: bytes | None = field(repr=False)
    inputs: tuple[bytes, ...] | None = field(repr=False)


class Reader:
    """Reads segments in their order and holds on to the chain. One a record; after a fault it goes no further."""

    def __init__(self, sid: str | None = None) -> None:
        """`sid`: whose record it has to be, where the caller knows."""
        self.header: Header | None = None
        self.number = 0
        self.chain = b""
        self.at_us = 0
        self.end: End | None = None
        self.output_bytes = 0
        self.inputs = 0
        self._sid = sid

    def segment(self, out: bytes, inp: bytes | None) -> Segment:
        """The next segment: its output object, and its input object where that is at hand.

        1. It is not behind the end, and bounded. 2. The header (segment 1), then its place: this number, behind this link. 3. A
        seal, and between the two nothing but lines the writer would have written. 4. The seal's digests are those of the
        bytes. 5. Its link follows from it and the link before. 6. Its counts are those of the lines. 7. The input object is
        this segment's. Whether the record is *complete* is `finish`'s to say, what was typed `decrypt_input`'s; who made the
        record is not to be seen from it (signature and anchor, `verify`).
        """
        number = self.number + 1
        where = f"segment {number}"
        if self.end is not None:  # (1)
            raise RecordInvalid(Fault.AFTER_END, where)
        lines = _lines(out, where)
        header, prev, lines = self._place(lines, number, where)  # (2)
        seal = _seal(lines[-1] if lines else b"", where)  # (3)
        events, at_us = _events(lines[:-1], self.at_us, where)
        inside = hashlib.sha256(out[: -len(lines[-1]) - 1]).digest()
        if seal.out_sha256 != inside:  # (4)
            raise RecordInvalid(Fault.OUT_DIGEST, where)
        if inp is not None and seal.in_sha256 != hashlib.sha256(inp).digest():
            raise RecordInvalid(Fault.IN_DIGEST, where)
        if seal.number != number or seal != w.sealed(prev, number, (inside, seal.in_sha256), seal.counts, seal.end):  # (5)
            raise RecordInvalid(Fault.CHAIN, where)
        shown = sum(len(event.data) for event in events)
        if (seal.counts.events, seal.counts.out_bytes) != (len(events), shown):  # (6)
            raise RecordInvalid(Fault.COUNTS, where)
        wrapped, inputs = (None, None) if inp is None else _input(inp, header.sid, number, where)  # (7)
        if inputs is not None and seal.counts.inputs != len(inputs):
            raise RecordInvalid(Fault.COUNTS, where)
        self.header, self.number, self.chain, self.end, self.at_us = header, number, seal.chain, seal.end, at_us
        self.output_bytes += shown
        self.inputs += seal.counts.inputs
        return Segment(number=number, events=tuple(events), seal=seal, wrapped_key=wrapped, inputs=inputs)

    def finish(self) -> End:
        """The record's end; without one it is torn, still being written, or somebody took its last segments."""
        if self.end is None:
            raise RecordInvalid(Fault.NO_END, f"after segment {self.number}")
        return self.end

    def _place(self, lines: list[bytes], number: int, where: str) -> tuple[Header, bytes, list[bytes]]:
        """(2) The header, the link before, and the lines behind the seg line."""
        header, prev = self.header, self.chain
        if number == 1:
            header = _header(lines[0])
            if self._sid is not None and header.sid != self._sid:
                raise RecordInvalid(Fault.OTHER_SESSION, where)
            prev, lines = w.first_link(header), lines[1:]
        if header is None or not lines or not lines[0].startswith(w.SEG):
            raise RecordInvalid(Fault.BAD_LINE, where)
        if lines[0] + b"\n" != w.seg_line(number, prev):
            value = _object(lines[0].removeprefix(w.SEG), where)
            raise RecordInvalid(Fault.ORDER if value.get("n") != number else Fault.LINK, where)
        return header, prev, lines[1:]


def decrypt_input(segments: Iterable[Segment], sid: str, key: bytes) -> Iterator[Typed]:
    """What was typed, on the reviewer's side: every input record in order under the session key.

    All segments from the first are needed. A record that was dropped, swapped or taken from elsewhere does not open:
    `RecordInvalid(input_sealed_otherwise)`; one that opens and is not canonical: `bad_input`.
    """
    aead = ChaCha20Poly1305(key)
    counter = at_us = 0
    for segment in segments:
        where = f"segment {segment.number}, input"
        if segment.inputs is None:
            raise RecordInvalid(Fault.BAD_INPUT, where)
        for one in segment.inputs:
            counter += 1
            try:
                plain = aead.decrypt(w.input_nonce(counter), one, w.input_aad(sid, segment.number, counter))
            except InvalidTag:
                raise RecordInvalid(Fault.INPUT_SEALED_OTHERWISE, where) from None
            for typed in _typed(plain, where):
                if typed.at_us < at_us:
                    raise RecordInvalid(Fault.BAD_INPUT, where)
                at_us = typed.at_us
                yield typed


def plain_key(opened: bytes) -> bytes:
    """The session key, from what age opened."""
    if len(opened) != w.KEY_BYTES:
        raise RecordInvalid(Fault.BAD_INPUT, "the wrapped key")
    return opened


# --- after a crash ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What of an unsealed segment is whole: the lengths of both objects' prefixes, and what they hold."""

    header: Header
    prev: bytes
    out_size: int
    in_size: int
    counts: Counts


def whole(out: bytes, inp: bytes, reader: Reader) -> Whole | None:
    """The longest prefixes of whole valid lines of the unsealed segment behind `reader`. None when not even the record's own
    first lines are there: then nothing of it was ever shown. A `#b` line without its `o` line is not whole.
    """
    number = reader.number + 1
    header, prev = reader.header, reader.chain
    head = w.seg_line(number, prev)
    if header is None:
        try:
            header = _header(out.partition(b"\n")[0])
            _input(inp[: inp.find(b"\n") + 1], header.sid, number, "")
        except RecordInvalid:
            return None
        prev = w.first_link(header)
        head = w.header_line(header) + w.seg_line(number, prev)
        if not out.startswith(head):
            return None
    out_size, events, out_bytes = _whole_events(out, head)
    in_size, inputs = _whole_inputs(inp, header.sid, number)
    counts = Counts(events=events, out_bytes=out_bytes, inputs=inputs)
    return Whole(header=header, prev=prev, out_size=out_size, in_size=in_size, counts=counts)


def _whole_events(out: bytes, head: bytes) -> tuple[int, int, int]:
    if not out.startswith(head):
        return 0, 0, 0
    good = at = len(head)
    events = out_bytes = 0
    exact: bytes | None = None
    while (stop := out.find(b"\n", at)) >= 0:
        line = out[at:stop]
        try:
            if exact is None and line.startswith(w.EXACT):
                exact = line
            else:
                event = _event(line, exact, 0, "")
                good, events, out_bytes, exact = stop + 1, events + 1, out_bytes + len(event.data), None
        except RecordInvalid:
            break
        at = stop + 1
    return good, events, out_bytes


def _whole_inputs(inp: bytes, sid: str, number: int) -> tuple[int, int]:
    good = inp.find(b"\n") + 1
    try:
        _input(inp[:good], sid, number, "")
    except RecordInvalid:
        return 0, 0
    inputs = 0
    while (stop := inp.find(b"\n", good)) >= 0 and _sealed_record(inp[good:stop]) is not None:
        good, inputs = stop + 1, inputs + 1
    return good, inputs


# --- one piece each ---------------------------------------------------------------------------------------------------


def _lines(data: bytes, where: str) -> list[bytes]:
    """Lines end in LF and in nothing else; U+2028 and the like are text."""
    if len(data) > OBJECT_MAX:
        raise RecordInvalid(Fault.TOO_LONG, where)
    if not data.endswith(b"\n"):
        raise RecordInvalid(Fault.TORN, where)
    return data[:-1].split(b"\n")


def _object(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object in its one canonical form."""
    if len(text) > META_MAX:
        raise RecordInvalid(Fault.TOO_LONG, where)
    try:
        value = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise RecordInvalid(Fault.BAD_LINE, where) from None
    try:
        if not isinstance(value, dict) or canonical_json(value) != text:
            raise RecordInvalid(Fault.NOT_CANONICAL, where)
    except (ValueError, RecursionError):
        raise RecordInvalid(Fault.NOT_CANONICAL, where) from None
    return value


def _header(line: bytes) -> Header:
    try:
        value = _object(line, "header")
        tower, term = value["tower"], value["term"]
        header = Header(
            sid=tower["sid"],
            request_digest=tower["request"],
            cols=term["cols"],
            rows=term["rows"],
            started_at=datetime.fromtimestamp(value["timestamp"], tz=UTC),
        )
        sound = (
            is_sid(header.sid)
            and _DIGEST.fullmatch(header.request_digest) is not None
            and all(type(size) is int and 0 < size < 1 << 16 for size in (header.cols, header.rows))
            and w.header_line(header) == line + b"\n"
        )
    except (RecordInvalid, KeyError, TypeError, ValueError, OverflowError, OSError, AttributeError):
        raise RecordInvalid(Fault.BAD_HEADER, "header") from None
    if not sound:
        raise RecordInvalid(Fault.BAD_HEADER, "header")
    return header


def _events(lines: list[bytes], at_us: int, where: str) -> tuple[list[Event], int]:
    events: list[Event] = []
    exact: bytes | None = None
    for index, line in enumerate(lines):
        if exact is None and line.startswith(w.EXACT):
            exact = line
            continue
        event = _event(line, exact, at_us, f"{where}, event line {index + 1}")
        exact, at_us = None, event.at_us
        events.append(event)
    if exact is not None:
        raise RecordInvalid(Fault.BAD_LINE, where)
    return events, at_us


def _event(line: bytes, exact: bytes | None, at_us: int, where: str) -> Event:
    """One event line, with the `#b` line before it: read, written again, compared."""
    try:
        found = _EVENT.fullmatch(line.decode())
        if found is None:
            raise RecordInvalid(Fault.BAD_LINE, where)
        micros, code, text = int(found[1]) * 1_000_000 + int(found[2]), found[3], json.loads(found[4])
        data = b""
        if code == "o":
            data = text.encode() if exact is None else base64.b64decode(exact.removeprefix(w.EXACT), validate=True)
    except ValueError:  # not UTF-8, no JSON, a lone surrogate, no base64
        raise RecordInvalid(Fault.BAD_LINE, where) from None
    if not _sound(code, text, data, exact):
        raise RecordInvalid(Fault.BAD_LINE, where)
    again = w.output_lines(micros, data) if code == "o" else w.event_line(micros, code, text)
    if again != (b"" if exact is None else exact + b"\n") + line + b"\n":
        raise RecordInvalid(Fault.NOT_CANONICAL, where)
    return Event(at_us=at_us + micros, code=code, text=text, data=data)


def _sound(code: str, text: str, data: bytes, exact: bytes | None) -> bool:
    """Whether an event says something that its code may say."""
    if code == "o":
        return 0 < len(data) <= w.PIECE_MAX + 3
    if exact is not None or any("\ud800" <= char <= "\udfff" for char in text):
        return False
    if code == "r":
        size = _SIZE.fullmatch(text)
        return size is not None and int(size[1]) < 1 << 16 and int(size[2]) < 1 << 16
    if code == "x":
        return _STATUS.fullmatch(text) is not None and int(text) <= 255
    return len(text) <= w.MARKER_MAX


def _seal(line: bytes, where: str) -> Seal:
    if not line.startswith(w.SEAL):
        raise RecordInvalid(Fault.NO_SEAL, where)
    value = _object(line.removeprefix(w.SEAL), where)
    end = value.pop("end", "")
    if {name: type(item) for name, item in value.items()} != _SEAL_SHAPE or not (end is None or _is_end(end)):
        raise RecordInvalid(Fault.BAD_LINE, where)
    if not all(_HEX.fullmatch(value[name]) for name in ("chain", "in_sha256", "out_sha256")):
        raise RecordInvalid(Fault.BAD_LINE, where)
    return Seal(
        number=value["n"],
        out_sha256=bytes.fromhex(value["out_sha256"]),
        in_sha256=bytes.fromhex(value["in_sha256"]),
        counts=Counts(events=value["events"], out_bytes=value["out_bytes"], inputs=value["inputs"]),
        end=None if end is None else End(reason=end["reason"], cut=end["cut"]),
        chain=bytes.fromhex(value["chain"]),
    )


_SEAL_SHAPE = {"chain": str, "events": int, "in_sha256": str, "inputs": int, "n": int, "out_bytes": int, "out_sha256": str}


def _is_end(end: object) -> bool:
    if not isinstance(end, dict) or {name: type(item) for name, item in end.items()} != {"cut": bool, "reason": str}:
        return False
    return w.REASON.fullmatch(end["reason"]) is not None


def _input(inp: bytes, sid: str, number: int, where: str) -> tuple[bytes | None, tuple[bytes, ...]]:
    """An input object: its header line, then one sealed record a line, base64."""
    first, *rest = _lines(inp, where)
    value = _object(first, where)
    try:
        wrapped = base64.b64decode(value["key"], validate=True) if number == 1 else None
    except (KeyError, TypeError, ValueError):
        raise RecordInvalid(Fault.BAD_INPUT, where) from None
    if first + b"\n" != w.input_header(sid, number, wrapped or b""):
        other = value.get("sid") != sid
        raise RecordInvalid(Fault.OTHER_SESSION if other else Fault.BAD_INPUT, where)
    records = [_sealed_record(line) for line in rest]
    found = tuple(record for record in records if record is not None)
    if len(found) != len(records):
        raise RecordInvalid(Fault.BAD_INPUT, where)
    return wrapped, found


def _sealed_record(line: bytes) -> bytes | None:
    """An AEAD record from its line: padded plaintext and a tag of 16 bytes, in canonical base64 (RFC 4648, section 4)."""
    try:
        record = base64.b64decode(line, validate=True)
    except ValueError:
        return None
    sound = len(record) >= w.PAD + 16 and len(record) % w.PAD == 16 and base64.b64encode(record) == line
    return record if sound else None


def _typed(plain: bytes, where: str) -> Iterator[Typed]:
    """The entries of an opened record; the rest, less than 64 bytes, is zero."""
    entries: list[Typed] = []
    at = 0
    while len(plain) - at >= w.ENTRY.size and any(plain[at : at + w.PAD]):
        at_us, kind, length = w.ENTRY.unpack_from(plain, at)
        at += w.ENTRY.size
        if kind not in set(Kind) or not 0 < length <= w.PIECE_MAX or at + length > len(plain):
            raise RecordInvalid(Fault.BAD_INPUT, where)
        entries.append(Typed(at_us=at_us, kind=Kind(kind), data=plain[at : at + length]))
        at += length
    if not entries or w.pack_typed(entries) != plain:
        raise RecordInvalid(Fault.BAD_INPUT, where)
    yield from entries
