"""Options that many commands share, and the way an asynchronous command runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from breakglass.cli.client import Client, where
from breakglass.cli.codes import Exit

F = TypeVar("F", bound=Callable[..., Any])


def server_options(command: F) -> F:
    """`--url` and `--token-file`. There is no `--token`: arguments are visible to everybody on the machine."""
    command = click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File with your token, mode 0600; else BREAKGLASS_TOKEN, else ~/.config/breakglass/token.",
    )(command)
    return click.option("--url", metavar="URL", help="Tower's address; else BREAKGLASS_URL, else http://127.0.0.1:8443.")(command)


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")(command)


def with_client(url: str | None, token_file: Path | None, use: Callable[[Client], Coroutine[Any, Any, Exit]]) -> Exit:
    """Run one asynchronous command against the server."""

    async def running() -> Exit:
        async with Client(where(url, token_file)) as client:
            return await use(client)

    return asyncio.run(running())
