"""Layer 6: the attach subresource's messages, parsed strictly: what is not the protocol is a violation, never a guess.

`v5.channel.k8s.io`, one WebSocket message at a time, sans-IO (the first byte names the channel). Must never: join or split
messages, or decide what a stream's end means. Sources: KEP-4006; Kubernetes 1.37, apimachinery
pkg/util/remotecommand/constants.go, apiserver pkg/util/proxy/websocket.go (an empty message
first: established), streaming pkg/httpstream/wsstream/conn.go (close).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, assert_never

SUBPROTOCOL: Final = "v5.channel.k8s.io"
STATUS_MAX: Final = 64 << 10
"""The longest Status we read, in bytes."""


class Channel(IntEnum):
    """The first byte of a message."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255


class ChannelViolation(Exception):  # noqa: N818 - named as FrameViolation is
    """A message that the protocol does not have. Says which rule it broke; holds none of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stdout:
    """From the container. The first one of a stream is empty and says that the stream is established."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stderr:
    """From the container; the supervisor writes none."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The API server's last word, a metav1.Status: how the container's process ended, or why it could not be attached to."""

    success: bool
    message: str
    reason: str
    exit_code: int | None
    raw: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stdin:
    """To the container."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """To the container's own terminal, where it has one (`tty: true`)."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """To the server: no more comes on that channel."""

    channel: Channel


ServerEvent = Stdout | Stderr | Status
ClientEvent = Stdin | Resize | Close


def from_server(message: bytes) -> ServerEvent:
    """One binary message of the API server; `ChannelViolation` when it is not one."""
    match message[:1]:
        case b"\x01":
            return Stdout(data=message[1:])
        case b"\x02":
            return Stderr(data=message[1:])
        case b"\x03":
            return _status(message[1:])
        case b"":
            raise ChannelViolation("a message without a channel")
        case _:
            raise ChannelViolation("a channel the server does not send on")


def from_client(message: bytes) -> ClientEvent:
    """One binary message of a client, as the API server reads it (for simulators and tests); sizes in our one JSON form only."""
    match message[:1]:
        case b"\x00":
            return Stdin(data=message[1:])
        case b"\x04":
            return _resize(message)
        case b"\xff":
            if len(message) != 2 or message[1] not in {Channel.STDIN, Channel.RESIZE}:
                raise ChannelViolation("a close that names no channel of the client")
            return Close(channel=Channel(message[1]))
        case b"":
            raise ChannelViolation("a message without a channel")
        case _:
            raise ChannelViolation("a channel the client does not send on")


def render(event: ServerEvent | ClientEvent) -> bytes:
    """The message that parses to `event`."""
    match event:
        case Stdin():
            return b"\x00" + event.data
        case Stdout():
            return b"\x01" + event.data
        case Stderr():
            return b"\x02" + event.data
        case Status():
            return b"\x03" + event.raw
        case Resize():
            return b'\x04{"Width":%d,"Height":%d}' % (event.cols, event.rows)
        case Close():
            return bytes([Channel.CLOSE, event.channel])
        case _:
            assert_never(event)


def _resize(message: bytes) -> Resize:
    size = _object(message[1:])
    cols, rows = size.get("Width"), size.get("Height")
    if type(cols) is not int or type(rows) is not int or not (1 <= cols <= 0xFFFF and 1 <= rows <= 0xFFFF):
        raise ChannelViolation("a size that is no size")
    event = Resize(cols=cols, rows=rows)
    if render(event) != message:
        raise ChannelViolation("a size in another form than ours")
    return event


def _status(raw: bytes) -> Status:
    """A Status says Success or Failure; an exit code only where the reason is NonZeroExitCode (client-go remotecommand/v4.go)."""
    status = _object(raw)
    word, message, reason = (status.get(key, "") for key in ("status", "message", "reason"))
    if word not in ("Success", "Failure") or not isinstance(message, str) or not isinstance(reason, str):
        raise ChannelViolation("a status that is neither Success nor Failure in words")
    success = word == "Success"
    code = 0 if success else None
    if not success and reason == "NonZeroExitCode":
        code = _exit_code(status.get("details"))
    return Status(success=success, message=message, reason=reason, exit_code=code, raw=raw)


def _exit_code(details: object) -> int:
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else []:
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode":  # a cause's type, as JSON calls it
            text = cause.get("message")
            if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 10:
                return int(text)
    raise ChannelViolation("a status of an exit without its code")


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > STATUS_MAX:
        raise ChannelViolation("a JSON value that is too long")
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError):
        raise ChannelViolation("not JSON") from None
    if not isinstance(value, dict):
        raise ChannelViolation("not a JSON object")
    return value
