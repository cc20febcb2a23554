"""A record made by the real writer, and its bytes made again from what the reader understood."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from breakglass.core import record as w
from breakglass.core.record import End, Header, Kind, Lines, Typed, Writer
from breakglass.core.record_read import Reader, Segment

KEY = bytes(range(32))
WRAPPED = b"age-encryption.org/v1\nstands for the wrapped key\n"
HEADER = Header(
    sid="abcdefghij", request_digest="sha256:" + "0" * 64, cols=80, rows=24, started_at=datetime(2026, 12, 1, tzinfo=UTC)
)
OTHER = Header(
    sid="zzzzzzzzzz", request_digest="sha256:" + "1" * 64, cols=80, rows=24, started_at=datetime(2026, 12, 1, tzinfo=UTC)
)
Objects = list[tuple[bytes, bytes]]


class Paper:
    """Stands where the disk stands: keeps both objects of every segment, and what is covered so far."""

    def __init__(self, header: Header = HEADER, key: bytes = KEY) -> None:
        self.writer = Writer(header, key=key, wrapped_key=WRAPPED)
        self.done: Objects = []
        self.covered = b""
        self.at_us = 0
        self._begin()

    def _begin(self) -> None:
        out, inp = self.writer.begin()
        self.out, self.inp = bytearray(out), bytearray(inp)

    def lines(self, lines: Lines) -> None:
        self.out += lines.out
        self.covered += lines.covered

    def output(self, data: bytes) -> None:
        for piece in w.pieces(data):
            self.at_us += 1_234
            self.lines(self.writer.output(piece, self.at_us))
            if self.writer.due(self.at_us):
                self.cut()

    def typed(self, *keys: bytes, kind: Kind = Kind.TYPED) -> None:
        self.at_us += 777
        self.inp += self.writer.input([Typed(at_us=self.at_us, kind=kind, data=key) for key in keys])

    def cut(self, end: End | None = None) -> None:
        line, _ = self.writer.seal(end)
        self.done.append((bytes(self.out) + line, bytes(self.inp)))
        if end is None:
            self._begin()

    def end(self, reason: str = "idle") -> Objects:
        self.lines(self.writer.flush(self.at_us))
        self.cut(End(reason=reason, cut=False))
        return self.done


def example(header: Header = HEADER) -> Objects:
    """Three segments with everything that can stand in them."""
    paper = Paper(header)
    paper.output("größe $ ".encode())
    paper.typed(b"ls\r")
    paper.output(b"half \xc3")
    paper.output(b"\xa9 and \xff\xfe bytes\r\n")
    paper.lines(paper.writer.resize(100, 30, paper.at_us))
    paper.cut()
    paper.lines(paper.writer.marker("shell 2 on pod checkout-1", paper.at_us + 5))
    paper.typed(b"secret", b"\r")
    paper.typed(b"\x03", kind=Kind.TOWER)
    paper.output(b"\x00binary\xff")
    paper.output(b"again \r\n")
    paper.cut()
    paper.output(b"bye\xe2\x82")
    paper.lines(paper.writer.exit(137, paper.at_us + 9))
    return paper.end()


def read(objects: Sequence[tuple[bytes, bytes | None]], sid: str | None = None) -> list[Segment]:
    """All of it, and complete."""
    reader = Reader(sid)
    segments = [reader.segment(out, inp) for out, inp in objects]
    reader.finish()
    return segments


def render(segments: Sequence[Segment], header: Header = HEADER) -> Objects:
    """The bytes again, from nothing but what was read."""
    objects: Objects = []
    prev, at_us = w.first_link(header), 0
    for segment in segments:
        lines = [w.header_line(header)] if segment.number == 1 else []
        lines.append(w.seg_line(segment.number, prev))
        for event in segment.events:
            since, at_us = event.at_us - at_us, event.at_us
            lines.append(w.output_lines(since, event.data) if event.code == "o" else w.event_line(since, event.code, event.text))
        inp = w.input_header(header.sid, segment.number, segment.wrapped_key or b"")
        inp += b"".join(w.sealed_line(record) for record in segment.inputs or ())
        objects.append((b"".join(lines) + w.seal_line(segment.seal), inp))
        prev = segment.seal.chain
    return objects


def output_of(segments: Sequence[Segment]) -> bytes:
    """Every byte that was on the screen."""
    return b"".join(event.data for segment in segments for event in segment.events)
