"""Layer 7. The record, written: every byte in both lanes, exact, in segments whose hashes hang on each other. Pure.

The format is `spec/record.md`. Must never: say that a byte is covered before the line that holds it is returned, put a keystroke
into the output lane, or hold a clock: times come in, in microseconds since the record began.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from breakglass.core.model import canonical_json

FORMAT: Final = 1
PIECE_MAX: Final = 64 << 10
"""Bytes of one output event or one input entry; what is longer is more of them."""
SEGMENT_OUTPUT: Final = 256 << 10
"""Terminal output of a segment; it is cut behind the event that reaches it."""
SEGMENT_SIZE: Final = 1 << 20
"""Both objects of a segment together; likewise."""
SEGMENT_US: Final = 5_000_000
"""From a segment's first event or input to its cut."""
MARKER_MAX: Final = 4 << 10
KEY_BYTES: Final = 32
PAD: Final = 64
"""Plaintext of input is a multiple of this, so that a record's length says little about what was typed."""
SEG: Final = b"# tower:seg "
SEAL: Final = b"# tower:seal "
EXACT: Final = b"#b "
ENTRY: Final = struct.Struct(">QBI")
REASON: Final = re.compile("[a-z0-9_]{1,64}")
_START: Final = b"tower record v1 start\n"
_CHAIN: Final = b"tower record v1 chain\n"
_INPUT: Final = "tower record v1 input"
_ASCII: Final = bytes(byte if byte < 0x80 else ord("?") for byte in range(256))
_json_string: Final = json.JSONEncoder(ensure_ascii=False).encode


class Kind(IntEnum):
    """Who sent input: the person, or Tower for them."""

    TYPED = 1
    TOWER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a record says about itself in its first line; the moment it began counts in whole seconds."""

    sid: str
    request_digest: str
    cols: int
    rows: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a record ends: the session's reason, and whether its tail was cut by a crash."""

    reason: str
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """One piece of input and when it came, microseconds since the record began."""

    at_us: int
    kind: Kind
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What is in a segment: events of the output lane, terminal bytes they hold, records of the input lane."""

    events: int
    out_bytes: int
    inputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a segment's seal line says."""

    number: int
    out_sha256: bytes
    in_sha256: bytes
    counts: Counts
    end: End | None
    chain: bytes


class Lines(NamedTuple):
    """Bytes to append to the output object, and the terminal bytes that are in the record once those are durable."""

    out: bytes
    covered: bytes = b""


def segment_name(number: int) -> str:
    """The common name of a segment's two objects: `seg-000001`, then `.cast` and `.in`."""
    return f"seg-{number:06d}"


def pieces(data: bytes) -> Iterator[bytes]:
    """`data` cut into what fits one event or one entry."""
    return (data[at : at + PIECE_MAX] for at in range(0, len(data), PIECE_MAX))


def digest(data: bytes) -> bytes:
    """SHA-256: of an object up to its seal line, or of an input object."""
    return hashlib.sha256(data).digest()


# --- the chain --------------------------------------------------------------------------------------------------------


def first_link(header: Header) -> bytes:
    """What the first segment hangs on: the header line, so that no segment can move to another session."""
    return hashlib.sha256(_START + header_line(header)).digest()


def sealed(prev: bytes, number: int, digests: tuple[bytes, bytes], counts: Counts, end: End | None) -> Seal:
    """The seal of a segment: its link is SHA-256 over the link before and all else the seal line says."""
    fields = _seal_fields(number, digests, counts, end)
    chain = hashlib.sha256(_CHAIN + prev + canonical_json(fields)).digest()
    return Seal(number=number, out_sha256=digests[0], in_sha256=digests[1], counts=counts, end=end, chain=chain)


def _seal_fields(number: int, digests: tuple[bytes, bytes], counts: Counts, end: End | None) -> dict[str, object]:
    return {
        "end": None if end is None else {"cut": end.cut, "reason": end.reason},
        "events": counts.events,
        "in_sha256": digests[1].hex(),
        "inputs": counts.inputs,
        "n": number,
        "out_bytes": counts.out_bytes,
        "out_sha256": digests[0].hex(),
    }


# --- lines of the output lane -----------------------------------------------------------------------------------------


def header_line(header: Header) -> bytes:
    """The asciicast v3 header (docs.asciinema.org/manual/asciicast/v3): players ignore the key `tower`."""
    value = {
        "term": {"cols": header.cols, "rows": header.rows},
        "timestamp": int(header.started_at.timestamp()),
        "title": f"tower session {header.sid}",
        "tower": {"format": FORMAT, "request": header.request_digest, "sid": header.sid},
        "version": 3,
    }
    return canonical_json(value) + b"\n"


def seg_line(number: int, prev: bytes) -> bytes:
    """A segment's first line (its second in segment 1, behind the header)."""
    return SEG + canonical_json({"n": number, "prev": prev.hex()}) + b"\n"


def seal_line(seal: Seal) -> bytes:
    """A segment's last line."""
    fields = _seal_fields(seal.number, (seal.out_sha256, seal.in_sha256), seal.counts, seal.end)
    return SEAL + canonical_json({**fields, "chain": seal.chain.hex()}) + b"\n"


def event_line(micros: int, code: str, text: str) -> bytes:
    """One asciicast v3 event. The interval since the event before has exactly six decimals: one form, and no drift."""
    return f'[{micros // 1_000_000}.{micros % 1_000_000:06d}, "{code}", {_json_string(text)}]\n'.encode()


def output_lines(micros: int, data: bytes) -> bytes:
    """An `o` event; bytes that are not UTF-8 stand before it, exact, in a comment that players skip."""
    try:
        return event_line(micros, "o", data.decode())
    except UnicodeDecodeError:
        return EXACT + base64.b64encode(data) + b"\n" + event_line(micros, "o", lossy(data))


def lossy(data: bytes) -> str:
    """What a player shows of bytes that are not UTF-8. With a zero byte among them it is binary: ASCII and `?` (3× faster);
    else U+FFFD for each maximal part that is no character (Unicode, 3.9, "substitution of maximal subparts").
    """
    return data.translate(_ASCII).decode("ascii") if 0 in data else data.decode(errors="replace")


def unfinished(data: bytes) -> int:
    """How many bytes at the end are the beginning of a UTF-8 sequence that is not complete (0–3; RFC 3629)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if 0xF0 <= byte <= 0xF4 else 3 if 0xE0 <= byte < 0xF0 else 2 if 0xC2 <= byte < 0xE0 else 0
        return back if back < length else 0
    return 0


# --- lines of the input lane ------------------------------------------------------------------------------------------


def input_header(sid: str, number: int, wrapped_key: bytes) -> bytes:
    """The first line of a segment's input object; in segment 1 with the age-wrapped key that opens the lane."""
    value: dict[str, object] = {"format": FORMAT, "n": number, "sid": sid}
    if number == 1:
        value["key"] = base64.b64encode(wrapped_key).decode()
    return canonical_json(value) + b"\n"


def input_nonce(counter: int) -> bytes:
    """A record's nonce: its number among all input records of the session, from 1. The key serves one session only."""
    return counter.to_bytes(12, "big")


def input_aad(sid: str, number: int, counter: int) -> bytes:
    """What an input record is bound to besides the key: session, segment and its place."""
    return canonical_json([_INPUT, sid, number, counter])


def pack_typed(entries: Sequence[Typed]) -> bytes:
    """The plaintext of an input record: (time µs, kind, length, bytes) one after another, then zeros up to a multiple of 64."""
    plain = b"".join(ENTRY.pack(entry.at_us, entry.kind, len(entry.data)) + entry.data for entry in entries)
    return plain + bytes(-len(plain) % PAD)


def sealed_line(record: bytes) -> bytes:
    """A sealed input record as it stands in the input object."""
    return base64.b64encode(record) + b"\n"


class Writer:
    """Turns what happens into lines to append to a segment's two objects. One a session; the caller makes them durable.

    Order of calls: `begin`, then events, then `seal`, then `begin` again or, after an end, nothing. Times must not run
    backwards; one that does counts as the one before. Sizes beyond the format's are a `ValueError`.
    """

    def __init__(self, header: Header, *, key: bytes, wrapped_key: bytes) -> None:
        """`key`: 32 fresh random bytes, only ever in memory; `wrapped_key`: the same, age-encrypted to the reviewers."""
        if len(key) != KEY_BYTES:
            raise ValueError("the input key has 32 bytes")
        self._header = header
        self._aead = ChaCha20Poly1305(key)
        self._wrapped = wrapped_key
        self._prev = first_link(header)
        self._counter = 0
        self._last_us = 0
        self._held = b""
        self._first_us: int | None = None
        self.number = 0
        self.output_bytes = 0

    @property
    def holding(self) -> bool:
        """Whether the beginning of a character is held back."""
        return bool(self._held)

    @property
    def due_us(self) -> int | None:
        """When the open segment is to be cut for its age; None while nothing is in it."""
        return None if self._first_us is None else self._first_us + SEGMENT_US

    def due(self, at_us: int) -> bool:
        """Whether the open segment is to be cut now, for its size or its age."""
        if self._first_us is None:
            return False
        return self._out_bytes >= SEGMENT_OUTPUT or self._size >= SEGMENT_SIZE or at_us - self._first_us >= SEGMENT_US

    def begin(self) -> tuple[bytes, bytes]:
        """The first lines of the next segment's output and input objects."""
        self.number += 1
        self._out, self._in = hashlib.sha256(), hashlib.sha256()
        self._first_us = None
        self._size = self._out_bytes = self._events = self._inputs = 0
        head = header_line(self._header) if self.number == 1 else b""
        first = input_header(self._header.sid, self.number, self._wrapped)
        self._in.update(first)
        return self._wrote(head + seg_line(self.number, self._prev)), first

    def output(self, data: bytes, at_us: int) -> Lines:
        """An `o` event of at most 64 KiB; the beginning of a UTF-8 sequence at its end waits for the rest."""
        if len(data) > PIECE_MAX:
            raise ValueError("an output event holds at most 64 KiB")
        data = self._held + data
        end = len(data) - unfinished(data)
        self._held = data[end:]
        return self._record(data[:end], at_us)

    def flush(self, at_us: int) -> Lines:
        """As `output`, for what is held back: nothing followed it. Before resize, marker, exit and the end."""
        data, self._held = self._held, b""
        return self._record(data, at_us)

    def resize(self, cols: int, rows: int, at_us: int) -> Lines:
        """An `r` event, `COLSxROWS`, each 1–65535."""
        if not (0 < cols < 1 << 16 and 0 < rows < 1 << 16):
            raise ValueError("a terminal has 1–65535 columns and rows")
        return self._event("r", f"{cols}x{rows}", at_us)

    def marker(self, label: str, at_us: int) -> Lines:
        """An `m` event: something happened that is not output. Cut at 4096 characters; what is no Unicode becomes `?`."""
        return self._event("m", label[:MARKER_MAX].encode(errors="replace").decode(), at_us)

    def exit(self, status: int, at_us: int) -> Lines:
        """An `x` event: a shell's exit status, 0–255."""
        if not 0 <= status <= 255:
            raise ValueError("an exit status is 0–255")
        return self._event("x", str(status), at_us)

    def input(self, entries: Sequence[Typed]) -> bytes:
        """One line of the input object: at least one entry, each of 1 byte to 64 KiB, sealed as one record."""
        if not entries or not all(0 < len(entry.data) <= PIECE_MAX for entry in entries):
            raise ValueError("an input record holds entries of 1 byte to 64 KiB")
        self._counter += 1
        self._inputs += 1
        self._began(entries[0].at_us)
        aad = input_aad(self._header.sid, self.number, self._counter)
        line = sealed_line(self._aead.encrypt(input_nonce(self._counter), pack_typed(entries), aad))
        self._in.update(line)
        self._size += len(line)
        return line

    def seal(self, end: End | None = None) -> tuple[bytes, Seal]:
        """The open segment's last line. What is held back goes into the next segment; before an end, flush."""
        if end is not None and (self._held or REASON.fullmatch(end.reason) is None):
            raise ValueError("a record ends with a word, and without bytes held back")
        counts = Counts(events=self._events, out_bytes=self._out_bytes, inputs=self._inputs)
        seal = sealed(self._prev, self.number, (self._out.digest(), self._in.digest()), counts, end)
        self._prev = seal.chain
        return seal_line(seal), seal

    def _record(self, data: bytes, at_us: int) -> Lines:
        if not data:
            return Lines(b"")
        self.output_bytes += len(data)
        self._out_bytes += len(data)
        return Lines(self._wrote(output_lines(self._since(at_us), data)), data)

    def _event(self, code: str, text: str, at_us: int) -> Lines:
        flushed = self.flush(at_us)
        line = self._wrote(event_line(self._since(at_us), code, text))
        return Lines(flushed.out + line, flushed.covered)

    def _since(self, at_us: int) -> int:
        since = max(0, at_us - self._last_us)
        self._last_us += since
        self._events += 1
        self._began(at_us)
        return since

    def _began(self, at_us: int) -> None:
        if self._first_us is None:
            self._first_us = at_us

    def _wrote(self, lines: bytes) -> bytes:
        self._out.update(lines)
        self._size += len(lines)
        return lines
