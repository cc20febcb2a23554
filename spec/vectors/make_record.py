"""Makes `spec/vectors/record/`: one good record and what an attacker makes of it. `python spec/vectors/make_record.py DIRECTORY`.

The keys are fixed and published, so they protect nothing; the age file was made once, for age is not repeatable.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from breakglass.core import record as w
from breakglass.core.record import Counts, End, Header, Kind, Typed, Writer
from breakglass.core.record_read import Fault, Reader

KEY = bytes(range(32))
IDENTITIES = (
    "AGE-SECRET-KEY-1H76SGLK65FPP0VALCKMY0XQE8HS4K60T2AJ8KLECHJVNCJ6Y7GPQ06U8W8",
    "AGE-SECRET-KEY-1CTAQT386FHEZ55XSQMVVLDJ5A6ZXE96N68R2NN9N88ZLGR9QU63SLUMGV4",
)
"""Each of the two opens `WRAPPED`, which holds `KEY`."""
WRAPPED = base64.b64decode(
    "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBNSlJtL0dEUE5YN3U1YWRlV2F1SVFPTlFXS1lUUHhMTExEVGltQ01IRUNZCk5CODJHVFRxV2JRSUdR"
    "Mm5hUzN5SzdEd1dERmpNVlN0elVIU1hBWjBOdjAKLT4gWDI1NTE5IGVIbUZMOXJWTCs1NnJZeTM5RGVNYVBjUkNkcUYzU21KK3ExS3VrdnNWa2MKbnRkZDV3"
    "RjYxUkppNFBVb0x0TGVJemlZakZZVmhVd3o5NFZrcVpNWmtpTQotPiBgci1ncmVhc2UgfUsgeSwpYDAKWS9kTmx4Z3J5Wk9RdkEKLS0tIEo2T0RHZ3AwLzY3"
    "RllJaDdkVm9XYXNnZ0p1VzZJN2ozSFF4UFpVK2RHN00KkWBLQHs8XA4VZGZnFeCXhks9YtPqMLjhf65EL0xDAFgXNCAnYwy/1XbMvMojexE2T9xtz0uKjUqA"
    "+LaW+ibUrA=="
)
HEADER = Header(
    sid="abcdefghij", request_digest="sha256:" + "0" * 64, cols=80, rows=24, started_at=datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
)
OTHER = Header(
    sid="zzzzzzzzzz", request_digest="sha256:" + "1" * 64, cols=80, rows=24, started_at=datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
)
Row = tuple[bytes, bytes | None]
Change = Callable[[bytes], bytes]


def record(header: Header, key: bytes) -> list[tuple[bytes, bytes]]:
    """Three segments with everything that can stand in one."""
    writer = Writer(header, key=key, wrapped_key=WRAPPED)
    made = []

    def segment(end: End | None, *lines: Callable[[], w.Lines | bytes]) -> None:
        out, inp = writer.begin()
        for line in lines:
            written = line()
            out, inp = (out, inp + written) if isinstance(written, bytes) else (out + written.out, inp)
        seal, _ = writer.seal(end)
        made.append((out + seal, inp))

    segment(
        None,
        lambda: writer.marker("shell 1 on pod checkout-1", 1_500),
        lambda: writer.output("größe \x1b[31m\u2028$ ".encode(), 20_000),
        lambda: writer.input([_typed(1_000_000, b"l"), _typed(1_100_000, b"s")]),
        lambda: writer.input([_typed(1_200_000, b"\r")]),
        lambda: writer.output(b"half \xe2\x82", 1_300_000),
        lambda: writer.output(b"\xac\r\n", 1_300_001),
    )
    segment(
        None,
        lambda: writer.output(b"latin \xe9\xed\xa0\x80\r\n", 6_000_000),
        lambda: writer.resize(100, 30, 6_000_000),
        lambda: writer.output(b"\x00\x7f\xff binary", 7_000_000),
    )
    segment(
        End(reason="shell_exited", cut=False),
        lambda: writer.input([_typed(12_000_000, b"\x03", Kind.TOWER)]),
        lambda: writer.output(b'"\\\b\f\n\r\t\x1f', 12_345_678),
        lambda: writer.exit(130, 12_345_678),
    )
    return made


def _typed(at_us: int, data: bytes, kind: Kind = Kind.TYPED) -> Typed:
    return Typed(at_us=at_us, kind=kind, data=data)


OURS, THEIRS = record(HEADER, KEY), record(OTHER, bytes(32))


def sealed_again(number: int, *, out: Change = bytes, inp: Change = bytes, counts: Counts | None = None) -> list[Row]:
    """Our record with one segment changed and its digests and chain made to fit, as who knows this page can."""
    reader = Reader()
    seals = [reader.segment(*row).seal for row in OURS]
    prev = seals[number - 2].chain if number > 1 else w.first_link(HEADER)
    body, typed = out(OURS[number - 1][0][: OURS[number - 1][0].rindex(w.SEAL)]), inp(OURS[number - 1][1])
    old = seals[number - 1]
    seal = w.sealed(prev, number, (w.digest(body), w.digest(typed)), counts or old.counts, old.end)
    return [*OURS[: number - 1], (body + w.seal_line(seal), typed), *OURS[number:]]


def changed(number: int, old: bytes, new: bytes) -> list[Row]:
    """Our record with a few bytes of one output object changed, and no more than that."""
    out, inp = OURS[number - 1]
    if old not in out:
        raise ValueError(old)
    return [*OURS[: number - 1], (out.replace(old, new, 1), inp), *OURS[number:]]


def forged_input(counter: int, at_us: int) -> bytes:
    """An input record nobody could make without the key."""
    plain = w.pack_typed([_typed(at_us, b"x")])
    aad = w.input_aad(HEADER.sid, 3, counter)
    return w.input_header(HEADER.sid, 3, b"") + w.sealed_line(ChaCha20Poly1305(KEY).encrypt(w.input_nonce(counter), plain, aad))


def torn() -> list[Row]:
    """What `recover` makes of segments 1 and 2 when the process died in the middle of the second."""
    reader = Reader()
    reader.segment(*OURS[0])
    lines = OURS[1][0].split(b"\n")
    body = b"".join(line + b"\n" for line in lines[:3])
    counts = Counts(events=1, out_bytes=12, inputs=0)
    end = End(reason="tower_died", cut=True)
    return [
        OURS[0],
        (body + w.seal_line(w.sealed(reader.chain, 2, (w.digest(body), w.digest(OURS[1][1])), counts, end)), OURS[1][1]),
    ]


def vectors() -> dict[str, tuple[list[Row], Fault | None]]:
    """Every vector by name: its rows, and the fault a reader must find."""
    one, two, three = OURS
    again = sealed_again
    repeated = one[1].split(b"\n")[2] + b"\n"
    shorter = Counts(events=2, out_bytes=12, inputs=0)
    event = OURS[0][0].split(b"\n")[2]
    return {
        "good": (list(OURS), None),
        "good-without-input-objects": ([(out, None) for out, _ in OURS], None),
        "good-cut-by-a-crash": (torn(), None),
        "a-letter-of-the-output": (changed(1, b"half", b"hall"), Fault.OUT_DIGEST),
        "an-event-dropped": (changed(1, event + b"\n", b""), Fault.OUT_DIGEST),
        "an-event-twice": (changed(1, event, event + b"\n" + event), Fault.OUT_DIGEST),
        "a-comment-added": (again(1, out=lambda body: body + b"# hello\n"), Fault.BAD_LINE),
        "typed-text-in-the-output-lane": (again(1, out=lambda body: body + b'[0.000000, "i", "x"]\n'), Fault.BAD_LINE),
        "an-escape-that-need-not-be": (again(1, out=lambda body: body.replace(b"half", b"\\u0068alf")), Fault.NOT_CANONICAL),
        "an-interval-of-five-digits": (again(1, out=lambda body: body.replace(b"0.001500", b"0.00150")), Fault.BAD_LINE),
        "exact-bytes-that-are-text": (
            again(2, out=lambda body: body.replace(b"#b bGF0aW4g6e2ggA0K", b"#b bGF0aW4=")),
            Fault.NOT_CANONICAL,
        ),
        "text-that-is-not-its-exact-bytes": (again(2, out=lambda body: body.replace(b"latin", b"Latin")), Fault.NOT_CANONICAL),
        "exact-bytes-without-an-event": (again(2, out=lambda body: body + b"#b /w==\n"), Fault.BAD_LINE),
        "a-header-with-more": (changed(1, b'"version":3', b'"version":3,"x":1'), Fault.BAD_HEADER),
        "a-header-with-a-space": (changed(1, b'{"term"', b'{ "term"'), Fault.BAD_HEADER),
        "another-request": (changed(1, b"sha256:00", b"sha256:01"), Fault.LINK),
        "a-segment-dropped": ([one, three], Fault.ORDER),
        "segments-exchanged": ([one, three, two], Fault.ORDER),
        "a-segment-of-another-session": ([one, THEIRS[1], three], Fault.LINK),
        "a-segment-sealed-again": (again(2, out=lambda body: body.rsplit(b"#b", 1)[0], counts=shorter), Fault.LINK),
        "the-end-dropped": ([one, two], Fault.NO_END),
        "behind-the-end": ([*OURS, two], Fault.AFTER_END),
        "no-last-newline": ([(one[0][:-1], one[1]), two, three], Fault.TORN),
        "no-seal": ([(one[0][: one[0].rindex(w.SEAL)], one[1]), two, three], Fault.NO_SEAL),
        "cut-invented": (changed(3, b'"cut":false', b'"cut":true'), Fault.CHAIN),
        "another-reason": (changed(3, b"shell_exited", b"idle"), Fault.CHAIN),
        "a-count-that-is-not-so": (again(3, counts=Counts(events=3, out_bytes=8, inputs=1)), Fault.COUNTS),
        "the-input-object-of-another-segment": ([(one[0], two[1]), two, three], Fault.IN_DIGEST),
        "the-input-object-of-another-session": (again(1, inp=lambda _: THEIRS[0][1]), Fault.OTHER_SESSION),
        "half-an-input-record": (again(3, inp=lambda inp: inp[:-9] + b"\n"), Fault.BAD_INPUT),
        "an-input-record-repeated": (
            again(3, inp=lambda inp: inp.split(b"\n")[0] + b"\n" + repeated),
            Fault.INPUT_SEALED_OTHERWISE,
        ),
        "an-input-record-with-another-number": (
            again(3, inp=lambda _: forged_input(4, 12_000_000)),
            Fault.INPUT_SEALED_OTHERWISE,
        ),
        "input-before-the-input-before": (again(3, inp=lambda _: forged_input(3, 1)), Fault.BAD_INPUT),
    }


def files() -> dict[str, bytes]:
    """Everything in the directory. Equal objects are one file."""
    made: dict[str, bytes] = {}
    known: dict[bytes, str] = {}
    listed: list[dict[str, Any]] = []
    for name, (rows, fault) in vectors().items():
        objects = []
        for number, row in enumerate(rows, 1):
            for suffix, data in zip((".cast", ".in"), row, strict=True):
                if data is not None and data not in known:
                    known[data] = f"{name}-{number}{suffix}"
                    made[known[data]] = data
            objects.append([None if data is None else known[data] for data in row])
        listed.append({"name": name, "fault": fault, "objects": objects})
    reader = Reader()
    segments = [reader.segment(*row) for row in OURS]
    output = b"".join(event.data for segment in segments for event in segment.events)
    good = {
        "chain": reader.chain.hex(),
        "input_key": KEY.hex(),
        "identities": list(IDENTITIES),
        "output_bytes": len(output),
        "output_sha256": hashlib.sha256(output).hexdigest(),
        "sid": HEADER.sid,
        "typed": [[1_000_000, 1, "6c"], [1_100_000, 1, "73"], [1_200_000, 1, "0d"], [12_000_000, 2, "03"]],
    }
    made["vectors.json"] = (json.dumps({"good": good, "records": listed}, indent=1) + "\n").encode()
    return made


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    for path in directory.iterdir():
        path.unlink()
    for file, content in files().items():
        (directory / file).write_bytes(content)
