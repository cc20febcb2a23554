"""`breakglass verify`: check a record; say in numbered steps what that proves, whom one must trust, and what it does not.

The checks are `core/verify.py`'s; a client is imported only to fetch. Must never: call a record authentic while it is not
signed, follow a link, or read more of a file than a record's object can be.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from breakglass.cli.codes import Exit, UsageError
from breakglass.core.model import is_sid
from breakglass.core.record import segment_name
from breakglass.core.record_read import OBJECT_MAX
from breakglass.core.terminal import escape_field
from breakglass.core.verify import MANIFEST, Result, Verified
from breakglass.core.verify import verify as look

WORDS = {Result.HOLDS: "holds", Result.FAILED: "WRONG", Result.DOUBTED: "DOUBTED", Result.NOT_LOOKED_AT: "not looked at"}


@click.command()
@click.argument("record", metavar="SID|DIRECTORY")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option("--url", metavar="URL", help="Tower's address, when a SID is named; else BREAKGLASS_URL.")
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), help="File with your token, mode 0600.")
def verify(record: str, url: str | None, token_file: Path | None, *, as_json: bool) -> Exit:
    """Check the record of a session: from the server, or offline from a directory with its objects."""
    if Path(record).is_dir():
        return _say(look(Objects(Path(record))), as_json=as_json)
    if not (is_sid(record) or (4 <= len(record) <= 10 and record.isalnum())):
        raise UsageError(f"{record} is no directory and no session id")
    with tempfile.TemporaryDirectory(prefix="breakglass-verify-") as directory:
        refused = _fetched(record, Path(directory), url, token_file, as_json=as_json)
        return refused or _say(look(Objects(Path(directory))), as_json=as_json)


class Objects(Mapping[str, bytes]):
    """The files of a directory by name, each read when it is asked for, and no further than an object can be long."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            self._names = sorted(path.name for path in directory.iterdir() if stat.S_ISREG(path.lstat().st_mode))
        except OSError as error:
            raise UsageError(f"{directory} cannot be read ({error.strerror})") from None
        if not {MANIFEST, f"{segment_name(1)}.cast"} & set(self._names):
            raise UsageError(f"{directory} holds no record: {MANIFEST} is expected in it, as in a vault's sessions/<sid>/")

    def __getitem__(self, name: str) -> bytes:
        """At most one byte more than is allowed, so that the reader sees it is too long."""
        if name not in self._names:
            raise KeyError(name)
        try:
            descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - the descriptor, so that no link is followed
                return file.read(OBJECT_MAX + 1)
        except OSError as error:
            raise UsageError(f"{self._directory / name} cannot be read ({error.strerror})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _fetched(sid: str, into: Path, url: str | None, token_file: Path | None, *, as_json: bool) -> Exit | None:
    """None once the record is in `into`; the exit code when the server refused."""
    from breakglass.cli import say
    from breakglass.cli.client import Client, Refused, where
    from breakglass.cli.fetch import fetch

    async def use() -> Exit | None:
        async with Client(where(url, token_file)) as client:
            refused = await fetch(client, sid, into, inputs=True)
        if isinstance(refused, Refused):
            say.refusal(refused, as_json=as_json)
            return Exit.REFUSED
        return None

    return asyncio.run(use())


def _say(found: Verified, *, as_json: bool) -> Exit:
    if as_json:
        sys.stdout.write(json.dumps(_document(found), indent=2) + "\n")
    else:
        lines = [f"session {found.sid or 'unknown'}"]
        for step in found.steps:
            code = f" ({step.code.value})" if step.code else ""
            lines.append(f"{step.number}. {step.sentence} {WORDS[step.result]}{code}: {step.detail}")
        verdict = "consistent with itself; origin NOT proved" if found.consistent else "NOT a whole and consistent record"
        lines += ["", f"verdict: {verdict}", "whom you must trust:", *(f"  - {each}" for each in found.trust)]
        lines += ["not proved:", *(f"  - {each}" for each in found.not_proved)]
        sys.stdout.write("".join(f"{escape_field(line)}\n" for line in lines))
    return Exit.DONE if found.consistent else Exit.WRONG


def _document(found: Verified) -> dict[str, Any]:
    steps = [
        {
            "n": step.number,
            "sentence": step.sentence,
            "result": step.result.value,
            "code": step.code.value if step.code else None,
            "detail": step.detail,
        }
        for step in found.steps
    ]
    return {
        "sid": found.sid,
        "consistent": found.consistent,
        "origin_proved": False,
        "steps": steps,
        "proved": list(found.proved),
        "trust": list(found.trust),
        "not_proved": list(found.not_proved),
    }
