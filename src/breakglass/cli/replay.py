"""`breakglass replay`: a record played in this terminal, through the allow-list of `core/terminal.py` and nothing around it.

Layer 7's eyes. Must never: write a byte of a record to a terminal unfiltered, or call what it plays verified.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from breakglass.cli import say
from breakglass.cli.client import Client, Refused
from breakglass.cli.codes import Exit, UsageError
from breakglass.cli.fetch import fetch
from breakglass.cli.options import json_option, server_options, with_client
from breakglass.cli.say import voice
from breakglass.core.record import segment_name
from breakglass.core.record_read import OBJECT_MAX, Event, Reader, RecordInvalid
from breakglass.core.terminal import RESTORE, SafeTerminal, escape_field

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[ -/]*[0-~])")
"""What `SafeTerminal` may let through: whole sequences only, so that taking them out leaves no half."""


@click.command()
@click.argument("record", metavar="SID|DIRECTORY")
@click.option("--speed", type=click.FloatRange(0.1, 1000), default=1.0, show_default=True, help="How many times faster.")
@click.option(
    "--idle-limit", type=click.FloatRange(0.0, 3600), default=2.0, show_default=True, help="Seconds; longer pauses are cut to it."
)
@click.option("--text", is_flag=True, help="All of it at once: no pauses, no colours, no cursor moves.")
@json_option
@server_options
def replay(
    record: str,
    speed: float,
    idle_limit: float,
    url: str | None,
    token_file: Path | None,
    *,
    text: bool,
    as_json: bool,
) -> Exit:
    """Play the record of a session: from the server (an audit event), or from a directory with its objects."""
    show = _as_json if as_json else _as_text if text else lambda events: _play(events, speed, idle_limit)
    if Path(record).is_dir():
        return _shown(Path(record), show)
    with tempfile.TemporaryDirectory(prefix="breakglass-replay-") as directory:

        async def use(client: Client) -> Exit:
            refused = await fetch(client, record, Path(directory), inputs=False)
            if isinstance(refused, Refused):
                say.refusal(refused, as_json=as_json)
                return Exit.REFUSED
            return Exit.DONE

        code = with_client(url, token_file, use)
        return code if code is not Exit.DONE else _shown(Path(directory), show)


def _shown(directory: Path, show: Callable[[Iterator[Event]], None]) -> Exit:
    """Play segment by segment; what is before a fault is shown, and then the fault."""
    reader = Reader()
    try:
        show(_events(directory, reader))
    except RecordInvalid as fault:
        say.line(f"the record is wrong from here on: {fault}")
        return Exit.WRONG
    if reader.header is None:
        raise UsageError(f"{directory} holds no record: {segment_name(1)}.cast is expected in it")
    end = reader.end
    if end is None:
        say.line("the record has no end: the session goes on, or its last segments are not here")
    else:
        say.line(f"ended: {voice(end.reason.replace('_', ' '))}" + ("; the tail was cut by a crash" if end.cut else ""))
    say.line("played, not verified: breakglass verify does that")
    return Exit.DONE


def _events(directory: Path, reader: Reader) -> Iterator[Event]:
    while (path := directory / f"{segment_name(reader.number + 1)}.cast").is_file():
        with path.open("rb") as file:
            yield from reader.segment(file.read(OBJECT_MAX + 1), None).events


def _play(events: Iterator[Event], speed: float, idle_limit: float) -> None:
    """With the pauses it had. The terminal is given back as it was, whatever the record drew."""
    screen = SafeTerminal()
    due, last_us = time.monotonic(), 0
    try:
        for event in events:
            due += min((event.at_us - last_us) / 1e6, idle_limit) / speed
            last_us = event.at_us
            if (pause := due - time.monotonic()) > 0:
                time.sleep(pause)
            else:
                due = time.monotonic()
            _write(_drawn(event, screen))
    finally:
        _write(screen.close() + (RESTORE if os.isatty(1) else b""))
        _write(b"\r\n")


def _drawn(event: Event, screen: SafeTerminal) -> bytes:
    if event.code == "o":
        return screen.feed(event.data)
    if event.code == "m":
        return f"\r\n\x1b[0mtower: {escape_field(event.text)}\r\n".encode()
    return b""


def _as_text(events: Iterator[Event]) -> None:
    """Only what can be read: every control sequence is taken out, markers stand on lines of their own."""
    screen = SafeTerminal()
    for event in events:
        if event.code == "o":
            _write(_plain(screen.feed(event.data)))
        elif event.code == "m":
            _write(f"\ntower: {escape_field(event.text)}\n".encode())
    _write(_plain(screen.close()) + b"\n")


def _as_json(events: Iterator[Event]) -> None:
    """One document: output as base64, exact; times in microseconds since the record began."""
    found = [
        {
            "at_us": event.at_us,
            "code": event.code,
            **({"data": base64.b64encode(event.data).decode()} if event.code == "o" else {"text": event.text}),
        }
        for event in events
    ]
    say.document({"events": found})


def _plain(shown: bytes) -> bytes:
    return _SEQUENCE.sub(b"", shown).replace(b"\r", b"").replace(b"\b", b"")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
