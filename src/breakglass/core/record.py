"""Layer 7. The record, written: every byte in both lanes, exact, in segments whose hashes hang on each other. Pure.

The format is `spec/record.md`. Must never: say that a byte is covered before the line that holds it is returned, put a keystroke
into the output lane, or hold a clock: times come in, in microseconds since the record began.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from breakglass.core.model import canonical_json

FORMAT: Final = 1
SEGMENT_BYTES: Final = 256 << 10
SEGMENT_US: Final = 5_000_000
KEY_BYTES: Final = 32
SEG: Final = b"# tower:seg "
SEAL: Final = b"# tower:seal "
EXACT: Final = b"#b "
ENTRY: Final = struct.Struct(">QBI")
LENGTH: Final = struct.Struct(">I")
_CHAIN: Final = b"tower record v1 chain\n"
_START: Final = b"tower record v1 start\n"


class Kind(IntEnum):
    """Who sent input: the person, or Tower for them."""

    TYPED = 1
    TOWER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a record says about itself in its first line."""

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
class Seal:
    """A sealed segment: what its seal line says."""

    number: int
    out_sha256: bytes
    in_sha256: bytes
    chain: bytes
    end: End | None


def segment_name(number: int) -> str:
    """The common name of a segment's two objects: `seg-000001`, then `.cast` and `.in`."""
    return f"seg-{number:06d}"


def first_link(sid: str, request_digest: str) -> bytes:
    """What the first segment hangs on: this session and this request, so that segments cannot move between sessions."""
    return hashlib.sha256(_START + canonical_json([sid, request_digest])).digest()


def link(prev: bytes, number: int, out_sha256: bytes, in_sha256: bytes, end: End | None) -> bytes:
    """The chain after a segment: SHA-256 over the domain, the link before, the number, both lanes' digests and the end."""
    over = hashlib.sha256(canonical_json(end_json(end))).digest()
    return hashlib.sha256(_CHAIN + prev + number.to_bytes(8, "big") + out_sha256 + in_sha256 + over).digest()


def end_json(end: End | None) -> dict[str, str | bool] | None:
    """The end as it stands in a seal line."""
    return None if end is None else {"cut": end.cut, "reason": end.reason}


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


def seal_line(seal: Seal, *, events: int, output_bytes: int, in_bytes: int) -> bytes:
    """A segment's last line; `events` and byte counts are for readers in a hurry and are checked like the rest."""
    value = {
        "chain": seal.chain.hex(),
        "end": end_json(seal.end),
        "events": events,
        "in_bytes": in_bytes,
        "in_sha256": seal.in_sha256.hex(),
        "n": seal.number,
        "out_bytes": output_bytes,
        "out_sha256": seal.out_sha256.hex(),
    }
    return SEAL + canonical_json(value) + b"\n"


def interval(micros: int) -> str:
    """Seconds with exactly six decimals: one form for one number, and no drift, for they are differences of integers."""
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"


def event_line(micros: int, code: str, text: str) -> bytes:
    """One asciicast v3 event; the interval is relative to the event before."""
    return f"[{interval(micros)}, {json.dumps(code)}, {json.dumps(text, ensure_ascii=False)}]\n".encode()


def output_lines(micros: int, data: bytes) -> bytes:
    """An `o` event; bytes that are not UTF-8 stand before it, exact, in a comment that players skip."""
    try:
        return event_line(micros, "o", data.decode())
    except UnicodeDecodeError:
        return EXACT + base64.b64encode(data) + b"\n" + event_line(micros, "o", data.decode(errors="replace"))


def unfinished(data: bytes) -> int:
    """How many bytes at the end are the beginning of a UTF-8 sequence that is not complete (0–3; RFC 3629)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if back < length <= 4 and byte < 0xF8 else 0
    return 0


def input_header(sid: str, number: int, wrapped_key: bytes) -> bytes:
    """The first line of a segment's input object: whose it is, and the age-wrapped key that opens it."""
    value = {"format": FORMAT, "key": base64.b64encode(wrapped_key).decode(), "n": number, "sid": sid}
    return canonical_json(value) + b"\n"


def input_aad(sid: str, number: int, counter: int) -> bytes:
    """What an input record is bound to: session, segment and its place among all records of the session."""
    return canonical_json([sid, number, counter])


def pack_typed(entries: Sequence[Typed]) -> bytes:
    """The plaintext of an input record: (time µs, kind, length, bytes) one after another."""
    return b"".join(ENTRY.pack(entry.at_us, entry.kind, len(entry.data)) + entry.data for entry in entries)


class Writer:
    """Turns what happens into bytes to append to a segment's two objects. One a session; the caller makes them durable.

    Returned pairs are (output lane, input lane). Times must not run backwards; one that does counts as the one before.
    """

    def __init__(self, header: Header, *, key: bytes, wrapped_key: bytes) -> None:
        """`key`: 32 fresh random bytes, only ever in memory; `wrapped_key`: the same, age-encrypted to the reviewers."""
        if len(key) != KEY_BYTES:
            raise ValueError("the input key has 32 bytes")
        self._header = header
        self._aead = ChaCha20Poly1305(key)
        self._wrapped = wrapped_key
        self._prev = first_link(header.sid, header.request_digest)
        self._number = 0
        self._counter = 0
        self._last_us = 0
        self._held = b""
        self.output_bytes = 0

    @property
    def number(self) -> int:
        """The open segment's number, from 1."""
        return self._number

    @property
    def size(self) -> int:
        """Bytes of both objects of the open segment so far."""
        return self._out_size + self._in_size

    @property
    def events(self) -> int:
        """Events of the open segment so far, input records counted."""
        return self._events + self._inputs

    @property
    def holding(self) -> bool:
        """Whether the beginning of a character is held back."""
        return bool(self._held)

    def begin(self) -> tuple[bytes, bytes]:
        """Open the next segment."""
        self._number += 1
        self._out, self._in = hashlib.sha256(), hashlib.sha256()
        self._out_size = self._in_size = self._events = self._inputs = self._segment_output = 0
        head = header_line(self._header) if self._number == 1 else b""
        lines = head + seg_line(self._number, self._prev)
        first = input_header(self._header.sid, self._number, self._wrapped)
        return self._wrote(lines), self._wrote_in(first)

    def output(self, data: bytes, at_us: int) -> tuple[bytes, bytes]:
        """Lines for output, and the exact bytes they cover: a cut UTF-8 sequence at the end waits for its rest."""
        data = self._held + data
        cut = len(data) - unfinished(data)
        self._held, data = data[cut:], data[:cut]
        return self._record(data, at_us)

    def flush(self, at_us: int) -> tuple[bytes, bytes]:
        """As `output`, for what is held back: nothing followed it."""
        data, self._held = self._held, b""
        return self._record(data, at_us)

    def _record(self, data: bytes, at_us: int) -> tuple[bytes, bytes]:
        if not data:
            return b"", b""
        self.output_bytes += len(data)
        self._segment_output += len(data)
        return self._event(output_lines(self._since(at_us), data)), data

    def resize(self, cols: int, rows: int, at_us: int) -> bytes:
        """An `r` event, `COLSxROWS`. Flush first."""
        return self._event(event_line(self._since(at_us), "r", f"{cols}x{rows}"))

    def marker(self, label: str, at_us: int) -> bytes:
        """An `m` event: something happened that is not output. Flush first."""
        return self._event(event_line(self._since(at_us), "m", label.encode(errors="replace").decode()))

    def exit(self, status: int, at_us: int) -> bytes:
        """An `x` event: a shell's exit status. Flush first."""
        return self._event(event_line(self._since(at_us), "x", str(status)))

    def input(self, entries: Sequence[Typed]) -> bytes:
        """One sealed input record."""
        self._counter += 1
        self._inputs += 1
        aad = input_aad(self._header.sid, self._number, self._counter)
        sealed = self._aead.encrypt(self._counter.to_bytes(12, "big"), pack_typed(entries), aad)
        return self._wrote_in(LENGTH.pack(len(sealed)) + sealed)

    def seal(self, end: End | None = None) -> tuple[bytes, Seal]:
        """The open segment's last line. Flush first; after it `begin` the next, unless this was the end."""
        out_sha256, in_sha256 = self._out.digest(), self._in.digest()
        chain = link(self._prev, self._number, out_sha256, in_sha256, end)
        seal = Seal(number=self._number, out_sha256=out_sha256, in_sha256=in_sha256, chain=chain, end=end)
        self._prev = chain
        return seal_line(seal, events=self._events, output_bytes=self._segment_output, in_bytes=self._in_size), seal

    def _since(self, at_us: int) -> int:
        since = max(0, at_us - self._last_us)
        self._last_us += since
        return since

    def _event(self, lines: bytes) -> bytes:
        self._events += 1
        return self._wrote(lines)

    def _wrote(self, lines: bytes) -> bytes:
        self._out.update(lines)
        self._out_size += len(lines)
        return lines

    def _wrote_in(self, data: bytes) -> bytes:
        self._in.update(data)
        self._in_size += len(data)
        return data
