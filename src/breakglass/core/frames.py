"""Layers 6 and 7: between Tower and the supervisor a frame arrives whole, in order, once, from the key's holder, or not at all.

Sans-IO: bytes in, events out, both ends. The wire is `spec/frames.md`. Must never: deliver an event behind a broken frame, mend a
stream, or put a payload byte or a key into an error or a repr.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, Generic, NoReturn, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION: Final = 1
HEAD: Final = struct.Struct(">BI")
TAG: Final = 16
PAYLOAD_MAX: Final = 64 << 10
"""The longest payload on the wire, seal included (spec/frames.md §1)."""
DATA_MAX: Final = PAYLOAD_MAX - TAG
"""The most bytes one DATA frame carries."""
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 8
LEASE_MIN, LEASE_MAX = 1, 120
NOTE_MAX: Final = 512

_START = struct.Struct(">32sHHH")
_RESIZE = struct.Struct(">HH")
_PONG = struct.Struct(">8sQ")
_EXIT = struct.Struct(">BBBQ32sQ32s")
_INFO_IN, _INFO_OUT = b"tower frames v1 in", b"tower frames v1 out"


class Type(IntEnum):
    """Frame types; the supervisor's have the high bit set. FILE_* are reserved: whoever sees one ends the stream."""

    START = 0x01
    DATA_IN = 0x02
    RESIZE = 0x03
    PING = 0x04
    END = 0x05
    FILE_GET = 0x06
    FILE_PUT = 0x07
    READY = 0x81
    DATA_OUT = 0x82
    PONG = 0x84
    EXIT = 0x85
    NOTE = 0x86
    FILE_DATA = 0x87


class Fault(StrEnum):
    """What broke a stream."""

    TOO_LONG = "too_long"
    UNKNOWN_TYPE = "unknown_type"
    OUT_OF_ORDER = "out_of_order"
    BAD_SEAL = "bad_seal"
    BAD_LENGTH = "bad_length"
    BAD_VALUE = "bad_value"
    BAD_VERSION = "bad_version"
    FOREIGN_START = "foreign_start"


class FrameViolation(Exception):  # noqa: N818 - a violation is what the spec calls it
    """The stream is dead. `events` are the good ones before the fault in the same call: they count, nothing later does."""

    def __init__(self, code: Fault, events: tuple[object, ...] = ()) -> None:
        super().__init__(f"the frame stream is broken: {code.value}")
        self.code = code
        self.events = events


class ExitReason(IntEnum):
    """Why the supervisor ended, in its own words."""

    SHELL_EXITED = 1
    ENDED = 2
    EOF = 3
    STOPPED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Out: the supervisor took our START; every later frame is sealed."""

    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Both directions: terminal bytes, as they are."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Out: the answer to the PING with that nonce; `taken` counts the input bytes the terminal has accepted so far."""

    nonce: bytes
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Out, last: the shell's status (128 + signal when one killed it) and digests over all terminal bytes of each direction.

    `in_*` cover what the terminal accepted, `out_*` what was read from it: the second witness, to be compared with the record.
    """

    reason: ExitReason
    status: int = 0
    signal: int = 0
    in_bytes: int = 0
    in_sha256: bytes = hashlib.sha256().digest()
    out_bytes: int = 0
    out_sha256: bytes = hashlib.sha256().digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Out: one sentence of the supervisor to Tower; untrusted text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """In, first, the only clear one: the key, the terminal's size, and the seconds without a PING after which all ends."""

    cols: int
    rows: int
    lease_seconds: int
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """In: the terminal has another size."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """In: renews the lease and asks for a PONG."""

    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """In, last: end the shell and everything in the container."""


TowerEvent = Ready | Data | Pong | Exit | Note
"""What Tower reads."""
SupervisorEvent = Start | Data | Resize | Ping | End
"""What the supervisor reads."""
E = TypeVar("E")


class _Seal:
    """One direction: a key of its own, and a counter that makes a dropped, repeated or reordered frame fail to open."""

    def __init__(self, key: bytes, info: bytes) -> None:
        self._aead = ChaCha20Poly1305(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(key))
        self._counter = 0

    def seal(self, kind: Type, plain: bytes) -> bytes:
        head = HEAD.pack(kind, len(plain) + TAG)
        return head + self._aead.encrypt(self._nonce(), plain, head)

    def open(self, head: bytes, sealed: bytes) -> bytes:
        try:
            return self._aead.decrypt(self._nonce(), sealed, head)
        except InvalidTag:
            raise FrameViolation(Fault.BAD_SEAL) from None

    def _nonce(self) -> bytes:
        nonce = self._counter.to_bytes(12, "big")
        self._counter += 1
        return nonce


class _Reader(Generic[E]):
    """Cuts a byte stream into frames, however it was chunked, in O(n); dead for good at the first fault."""

    def __init__(self, clear: Type, first: Callable[[bytes], E], then: dict[int, Callable[[bytes], E]]) -> None:
        self._clear, self._first, self._then = clear, first, then
        self._buffer = bytearray()
        self._started = False
        self._dead: Fault | None = None
        self.seal: _Seal | None = None

    def feed(self, data: bytes) -> list[E]:
        """Every event that `data` completes; the numbered steps of one frame are in `_frame`."""
        if self._dead is not None:
            raise FrameViolation(self._dead)
        events: list[E] = []
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= HEAD.size:
                kind, length = HEAD.unpack_from(self._buffer, at)
                self._check(kind, length)
                end = at + HEAD.size + length
                if len(self._buffer) < end:
                    break
                head, payload = bytes(self._buffer[at : at + HEAD.size]), bytes(self._buffer[at + HEAD.size : end])
                events.append(self._frame(kind, head, payload))
                at = end
        except FrameViolation as violation:
            self._dead = violation.code
            self._buffer.clear()
            raise FrameViolation(violation.code, tuple(events)) from None
        del self._buffer[:at]
        return events

    def _check(self, kind: int, length: int) -> None:
        """Judge a head before its payload is waited for: a liar must not make us buffer or wait."""
        if length > PAYLOAD_MAX:
            raise FrameViolation(Fault.TOO_LONG)
        if kind != self._clear and kind not in self._then:
            raise FrameViolation(Fault.UNKNOWN_TYPE)
        if (kind == self._clear) is self._started:
            raise FrameViolation(Fault.OUT_OF_ORDER)
        if self._started and length < TAG:
            raise FrameViolation(Fault.BAD_LENGTH)

    def _frame(self, kind: int, head: bytes, payload: bytes) -> E:
        """1. The clear frame comes once and first. 2. Any other opens under the next counter, head included. 3. It is parsed."""
        if not self._started:
            event = self._first(payload)
            self._started = True
            return event
        if self.seal is None:
            raise FrameViolation(Fault.OUT_OF_ORDER)
        return self._then[kind](self.seal.open(head, payload))


class TowerFrames:
    """Tower's end of one shell's stream. One per debug container: the key is never used twice."""

    def __init__(self, key: bytes) -> None:
        """`key`: 32 fresh random bytes; only their hash goes into the container's arguments."""
        if len(key) != KEY_BYTES:
            raise FrameViolation(Fault.BAD_LENGTH)
        self._key = key
        self._in = _Seal(key, _INFO_IN)
        self._reader: _Reader[TowerEvent] = _Reader(
            Type.READY,
            _ready,
            {Type.DATA_OUT: _data, Type.PONG: _pong, Type.EXIT: _exit, Type.NOTE: _note},
        )
        self._reader.seal = _Seal(key, _INFO_OUT)

    @property
    def start_sha256(self) -> str:
        """Hex SHA-256 of the START key: the container's `--start-sha256`."""
        return hashlib.sha256(self._key).hexdigest()

    def start(self, cols: int, rows: int, lease_seconds: int) -> bytes:
        """The START frame, clear; send it once, before anything else."""
        _lease(lease_seconds)
        return HEAD.pack(Type.START, _START.size) + _START.pack(self._key, *_size(cols, rows), lease_seconds)

    def data(self, data: bytes) -> bytes:
        """Input for the terminal, 1 to `DATA_MAX` bytes."""
        return self._in.seal(Type.DATA_IN, _data(data).data)

    def resize(self, cols: int, rows: int) -> bytes:
        """The terminal's new size, each 1–65535."""
        return self._in.seal(Type.RESIZE, _RESIZE.pack(*_size(cols, rows)))

    def ping(self, nonce: bytes) -> bytes:
        """Renew the lease; the PONG repeats the eight bytes of `nonce`."""
        return self._in.seal(Type.PING, _ping(nonce).nonce)

    def end(self) -> bytes:
        """Ask the supervisor to end everything."""
        return self._in.seal(Type.END, b"")

    def feed(self, data: bytes) -> list[TowerEvent]:
        """The events that `data` completes, in order; once a frame is wrong, `FrameViolation` now and on every later call."""
        return self._reader.feed(data)


class SupervisorFrames:
    """The supervisor's end, as the spec has it: for simulators and tests. `image/supervisor.py` is its own, separate writing."""

    def __init__(self, start_sha256: str) -> None:
        self._start_sha256 = start_sha256
        self._out: _Seal | None = None
        self._reader: _Reader[SupervisorEvent] = _Reader(
            Type.START,
            self._started,
            {Type.DATA_IN: _data, Type.RESIZE: _resize, Type.PING: _ping, Type.END: _end},
        )

    def feed(self, data: bytes) -> list[SupervisorEvent]:
        """As `TowerFrames.feed`."""
        return self._reader.feed(data)

    def ready(self) -> bytes:
        """The READY frame, clear, sent once START was right."""
        return HEAD.pack(Type.READY, 1) + bytes([VERSION])

    def data(self, data: bytes) -> bytes:
        """Output of the terminal, 1 to `DATA_MAX` bytes."""
        return self._seal(Type.DATA_OUT, _data(data).data)

    def pong(self, nonce: bytes, taken: int) -> bytes:
        """The answer to a PING."""
        return self._seal(Type.PONG, _PONG.pack(_ping(nonce).nonce, taken))

    def exit(self, event: Exit) -> bytes:
        """The last frame."""
        digests = event.in_bytes, event.in_sha256, event.out_bytes, event.out_sha256
        return self._seal(Type.EXIT, _EXIT.pack(event.reason, event.status, event.signal, *digests))

    def note(self, text: str) -> bytes:
        """One sentence to Tower, at most `NOTE_MAX` bytes of UTF-8."""
        return self._seal(Type.NOTE, text.encode())

    def _seal(self, kind: Type, plain: bytes) -> bytes:
        if self._out is None:
            raise FrameViolation(Fault.OUT_OF_ORDER)
        return self._out.seal(kind, plain)

    def _started(self, payload: bytes) -> Start:
        """1. Exact length. 2. The key's hash is the one in the arguments (constant time). 3. Size and lease are sane."""
        if len(payload) != _START.size:
            _fail(Fault.BAD_LENGTH)
        key, cols, rows, lease_seconds = _START.unpack(payload)
        if not hmac.compare_digest(hashlib.sha256(key).hexdigest().encode(), self._start_sha256.encode()):
            _fail(Fault.FOREIGN_START)
        _size(cols, rows)
        _lease(lease_seconds)
        self._reader.seal, self._out = _Seal(key, _INFO_IN), _Seal(key, _INFO_OUT)
        return Start(key=key, cols=cols, rows=rows, lease_seconds=lease_seconds)


# --- one payload each: exact length, sane values, or a violation ------------------------------------------------------


def _fail(code: Fault) -> NoReturn:
    raise FrameViolation(code)


def _ready(payload: bytes) -> Ready:
    if len(payload) != 1:
        _fail(Fault.BAD_LENGTH)
    return Ready(version=payload[0]) if payload[0] == VERSION else _fail(Fault.BAD_VERSION)


def _data(plain: bytes) -> Data:
    return Data(data=plain) if 1 <= len(plain) <= DATA_MAX else _fail(Fault.BAD_LENGTH)


def _resize(plain: bytes) -> Resize:
    if len(plain) != _RESIZE.size:
        _fail(Fault.BAD_LENGTH)
    cols, rows = _RESIZE.unpack(plain)
    _size(cols, rows)
    return Resize(cols=cols, rows=rows)


def _ping(plain: bytes) -> Ping:
    return Ping(nonce=plain) if len(plain) == NONCE_BYTES else _fail(Fault.BAD_LENGTH)


def _end(plain: bytes) -> End:
    return _fail(Fault.BAD_LENGTH) if plain else End()


def _pong(plain: bytes) -> Pong:
    if len(plain) != _PONG.size:
        _fail(Fault.BAD_LENGTH)
    nonce, taken = _PONG.unpack(plain)
    return Pong(nonce=nonce, taken=taken)


def _exit(plain: bytes) -> Exit:
    if len(plain) != _EXIT.size:
        _fail(Fault.BAD_LENGTH)
    reason, status, signal, in_bytes, in_sha256, out_bytes, out_sha256 = _EXIT.unpack(plain)
    if reason not in set(ExitReason):
        _fail(Fault.BAD_VALUE)
    return Exit(
        reason=ExitReason(reason),
        status=status,
        signal=signal,
        in_bytes=in_bytes,
        in_sha256=in_sha256,
        out_bytes=out_bytes,
        out_sha256=out_sha256,
    )


def _note(plain: bytes) -> Note:
    if len(plain) > NOTE_MAX:
        _fail(Fault.BAD_LENGTH)
    try:
        return Note(text=plain.decode())
    except UnicodeDecodeError:
        return _fail(Fault.BAD_VALUE)


def _size(cols: int, rows: int) -> tuple[int, int]:
    return (cols, rows) if 1 <= cols <= 0xFFFF and 1 <= rows <= 0xFFFF else _fail(Fault.BAD_VALUE)


def _lease(seconds: int) -> None:
    if not LEASE_MIN <= seconds <= LEASE_MAX:
        _fail(Fault.BAD_VALUE)
