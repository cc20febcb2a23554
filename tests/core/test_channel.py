"""Against a server, a proxy or a pod that sends what it should not: a message is parsed exactly, or refused without a guess."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakglass.core.channel import (
    STATUS_MAX,
    Channel,
    ChannelViolation,
    ClientEvent,
    Close,
    Resize,
    ServerEvent,
    Status,
    Stderr,
    Stdin,
    Stdout,
    from_client,
    from_server,
    render,
)

SUCCESS = b'\x03{"metadata":{},"status":"Success"}'
EXIT_137 = (
    b'\x03{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code","reason":"NonZeroExitCode",'
    b'"details":{"causes":[{"reason":"ExitCode","message":"137"}]}}'
)
GONE = (
    b'\x03{"metadata":{},"status":"Failure","message":"container debug-x not found in pod","reason":"InternalError","code":500}'
)

server_events = st.one_of(st.builds(Stdout, data=st.binary()), st.builds(Stderr, data=st.binary()))
client_events = st.one_of(
    st.builds(Stdin, data=st.binary()),
    st.builds(Resize, cols=st.integers(1, 0xFFFF), rows=st.integers(1, 0xFFFF)),
    st.sampled_from([Close(channel=Channel.STDIN), Close(channel=Channel.RESIZE)]),
)


@given(server_events)
def test_what_the_server_says_arrives_as_it_was_said(event: ServerEvent) -> None:
    assert from_server(render(event)) == event


@given(client_events)
def test_what_tower_says_arrives_as_it_was_said(event: ClientEvent) -> None:
    assert from_client(render(event)) == event


@given(st.binary(max_size=40))
def test_a_message_that_parses_is_the_one_that_renders(message: bytes) -> None:
    for parse in (from_server, from_client):
        try:
            event = parse(message)
        except ChannelViolation:
            continue
        assert render(event) == message


@pytest.mark.parametrize("message", [SUCCESS, EXIT_137, GONE], ids=["success", "exit", "gone"])
def test_a_status_keeps_its_bytes(message: bytes) -> None:
    assert render(from_server(message)) == message


def test_the_first_empty_output_is_no_end() -> None:
    assert from_server(b"\x01") == Stdout(data=b"")


def test_success_is_exit_code_zero() -> None:
    event = from_server(SUCCESS)
    assert isinstance(event, Status)
    assert (event.success, event.exit_code, event.reason) == (True, 0, "")


def test_the_exit_code_of_a_killed_container_is_read() -> None:
    event = from_server(EXIT_137)
    assert isinstance(event, Status)
    assert (event.success, event.exit_code, event.reason) == (False, 137, "NonZeroExitCode")


def test_a_failure_to_attach_has_no_exit_code() -> None:
    event = from_server(GONE)
    assert isinstance(event, Status)
    assert (event.success, event.exit_code, event.message) == (False, None, "container debug-x not found in pod")


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (b"", "a message without a channel"),
        (b"\x00typed by the server", "a channel the server does not send on"),
        (b'\x04{"Width":80,"Height":24}', "a channel the server does not send on"),
        (b"\xff\x01", "a channel the server does not send on"),
        (b"\x05", "a channel the server does not send on"),
        (b"\x03", "not JSON"),
        (b"\x03\xff", "not JSON"),
        (b"\x03" + b"[" * 60_000, "not JSON"),
        (b"\x03[]", "not a JSON object"),
        (b"\x03{}", "a status that is neither Success nor Failure in words"),
        (b'\x03{"status":["Success"]}', "a status that is neither Success nor Failure in words"),
        (b'\x03{"status":"Failure","message":7}', "a status that is neither Success nor Failure in words"),
        (b'\x03{"status":"Failure","reason":"NonZeroExitCode"}', "a status of an exit without its code"),
        (b'\x03{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[7]}}', "a status of an exit without its code"),
        (EXIT_137.replace(b"137", b"-1"), "a status of an exit without its code"),
        (EXIT_137.replace(b"137", b"1" * 5000), "a status of an exit without its code"),
        (b"\x03" + b" " * (STATUS_MAX + 1), "a JSON value that is too long"),
    ],
    ids=str,
)
def test_what_the_server_must_not_send_is_refused(message: bytes, sentence: str) -> None:
    with pytest.raises(ChannelViolation) as refused:
        from_server(message)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (b"\x01output", "a channel the client does not send on"),
        (b"\xff", "a close that names no channel of the client"),
        (b"\xff\x00\x00", "a close that names no channel of the client"),
        (b"\xff\x01", "a close that names no channel of the client"),
        (b'\x04{"Width":0,"Height":24}', "a size that is no size"),
        (b'\x04{"Width":true,"Height":24}', "a size that is no size"),
        (b'\x04{"Width":80,"Height":65536}', "a size that is no size"),
        (b'\x04{"Height":24,"Width":80}', "a size in another form than ours"),
        (b"\x04null", "not a JSON object"),
    ],
    ids=str,
)
def test_what_tower_must_not_send_is_refused(message: bytes, sentence: str) -> None:
    with pytest.raises(ChannelViolation) as refused:
        from_client(message)
    assert str(refused.value) == sentence


def test_a_half_close_is_exactly_two_bytes() -> None:
    assert render(Close(channel=Channel.STDIN)) == b"\xff\x00"


def test_no_terminal_byte_is_in_a_repr() -> None:
    assert "hunter2" not in repr([Stdin(data=b"hunter2"), from_server(b"\x01hunter2"), from_server(b"\x02hunter2")])


def test_a_hundred_thousand_random_messages_are_parsed_or_refused() -> None:
    rng = random.Random(2)
    seeds = [SUCCESS, EXIT_137, GONE, b'\x04{"Width":80,"Height":24}', b"\xff\x00"]
    for _ in range(50_000):
        message = bytearray(rng.choice(seeds) if rng.random() < 0.7 else rng.randbytes(rng.randrange(30)))
        for _ in range(rng.randrange(4)):
            if message:
                message[rng.randrange(len(message))] = rng.choice((rng.randrange(256), *b'{}[]",:0'))
        for parse in (from_server, from_client):
            try:
                event = parse(bytes(message))
            except ChannelViolation:
                continue
            assert render(event) == message
