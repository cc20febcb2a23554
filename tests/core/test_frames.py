"""Against whoever holds the pipe: what is not whole, in order, once and ours is not delivered, nor is anything after it."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakglass.core.frames import (
    DATA_MAX,
    HEAD,
    NOTE_MAX,
    PAYLOAD_MAX,
    TAG,
    Data,
    End,
    Exit,
    ExitReason,
    Fault,
    FrameViolation,
    Note,
    Ping,
    Pong,
    Ready,
    Resize,
    Start,
    SupervisorEvent,
    SupervisorFrames,
    TowerEvent,
    TowerFrames,
    Type,
)

KEY = bytes(range(32))
sizes = st.integers(1, 0xFFFF)
data = st.binary(min_size=1, max_size=300).map(lambda b: Data(data=b))
nonces = st.binary(min_size=8, max_size=8)
u64 = st.integers(0, 2**64 - 1)
sums = st.binary(min_size=32, max_size=32)
to_supervisor = st.one_of(
    data,
    st.builds(Resize, cols=sizes, rows=sizes),
    st.builds(Ping, nonce=nonces),
    st.just(End()),
)
to_tower = st.one_of(
    data,
    st.builds(Pong, nonce=nonces, taken=u64),
    st.text(max_size=NOTE_MAX // 4).map(lambda text: Note(text=text)),
    st.builds(
        Exit,
        reason=st.sampled_from(ExitReason),
        status=st.integers(0, 255),
        signal=st.integers(0, 64),
        in_bytes=u64,
        in_sha256=sums,
        out_bytes=u64,
        out_sha256=sums,
    ),
)


def started() -> tuple[TowerFrames, SupervisorFrames]:
    tower = TowerFrames(KEY)
    supervisor = SupervisorFrames(tower.start_sha256)
    assert supervisor.feed(tower.start(80, 24, 20)) == [Start(key=KEY, cols=80, rows=24, lease_seconds=20)]
    assert tower.feed(supervisor.ready()) == [Ready(version=1)]
    return tower, supervisor


def from_tower(tower: TowerFrames, event: SupervisorEvent) -> bytes:
    match event:
        case Data():
            return tower.data(event.data)
        case Resize():
            return tower.resize(event.cols, event.rows)
        case Ping():
            return tower.ping(event.nonce)
        case End():
            return tower.end()
        case Start():
            return tower.start(event.cols, event.rows, event.lease_seconds)


def from_supervisor(supervisor: SupervisorFrames, event: TowerEvent) -> bytes:
    match event:
        case Data():
            return supervisor.data(event.data)
        case Pong():
            return supervisor.pong(event.nonce, event.taken)
        case Note():
            return supervisor.note(event.text)
        case Exit():
            return supervisor.exit(event)
        case Ready():
            return supervisor.ready()


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(at)]


def delivered(reader: TowerFrames | SupervisorFrames, chunks: list[bytes]) -> tuple[list[object], Fault | None]:
    """Everything that comes out, the violation's own events included, and the fault, which must stay."""
    events: list[object] = []
    faults: list[Fault] = []
    for chunk in chunks:
        try:
            events += reader.feed(chunk)
        except FrameViolation as violation:
            events += violation.events
            faults.append(violation.code)
    assert len(set(faults)) <= 1, "the first fault is the last word"
    return events, faults[0] if faults else None


@given(st.lists(to_supervisor), st.lists(to_tower), st.lists(st.integers(0, 10_000)))
def test_every_event_arrives_as_it_was_sent_however_the_bytes_are_cut(
    inward: list[SupervisorEvent], outward: list[TowerEvent], cuts: list[int]
) -> None:
    tower, supervisor = started()
    stream = b"".join(from_tower(tower, event) for event in inward)
    assert delivered(supervisor, pieces(stream, cuts)) == (inward, None)
    stream = b"".join(from_supervisor(supervisor, event) for event in outward)
    assert delivered(tower, pieces(stream, cuts)) == (outward, None)


@given(st.lists(to_tower, min_size=1, max_size=6), st.data(), st.lists(st.integers(0, 10_000), max_size=4))
def test_a_flipped_bit_anywhere_ends_the_stream_there(events: list[TowerEvent], draw: st.DataObject, cuts: list[int]) -> None:
    tower, supervisor = started()
    frames = [from_supervisor(supervisor, event) for event in events]
    stream = bytearray(b"".join(frames))
    bit = draw.draw(st.integers(0, len(stream) * 8 - 1))
    stream[bit // 8] ^= 1 << bit % 8
    hit = next(n for n in range(len(frames)) if bit // 8 < sum(map(len, frames[: n + 1])))
    more = from_supervisor(supervisor, Note(text="after"))
    # A flipped length may wait for bytes that never come: enough of them follow.
    got, fault = delivered(tower, [*pieces(bytes(stream), cuts), more, bytes(PAYLOAD_MAX)])
    assert got == events[:hit]
    assert fault is not None


@pytest.mark.parametrize("bit", range(8 * (HEAD.size + 8 + TAG)))
def test_each_single_bit_of_a_ping_is_guarded(bit: int) -> None:
    tower, supervisor = started()
    frame = bytearray(tower.ping(b"12345678"))
    frame[bit // 8] ^= 1 << bit % 8
    got, fault = delivered(supervisor, [bytes(frame), bytes(PAYLOAD_MAX)])
    assert got == []
    assert fault in {Fault.BAD_SEAL, Fault.TOO_LONG, Fault.UNKNOWN_TYPE, Fault.OUT_OF_ORDER, Fault.BAD_LENGTH}


@given(st.lists(to_supervisor, min_size=3, max_size=8), st.data(), st.sampled_from(["drop", "repeat", "swap", "replay"]))
def test_a_dropped_repeated_or_reordered_frame_ends_the_stream_there(
    events: list[SupervisorEvent], draw: st.DataObject, attack: str
) -> None:
    tower, supervisor = started()
    frames = [from_tower(tower, event) for event in events]
    at = draw.draw(st.integers(0, len(frames) - 2))
    attacked = {
        "drop": frames[:at] + frames[at + 1 :],
        "repeat": frames[: at + 1] + frames[at:],
        "swap": [*frames[:at], frames[at + 1], frames[at], *frames[at + 2 :]],
        "replay": [*frames, *frames[at:]],
    }[attack]
    good = {"drop": at, "repeat": at + 1, "swap": at, "replay": len(frames)}[attack]
    assert delivered(supervisor, attacked) == (events[:good], Fault.BAD_SEAL)


@given(st.binary(min_size=32, max_size=32).filter(lambda key: key != KEY), st.binary(max_size=80))
def test_a_foreign_key_starts_nothing(key: bytes, more: bytes) -> None:
    supervisor = SupervisorFrames(TowerFrames(KEY).start_sha256)
    assert delivered(supervisor, [TowerFrames(key).start(80, 24, 20) + more]) == ([], Fault.FOREIGN_START)
    with pytest.raises(FrameViolation, match="out_of_order"):
        supervisor.data(b"no output either")


def test_a_second_start_is_no_start() -> None:
    tower, supervisor = started()
    assert delivered(supervisor, [tower.start(80, 24, 20)]) == ([], Fault.OUT_OF_ORDER)


def test_input_before_start_never_counts() -> None:
    supervisor = SupervisorFrames(TowerFrames(KEY).start_sha256)
    assert delivered(supervisor, [TowerFrames(KEY).data(b"rm -rf /\n")]) == ([], Fault.OUT_OF_ORDER)


def test_output_reflected_as_input_does_not_open() -> None:
    _, supervisor = started()
    reflected = bytearray(supervisor.data(b"reboot\n"))
    reflected[0] = Type.DATA_IN
    assert delivered(supervisor, [bytes(reflected)]) == ([], Fault.BAD_SEAL)


def test_output_before_ready_never_counts() -> None:
    _, supervisor = started()
    assert delivered(TowerFrames(KEY), [supervisor.data(b"x")]) == ([], Fault.OUT_OF_ORDER)


def test_another_frame_version_is_refused() -> None:
    assert delivered(TowerFrames(KEY), [HEAD.pack(Type.READY, 1) + b"\x02"]) == ([], Fault.BAD_VERSION)


@pytest.mark.parametrize("kind", [Type.FILE_GET, Type.FILE_PUT, Type.FILE_DATA, 0, 0x7F, 0xFF])
def test_reserved_and_unknown_types_end_the_stream(kind: int) -> None:
    for reader in started():
        assert delivered(reader, [HEAD.pack(kind, 0)]) == ([], Fault.UNKNOWN_TYPE)


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_are_awaited() -> None:
    tower, supervisor = started()
    assert delivered(tower, [HEAD.pack(Type.DATA_OUT, PAYLOAD_MAX + 1)]) == ([], Fault.TOO_LONG)
    assert delivered(supervisor, [HEAD.pack(Type.DATA_IN, PAYLOAD_MAX + 1)]) == ([], Fault.TOO_LONG)


def sealed_by_hand(kind: Type, plain: bytes) -> bytes:
    """A frame under the right key whose payload is wrong: what a buggy supervisor would send."""
    _, supervisor = started()
    return supervisor._seal(kind, plain)


@pytest.mark.parametrize(
    ("kind", "plain", "fault"),
    [
        (Type.DATA_OUT, b"", Fault.BAD_LENGTH),
        (Type.PONG, bytes(15), Fault.BAD_LENGTH),
        (Type.PONG, bytes(17), Fault.BAD_LENGTH),
        (Type.EXIT, bytes(82), Fault.BAD_LENGTH),
        (Type.EXIT, bytes(83), Fault.BAD_VALUE),
        (Type.NOTE, b"\xff", Fault.BAD_VALUE),
        (Type.NOTE, bytes(NOTE_MAX + 1), Fault.BAD_LENGTH),
    ],
)
def test_a_sealed_payload_of_another_form_ends_the_stream(kind: Type, plain: bytes, fault: Fault) -> None:
    tower, _ = started()
    assert delivered(tower, [sealed_by_hand(kind, plain)]) == ([], fault)


@pytest.mark.parametrize(
    ("kind", "plain", "fault"),
    [
        (Type.DATA_IN, b"", Fault.BAD_LENGTH),
        (Type.RESIZE, bytes(4), Fault.BAD_VALUE),
        (Type.RESIZE, bytes(5), Fault.BAD_LENGTH),
        (Type.PING, bytes(7), Fault.BAD_LENGTH),
        (Type.END, b"now", Fault.BAD_LENGTH),
    ],
)
def test_a_sealed_command_of_another_form_ends_the_stream(kind: Type, plain: bytes, fault: Fault) -> None:
    tower, supervisor = started()
    assert delivered(supervisor, [tower._in.seal(kind, plain)]) == ([], fault)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda t: t.data(b""), Fault.BAD_LENGTH),
        (lambda t: t.data(bytes(DATA_MAX + 1)), Fault.BAD_LENGTH),
        (lambda t: t.resize(0, 24), Fault.BAD_VALUE),
        (lambda t: t.resize(80, 65536), Fault.BAD_VALUE),
        (lambda t: t.ping(b"short"), Fault.BAD_LENGTH),
        (lambda t: t.start(80, 24, 0), Fault.BAD_VALUE),
        (lambda t: t.start(80, 24, 121), Fault.BAD_VALUE),
        (lambda _: TowerFrames(b"short"), Fault.BAD_LENGTH),
    ],
    ids=["empty", "too long", "no width", "too high", "short nonce", "no lease", "long lease", "short key"],
)
def test_a_frame_the_other_side_would_refuse_is_not_made_and_costs_no_counter(
    call: Callable[[TowerFrames], object], fault: Fault
) -> None:
    tower, supervisor = started()
    with pytest.raises(FrameViolation) as refused:
        call(tower)
    assert refused.value.code is fault
    assert supervisor.feed(tower.data(b"still in order")) == [Data(data=b"still in order")]


def test_the_largest_frame_is_exactly_64_kib_on_the_wire() -> None:
    tower, supervisor = started()
    frame = tower.data(bytes(DATA_MAX))
    assert len(frame) == HEAD.size + PAYLOAD_MAX
    assert supervisor.feed(frame) == [Data(data=bytes(DATA_MAX))]


def test_neither_key_nor_keystroke_is_in_a_repr_or_an_error() -> None:
    tower, supervisor = started()
    assert "hunter2" not in repr(supervisor.feed(tower.data(b"hunter2"))) + repr(tower) + repr(supervisor)
    assert "0102" not in repr(Start(key=KEY, cols=1, rows=1, lease_seconds=1)).replace("\\x", "")
    with pytest.raises(FrameViolation) as dead:
        supervisor.feed(tower.data(b"hunter2") + b"hunter2-")
    assert "hunter2" not in str(dead.value) + repr(dead.value)
    assert dead.value.events == (Data(data=b"hunter2"),)


def test_the_vectors_of_the_spec_are_what_both_ends_write() -> None:
    spec = (Path(__file__).parents[2] / "spec" / "frames.md").read_text()
    tower, supervisor = started()
    said = [
        tower.start_sha256,
        *(frame.hex() for frame in (tower.start(80, 24, 20), tower.data(b"ls\n"), tower.ping(b"12345678"))),
        *(frame.hex() for frame in (tower.resize(120, 40), tower.end(), supervisor.ready(), supervisor.data(b"$ "))),
        *(frame.hex() for frame in (supervisor.pong(b"12345678", 3), supervisor.note("hello"))),
    ]
    assert re.findall(r"^\|.*\| `([0-9a-f]{12,})` \|$", spec, re.MULTILINE) == said


def test_the_hash_in_the_arguments_is_that_of_the_key() -> None:
    assert TowerFrames(KEY).start_sha256 == hashlib.sha256(KEY).hexdigest()


def test_a_frame_that_arrives_byte_by_byte_arrives() -> None:
    tower, supervisor = started()
    frame = tower.data(bytes(DATA_MAX))
    events = [event for at in range(len(frame)) for event in supervisor.feed(frame[at : at + 1])]
    assert events == [Data(data=bytes(DATA_MAX))]


@pytest.mark.slow
def test_a_hundred_thousand_random_streams_are_parsed_or_refused() -> None:
    rng = random.Random(1)
    heads = [*(bytes([kind]) for kind in Type), b"\x00", b"\xff"]
    for _ in range(50_000):
        length = rng.choice((0, 1, 8, TAG, 20, 38, 84, 99))
        noise = rng.choice(heads) + rng.choice((length.to_bytes(4, "big"), rng.randbytes(4))) + rng.randbytes(length)
        for reader in (TowerFrames(KEY), SupervisorFrames("0" * 64)):
            events, fault = delivered(reader, [noise, noise])
            assert events == [] or events == [Ready(version=1)]
            assert fault is None or fault in set(Fault)


@settings(max_examples=200)
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_behind_a_good_start_never_become_an_event(noise: bytes, ours: bool) -> None:
    tower, supervisor = started()
    events, _ = delivered(supervisor if ours else tower, [noise])
    assert events == []
