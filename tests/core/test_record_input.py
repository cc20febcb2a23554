"""Against an insider who can seal again: keystrokes are closed to them, and none is dropped, moved or brought from elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakglass.core import record as w
from breakglass.core.record import End, Kind, Typed, Writer
from breakglass.core.record_read import Fault, RecordInvalid, decrypt_input, plain_key
from tests.core.record_builders import HEADER, KEY, OTHER, WRAPPED, Objects, Paper, example, read


def test_no_keystroke_stands_in_the_clear_in_either_object() -> None:
    paper = Paper()
    paper.typed(b"correct horse battery staple")
    everything = b"".join(out + inp for out, inp in paper.end())
    assert b"horse" not in everything


def test_the_reviewer_reads_what_was_typed_and_when() -> None:
    objects = example()
    typed = list(decrypt_input(read(objects), HEADER.sid, KEY))
    assert [one.data for one in typed] == [b"ls\r", b"secret", b"\r", b"\x03"]
    assert [one.kind for one in typed] == [Kind.TYPED, Kind.TYPED, Kind.TYPED, Kind.TOWER]
    assert [one.at_us for one in typed] == sorted(one.at_us for one in typed)
    assert read(objects)[0].wrapped_key == WRAPPED
    assert read(objects)[1].wrapped_key is None


def test_a_records_length_does_not_tell_a_password_of_8_from_one_of_40() -> None:
    lengths = set()
    for count in (1, 8, 40, 51):
        paper = Paper()
        paper.typed(b"x" * count)
        lengths.add(len(paper.inp))
    assert len(lengths) == 1


def _taken(objects: Objects, change: Callable[[list[bytes]], list[bytes]], segment: int = 1) -> Objects:
    """The input object's records changed and every digest made to fit again: what an insider with the vault could do."""
    made: Objects = []
    prev = w.first_link(HEADER)
    for number, (out, inp) in enumerate(objects, 1):
        head, *records = inp.split(b"\n")[:-1]
        body = out[: out.rindex(w.SEAL)]
        body = w.seg_line(number, prev) + body.split(b"\n", 1)[1] if number > 1 else body
        if number == segment + 1:
            records = change(records)
        again = b"".join(line + b"\n" for line in [head, *records])
        old = read(objects)[number - 1].seal
        counts = w.Counts(events=old.counts.events, out_bytes=old.counts.out_bytes, inputs=len(records))
        seal = w.sealed(prev, number, (w.digest(body), w.digest(again)), counts, old.end)
        made.append((body + w.seal_line(seal), again))
        prev = seal.chain
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records[1:],
        lambda records: [records[0], records[0], records[1]],
        lambda records: [records[1], records[0]],
        lambda records: [*records, records[0]],
        lambda records: [example(OTHER)[1][1].split(b"\n")[1], records[1]],
    ],
    ids=["dropped", "repeated", "reordered", "added", "from another session"],
)
def test_input_changed_by_somebody_who_can_seal_again_does_not_open(change: Callable[[list[bytes]], list[bytes]]) -> None:
    segments = read(_taken(example(), change))
    with pytest.raises(RecordInvalid) as raised:
        list(decrypt_input(segments, HEADER.sid, KEY))
    assert raised.value.code is Fault.INPUT_SEALED_OTHERWISE


def test_input_under_another_key_or_session_does_not_open() -> None:
    for sid, key in ((HEADER.sid, bytes(32)), (OTHER.sid, KEY)):
        with pytest.raises(RecordInvalid) as raised:
            list(decrypt_input(read(example()), sid, key))
        assert raised.value.code is Fault.INPUT_SEALED_OTHERWISE
    with pytest.raises(RecordInvalid) as raised:
        plain_key(b"short")
    assert raised.value.code is Fault.BAD_INPUT


def _opens(plain: bytes) -> Fault | None:
    writer = Writer(HEADER, key=KEY, wrapped_key=WRAPPED)
    out, inp = writer.begin()
    record = writer._aead.encrypt(w.input_nonce(1), plain, w.input_aad(HEADER.sid, 1, 1))
    inp += w.sealed_line(record)
    counts = w.Counts(events=0, out_bytes=0, inputs=1)
    seal = w.sealed(w.first_link(HEADER), 1, (w.digest(out), w.digest(inp)), counts, End(reason="idle", cut=False))
    try:
        list(decrypt_input(read([(out + w.seal_line(seal), inp)]), HEADER.sid, KEY))
    except RecordInvalid as fault:
        return fault.code
    return None


def test_plaintext_that_the_writer_would_not_have_written_is_refused() -> None:
    good = w.pack_typed([Typed(at_us=1, kind=Kind.TYPED, data=b"a")])
    late = w.pack_typed([Typed(at_us=2, kind=Kind.TYPED, data=b"a"), Typed(at_us=1, kind=Kind.TYPED, data=b"a")])
    assert _opens(good) is None
    for bad in (
        bytes(64),
        good + bytes(64),
        good[:-1] + b"\x01",
        good[:8] + b"\x03" + good[9:],
        good[:9] + b"\xff" + good[10:],
        w.pack_typed([Typed(at_us=1, kind=Kind.TYPED, data=b"")]),
        late,
    ):
        assert _opens(bad) is Fault.BAD_INPUT


def test_a_writer_refuses_what_the_format_does_not_have() -> None:
    writer = Writer(HEADER, key=KEY, wrapped_key=WRAPPED)
    writer.begin()
    refused: list[Callable[[], object]] = [
        lambda: Writer(HEADER, key=b"short", wrapped_key=WRAPPED),
        lambda: writer.output(b"x" * (w.PIECE_MAX + 1), 0),
        lambda: writer.resize(0, 24, 0),
        lambda: writer.resize(80, 65536, 0),
        lambda: writer.exit(256, 0),
        lambda: writer.input([]),
        lambda: writer.input([Typed(at_us=0, kind=Kind.TYPED, data=b"")]),
        lambda: writer.seal(End(reason="Two Words", cut=False)),
    ]
    for call in refused:
        with pytest.raises(ValueError, match=r"\w"):
            call()
