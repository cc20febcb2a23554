"""`breakglass verify`: check a record; say in numbered steps what that proves, whom one must trust, and what it does not.

Imports only core, and a client only when it has to fetch. Must never: call a record authentic; until it is signed it is
"consistent with itself".
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from breakglass.cli.codes import Exit, UsageError
from breakglass.cli.examine import NOT_PROVED, TRUST, MissingError, Report, examine
from breakglass.core.model import is_sid
from breakglass.core.terminal import escape_field


@click.command()
@click.argument("record", metavar="SID|DIRECTORY")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option("--url", metavar="URL", help="Tower's address, when a SID is named; else BREAKGLASS_URL.")
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), help="File with your token, mode 0600.")
def verify(record: str, url: str | None, token_file: Path | None, *, as_json: bool) -> Exit:
    """Check the record of a session: from the server, or offline from a directory with its objects."""
    if Path(record).is_dir():
        return _say(_examined(Path(record)), as_json=as_json)
    if not (is_sid(record) or (4 <= len(record) <= 10 and record.isalnum())):
        raise UsageError(f"{record} is no directory and no session id")
    with tempfile.TemporaryDirectory(prefix="breakglass-verify-") as directory:
        whole = _fetched(record, Path(directory), url, token_file, as_json=as_json)
        return _say(_examined(Path(directory), inputs=whole), as_json=as_json) if isinstance(whole, bool) else whole


def _fetched(sid: str, into: Path, url: str | None, token_file: Path | None, *, as_json: bool) -> Exit | bool:
    """Whether everything was fetched; the exit code when the server refused."""
    from breakglass.cli import say
    from breakglass.cli.client import Client, Refused, where
    from breakglass.cli.fetch import fetch

    async def use() -> Exit | bool:
        async with Client(where(url, token_file)) as client:
            whole = await fetch(client, sid, into, inputs=True)
        if isinstance(whole, Refused):
            say.refusal(whole, as_json=as_json)
            return Exit.REFUSED
        return whole

    return asyncio.run(use())


def _examined(directory: Path, *, inputs: bool = True) -> Report:
    try:
        return examine(directory, inputs=inputs)
    except MissingError as error:
        raise UsageError(str(error)) from None


def _say(report: Report, *, as_json: bool) -> Exit:
    code = Exit.DONE if report.ok else Exit.WRONG
    if as_json:
        sys.stdout.write(json.dumps(_document(report), indent=2) + "\n")
        return code
    lines = [f"session {report.sid or 'unknown'}"]
    for number, step in enumerate(report.steps, start=1):
        word = {True: "holds", False: "WRONG", None: "not looked at"}[step.ok]
        lines.append(f"{number}. {step.what}: {word}: {step.detail}")
    verdict = "consistent with itself; origin NOT proved" if report.ok else "NOT a whole and consistent record"
    lines += ["", f"verdict: {verdict}", "", "whom you must trust:", *(f"  - {each}" for each in TRUST)]
    lines += ["not proved:", *(f"  - {each}" for each in NOT_PROVED)]
    sys.stdout.write("".join(f"{escape_field(line)}\n" for line in lines))
    return code


def _document(report: Report) -> dict[str, Any]:
    return {
        "sid": report.sid,
        "ok": report.ok,
        "origin_proved": False,
        "steps": [
            {"n": n, "what": step.what, "ok": step.ok, "detail": step.detail} for n, step in enumerate(report.steps, start=1)
        ],
        "trust": list(TRUST),
        "not_proved": list(NOT_PROVED),
    }
