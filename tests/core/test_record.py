"""Against whoever holds the record afterwards, and against the terminal's own bytes: exact, in order, or named as broken."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakglass.core import record as w
from breakglass.core.record import End, Kind, Typed, Writer
from breakglass.core.record_read import OBJECT_MAX, Fault, Reader, RecordInvalid
from tests.core.record_builders import HEADER, KEY, OTHER, WRAPPED, Objects, Paper, example, output_of, read, render

# Chunks as terminals make them: text, any bytes, and halves of characters.
chunks = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.text(max_size=20).map(str.encode),
        st.sampled_from(["é€𝄞\u2028".encode()[at:] for at in range(9)] + ["é€𝄞".encode()[:at] for at in range(9)]),
        st.sampled_from([b"\xc0", b"\xc3", b"\xed\xa0\x80", b"\xf5", b"\xf4\x90", b"\x00", b'"\\\n#[', b"\xe2\x82"]),
    ),
    max_size=12,
)


def invalid(objects: list[tuple[bytes, bytes | None]] | Objects, sid: str | None = None) -> Fault | None:
    try:
        read(list(objects), sid)
    except RecordInvalid as fault:
        return fault.code
    return None


# --- every byte -------------------------------------------------------------------------------------------------------


@settings(max_examples=500)
@given(chunks)
def test_the_exact_bytes_come_out_however_they_were_cut(data: list[bytes]) -> None:
    paper = Paper()
    for chunk in data:
        paper.output(chunk)
    segments = read(paper.end())
    assert output_of(segments) == paper.covered == b"".join(data)


@settings(max_examples=500)
@given(chunks)
def test_what_is_held_back_is_the_beginning_of_a_character_and_nothing_else(data: list[bytes]) -> None:
    paper = Paper()
    for at, chunk in enumerate(data):
        paper.output(chunk)
        seen = b"".join(data[: at + 1])
        held = seen.removeprefix(paper.covered)
        assert seen == paper.covered + held
        assert len(held) <= 3
        assert not held or not _is_utf8(held)
        assert paper.writer.holding is bool(held)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("char", ["é", "€", "𝄞", "\U0010ffff"])
def test_a_character_cut_anywhere_stays_one_character_in_the_player(char: str) -> None:
    for at in range(1, len(char.encode())):
        paper = Paper()
        paper.output(char.encode()[:at])
        assert paper.covered == b""
        paper.output(char.encode()[at:])
        (segment,) = read(paper.end())
        assert [event.text for event in segment.events] == [char]


@pytest.mark.parametrize("wrong", [b"\xc0", b"\xc1", b"\x80", b"\xf5", b"\xff", b"\xc3(", b"\xe2\x82("])
def test_bytes_that_no_character_begins_with_do_not_wait(wrong: bytes) -> None:
    paper = Paper()
    paper.output(wrong)
    assert paper.covered == wrong


@pytest.mark.parametrize("event", ["resize", "marker", "exit"])
def test_what_is_held_back_stands_before_an_event_that_follows_it(event: str) -> None:
    paper = Paper()
    paper.output(b"\xe2\x82")
    written = {
        "resize": lambda: paper.writer.resize(1, 1, 9),
        "marker": lambda: paper.writer.marker("m", 9),
        "exit": lambda: paper.writer.exit(0, 9),
    }[event]()
    assert written.covered == b"\xe2\x82"
    paper.lines(written)
    (segment,) = read(paper.end())
    assert [event.data for event in segment.events] == [b"\xe2\x82", b""]


def test_line_separators_inside_text_do_not_end_a_line() -> None:
    paper = Paper()
    paper.output("a\u2028b\u0085c\x0bd\x0ce\x1cf\r\n".encode())
    (segment,) = read(paper.end())
    assert output_of([segment]) == "a\u2028b\u0085c\x0bd\x0ce\x1cf\r\n".encode()


def test_a_player_shows_binary_as_ascii_and_stray_bytes_as_replacement() -> None:
    assert w.lossy(b"caf\xe9 ok\xc3\xa9") == "caf\ufffd ok\u00e9"
    assert w.lossy(b"\x00\xe9\x1b[m") == "\x00?\x1b[m"


def test_the_segments_one_after_another_are_one_asciicast_v3() -> None:
    lines = b"".join(out for out, _ in example()).split(b"\n")[:-1]
    header = json.loads(lines[0])
    assert header["version"] == 3
    assert header["term"] == {"cols": 80, "rows": 24}
    events = [json.loads(line) for line in lines[1:] if not line.startswith(b"#")]
    assert all(line[:1] in {b"[", b"#"} for line in lines[1:])
    assert [code for _, code, _ in events] == ["o", "o", "o", "r", "m", "o", "o", "o", "o", "x"]
    assert "".join(text for _, code, text in events if code == "o").startswith("größe $ half é and ")


def test_times_do_not_drift_over_a_hundred_thousand_events() -> None:
    writer = Writer(HEADER, key=KEY, wrapped_key=WRAPPED)
    writer.begin()
    at = [at * 333 + at % 7 for at in range(100_000)]
    written = b"".join(writer.output(b"x", one).out for one in at)
    assert sum(round(json.loads(line)[0] * 1_000_000) for line in written.splitlines()) == at[-1]


def test_a_clock_that_runs_backwards_stands_still() -> None:
    paper = Paper()
    for at in (5, 3, 9):
        paper.lines(paper.writer.output(b"x", at))
    (segment,) = read(paper.end())
    assert [event.at_us for event in segment.events] == [5, 5, 9]


# --- where a segment is cut -------------------------------------------------------------------------------------------


def test_a_segment_is_due_for_output_for_size_and_for_age_but_never_when_empty() -> None:
    writer = Writer(HEADER, key=KEY, wrapped_key=WRAPPED)
    writer.begin()
    assert not writer.due(10**12)
    assert writer.due_us is None
    writer.output(b"x", 100)
    assert writer.due_us == 100 + w.SEGMENT_US
    assert not writer.due(99 + w.SEGMENT_US)
    assert writer.due(100 + w.SEGMENT_US)
    writer.seal()
    writer.begin()
    for _ in range(4):
        assert not writer.due(0)
        writer.output(b"x" * w.PIECE_MAX, 0)
    assert writer.due(0)
    writer.seal()
    writer.begin()
    for _ in range(8):
        writer.input([Typed(at_us=0, kind=Kind.TYPED, data=b"x" * w.PIECE_MAX)])
        assert not writer.due(0)
    for _ in range(4):
        writer.input([Typed(at_us=0, kind=Kind.TYPED, data=b"x" * w.PIECE_MAX)])
    assert writer.due(0)


@pytest.mark.parametrize(
    "flood", [bytes(1 << 20), b"\xff" * (1 << 20), b"\x01\xff" * (1 << 19), random.Random(1).randbytes(1 << 20)]
)
def test_no_flood_makes_an_object_that_a_reader_does_not_take(flood: bytes) -> None:
    paper = Paper()
    paper.output(flood)
    objects = paper.end()
    assert max(len(out) for out, _ in objects) < OBJECT_MAX // 2
    assert output_of(read(objects)) == flood


# --- canonical or rejected --------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(chunks, st.lists(st.binary(min_size=1, max_size=80), max_size=3), st.lists(st.integers(0, 12), max_size=3))
def test_what_was_read_renders_to_the_same_bytes(data: list[bytes], keys: list[bytes], cuts: list[int]) -> None:
    paper = Paper()
    for at, chunk in enumerate(data):
        paper.output(chunk)
        if keys and at % 2:
            paper.typed(*keys)
        if at in cuts:
            paper.cut()
        if at % 5 == 4:
            paper.lines(paper.writer.marker("été\n", paper.at_us))
    objects = paper.end()
    assert render(read(objects)) == objects
    assert render(read(example())) == example()


def _swap(text: bytes, old: bytes, new: bytes) -> bytes:
    assert old in text
    return text.replace(old, new, 1)


ONE, TWO, THREE = example()
CHANGED: list[tuple[str, list[tuple[bytes, bytes | None]], Fault]] = [
    ("a letter of the output", [(_swap(ONE[0], b"half", b"hall"), ONE[1]), TWO, THREE], Fault.OUT_DIGEST),
    ("an interval", [(_swap(ONE[0], b"[0.00", b"[0.01"), ONE[1]), TWO, THREE], Fault.OUT_DIGEST),
    ("an event dropped", [(ONE[0].replace(ONE[0].split(b"\n")[2] + b"\n", b""), ONE[1]), TWO, THREE], Fault.OUT_DIGEST),
    ("an exact line dropped", [(_swap(ONE[0], b"#b ", b"# "), ONE[1]), TWO, THREE], Fault.BAD_LINE),
    ("an exact line changed", [(_swap(ONE[0], b"#b w6", b"#b w7"), ONE[1]), TWO, THREE], Fault.NOT_CANONICAL),
    ("a comment added", [(_swap(ONE[0], b"[0.00", b"# hello\n[0.00"), ONE[1]), TWO, THREE], Fault.BAD_LINE),
    ("an input event put into the output lane", [(_swap(ONE[0], b'"r"', b'"i"'), ONE[1]), TWO, THREE], Fault.BAD_LINE),
    ("a size of nothing", [(_swap(ONE[0], b"100x30", b"0x30"), ONE[1]), TWO, THREE], Fault.BAD_LINE),
    ("another header", [(_swap(ONE[0], b"sha256:00", b"sha256:01"), ONE[1]), TWO, THREE], Fault.LINK),
    ("another session asked for", [ONE, TWO, THREE], Fault.OTHER_SESSION),
    ("the first segment of another session", [example(OTHER)[0], TWO, THREE], Fault.LINK),
    ("a segment of another session", [ONE, example(OTHER)[1], THREE], Fault.LINK),
    ("input of another session", [(ONE[0], example(OTHER)[0][1]), TWO, THREE], Fault.IN_DIGEST),
    ("input of another segment", [(ONE[0], TWO[1]), TWO, THREE], Fault.IN_DIGEST),
    ("lanes exchanged", [(ONE[1], ONE[0]), TWO, THREE], Fault.BAD_HEADER),
    ("lanes exchanged later", [ONE, (TWO[1], TWO[0]), THREE], Fault.BAD_LINE),
    ("a segment dropped", [ONE, THREE], Fault.ORDER),
    ("the first dropped", [TWO, THREE], Fault.BAD_HEADER),
    ("the last dropped", [ONE, TWO], Fault.NO_END),
    ("a segment twice", [ONE, TWO, TWO, THREE], Fault.ORDER),
    ("segments exchanged", [ONE, THREE, TWO], Fault.ORDER),
    ("something behind the end", [ONE, TWO, THREE, TWO], Fault.AFTER_END),
    ("nothing", [], Fault.NO_END),
    ("an empty object", [(b"", ONE[1])], Fault.TORN),
    ("the last newline cut", [(ONE[0][:-1], ONE[1])], Fault.TORN),
    ("the seal cut off", [(ONE[0][: ONE[0].rindex(w.SEAL)], ONE[1]), TWO, THREE], Fault.NO_SEAL),
    ("the seal twice", [(ONE[0] + ONE[0][ONE[0].rindex(w.SEAL) :], ONE[1]), TWO, THREE], Fault.BAD_LINE),
    ("a count of events", [(_swap(ONE[0], b'"events":4', b'"events":5'), ONE[1]), TWO, THREE], Fault.CHAIN),
    ("a count of bytes", [(_swap(ONE[0], b'"out_bytes":', b'"out_bytes":1'), ONE[1]), TWO, THREE], Fault.CHAIN),
    ("a count of input, its object not at hand", [(_swap(ONE[0], b'"inputs":1', b'"inputs":2'), None), TWO, THREE], Fault.CHAIN),
    (
        "input's digest, its object not at hand",
        [(_swap(ONE[0], b'"in_sha256":"', b'"in_sha256":"0')[:-1] + b"\n", None)],
        Fault.BAD_LINE,
    ),
    ("the reason of the end", [ONE, TWO, (_swap(THREE[0], b'"idle"', b'"none"'), THREE[1])], Fault.CHAIN),
    ("cut hidden or invented", [ONE, TWO, (_swap(THREE[0], b'"cut":false', b'"cut":true'), THREE[1])], Fault.CHAIN),
    ("the end taken away", [ONE, TWO, (_swap(THREE[0], b'{"cut":false,"reason":"idle"}', b"null"), THREE[1])], Fault.CHAIN),
    ("too long", [(b"x" * (OBJECT_MAX + 1), ONE[1])], Fault.TOO_LONG),
    ("a header too long", [(b"x" * (1 << 17) + b"\n", ONE[1])], Fault.BAD_HEADER),
    ("a deep header", [(b"[" * 60_000 + b"\n", ONE[1])], Fault.BAD_HEADER),
]


@pytest.mark.parametrize(("objects", "code"), [pytest.param(objects, code, id=what) for what, objects, code in CHANGED])
def test_every_change_is_found_and_named(
    objects: list[tuple[bytes, bytes | None]], code: Fault, request: pytest.FixtureRequest
) -> None:
    wanted = OTHER.sid if "another session asked for" in request.node.name else None
    assert invalid(objects, wanted) is code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"term"', b'{ "term"'),
        (b'"cols":80', b'"cols":80.0'),
        (b'"cols":80', b'"cols":080'),
        (b'"cols":80', b'"cols":true'),
        (b'"cols":80', b'"cols":65536'),
        (b'"version":3', b'"version":2'),
        (b'"version":3', b'"version":3,"version":3'),
        (b'"format":1', b'"format":2'),
        (b'"timestamp":1', b'"timestamp":99999999999991'),
        (b'"abcdefghij"', b'"ABCDEFGHIJ"'),
        (b'"sid":"abcdefghij"', b'"sid":null'),
        (b"sha256:0", b"sha256:A"),
    ],
)
def test_a_header_in_any_other_form_is_refused(old: bytes, new: bytes) -> None:
    assert invalid([(_swap(ONE[0], old, new), ONE[1]), TWO, THREE]) is Fault.BAD_HEADER


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'[0.000001, "o", "x"]', None),
        (b'[0.00001, "o", "x"]', Fault.BAD_LINE),
        (b'[0.0000001, "o", "x"]', Fault.BAD_LINE),
        (b'[00.000001, "o", "x"]', Fault.BAD_LINE),
        (b'[-0.000001, "o", "x"]', Fault.BAD_LINE),
        (b'[1e0, "o", "x"]', Fault.BAD_LINE),
        (b'[0.000001,"o","x"]', Fault.BAD_LINE),
        (b'[0.000001, "o", "x"] ', Fault.BAD_LINE),
        (b'[0.000001, "o", "x"]\r', Fault.BAD_LINE),
        (b'[0.000001, "o", "\\u0078"]', Fault.NOT_CANONICAL),
        (b'[0.000001, "o", "\\/"]', Fault.NOT_CANONICAL),
        (b'[0.000001, "o", "\\u001B"]', Fault.NOT_CANONICAL),
        (b'[0.000001, "o", "\\ud800"]', Fault.BAD_LINE),
        (b'[0.000001, "m", "\\ud800"]', Fault.BAD_LINE),
        (b'[0.000001, "o", "\xff"]', Fault.BAD_LINE),
        (b'[0.000001, "o", ""]', Fault.BAD_LINE),
        (b'[0.000001, "o", "x", "y"]', Fault.BAD_LINE),
        (b'[0.000001, "o", 1]', Fault.BAD_LINE),
        (b'[0.000001, "b", "x"]', Fault.BAD_LINE),
        (b'[0.000001, "r", "80X24"]', Fault.BAD_LINE),
        (b'[0.000001, "r", "080x24"]', Fault.BAD_LINE),
        (b'[0.000001, "r", "65536x24"]', Fault.BAD_LINE),
        (b'[0.000001, "x", "256"]', Fault.BAD_LINE),
        (b'[0.000001, "x", "-1"]', Fault.BAD_LINE),
        (b'#b eA==\n[0.000001, "o", "x"]', Fault.NOT_CANONICAL),
        (b'#b /w==\n[0.000001, "o", "x"]', Fault.NOT_CANONICAL),
        ('#b /w==\n[0.000001, "o", "\ufffd"]'.encode(), None),
        ('#b /x==\n[0.000001, "o", "\ufffd"]'.encode(), Fault.NOT_CANONICAL),
        ('#b /w\n[0.000001, "o", "\ufffd"]'.encode(), Fault.BAD_LINE),
        ('#b /w==\n#b /w==\n[0.000001, "o", "\ufffd"]'.encode(), Fault.BAD_LINE),
        (b'#b /w==\n[0.000001, "r", "80x24"]', Fault.BAD_LINE),
        (b"#b /w==", Fault.BAD_LINE),
        (b"", Fault.BAD_LINE),
    ],
)
def test_a_line_in_any_other_form_is_refused_even_when_the_digests_fit(line: bytes, code: Fault | None) -> None:
    writer = Writer(HEADER, key=KEY, wrapped_key=WRAPPED)
    head, inp = writer.begin()
    out = head + line + b"\n"
    counts = w.Counts(events=1, out_bytes=1, inputs=0)
    seal = w.sealed(w.first_link(HEADER), 1, (w.digest(out), w.digest(inp)), counts, End(reason="idle", cut=False))
    assert invalid([(out + w.seal_line(seal), inp)]) is code


def test_counts_that_do_not_fit_the_lines_are_refused_even_when_the_chain_fits() -> None:
    writer = Writer(HEADER, key=KEY, wrapped_key=WRAPPED)
    out, inp = writer.begin()
    for counts in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        wrong = w.Counts(events=counts[0], out_bytes=counts[1], inputs=counts[2])
        seal = w.sealed(w.first_link(HEADER), 1, (w.digest(out), w.digest(inp)), wrong, End(reason="idle", cut=False))
        assert invalid([(out + w.seal_line(seal), inp)]) is Fault.COUNTS


@pytest.mark.parametrize(
    "inp",
    [
        b"",
        ONE[1].split(b"\n")[0],
        ONE[1] + b"\n",
        ONE[1] + b"AAAA\n",
        ONE[1][:-2] + b"\n",
        ONE[1].replace(b"\n", b"\r\n"),
        ONE[1].replace(b'"n":1', b'"n":2'),
        TWO[1],
        b"x" * (OBJECT_MAX + 1),
    ],
)
def test_an_input_object_in_any_other_form_is_refused_even_when_the_digests_fit(inp: bytes) -> None:
    body = ONE[0][: ONE[0].rindex(w.SEAL)]
    old = read(example())[0].seal
    seal = w.sealed(w.first_link(HEADER), 1, (w.digest(body), w.digest(inp)), old.counts, old.end)
    assert invalid([(body + w.seal_line(seal), inp)]) in {
        Fault.TORN,
        Fault.BAD_INPUT,
        Fault.BAD_LINE,
        Fault.TOO_LONG,
        Fault.NOT_CANONICAL,
    }


def test_every_single_flipped_bit_is_found() -> None:
    objects = example()
    for segment, lane in itertools.product(range(3), range(2)):
        for at in range(len(objects[segment][lane])):
            pair = list(objects[segment])
            data = bytearray(pair[lane])
            data[at] ^= 1 << at % 8
            pair[lane] = bytes(data)
            changed = [*objects[:segment], (pair[0], pair[1]), *objects[segment + 1 :]]
            assert invalid(changed) is not None, (segment, lane, at)


@pytest.mark.slow
def test_a_hundred_thousand_mangled_records_are_read_or_refused_by_name() -> None:
    rng = random.Random(2026)
    objects = example()
    words = [
        b"[",
        b"]",
        b'"',
        b"\n",
        b"#b ",
        w.SEG,
        w.SEAL,
        b"null",
        b"1e999",
        b"\\ud800",
        b"\x00",
        b"{" * 50,
        b"-1",
        b"=",
        b"NaN",
    ]
    refused = 0
    for _ in range(100_000):
        pair = list(objects[rng.randrange(3)])
        lane = rng.randrange(2)
        data = bytearray(pair[lane])
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[at : at + rng.randrange(40)] = b""
                case 1:
                    data[at:at] = rng.choice(words)
                case 2:
                    data[at : at + 1] = rng.randbytes(1)
                case _:
                    data[at:at] = data[at : at + rng.randrange(200)]
        pair[lane] = bytes(data)
        reader = Reader()
        try:
            segment = reader.segment(pair[0], pair[1])
        except RecordInvalid:
            refused += 1
            continue
        assert [(pair[0], pair[1])] == render([segment]) == objects[:1]
    assert refused > 90_000


def test_a_fault_says_where_but_never_what() -> None:
    with pytest.raises(RecordInvalid) as raised:
        read([(_swap(ONE[0], b'"o"', b'"q"'), ONE[1])])
    assert str(raised.value) == "segment 1, event line 1: bad line"
    assert "horse" not in repr(Typed(at_us=0, kind=Kind.TYPED, data=b"horse"))
