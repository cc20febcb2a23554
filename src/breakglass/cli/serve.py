"""`breakglass serve`: Tower as one process. Stops on SIGTERM with every shell ended in words and every record sealed.

Must never: listen before its vault takes records, or run a trial's identity without being told that this is a trial.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import structlog
import uvicorn
from fastapi import FastAPI

from breakglass.cli import say
from breakglass.cli.codes import Exit, UsageError
from breakglass.cli.wiring import Wire, Wired, wired
from breakglass.config import ConfigError, Site, read_site
from breakglass.ports import PortError
from breakglass.web.app import create_app
from breakglass.web.server import server

SEAL_SECONDS = 25.0
"""How long a stopping Tower waits for its sessions to be sealed; what is not done then, the next start's reaper does."""


@click.command()
@click.option("--site", "site_file", type=click.Path(path_type=Path), required=True, help="The site's site.yaml.")
@click.option("--dev", is_flag=True, help="This is a trial on this machine: local identity and local repositories count.")
def serve(site_file: Path, *, dev: bool) -> Exit:
    """Run Tower until SIGTERM or Ctrl-C."""
    site = load(site_file)
    if site.profile == "try" and not dev:
        raise UsageError("profile try: whoever reads this machine's key is anybody; start it with --dev if that is meant")
    for warning in site.warnings():
        say.line(f"WARNING {warning}")
    _logs()
    try:
        return asyncio.run(run(site, dev=dev))
    except PortError as error:
        say.line(str(error))
        return Exit.WRONG


def load(site_file: Path) -> Site:
    """The site's decisions, or the sentence that says what is wrong as `UsageError`."""
    try:
        return read_site(site_file)
    except ConfigError as error:
        raise UsageError(str(error)) from None


async def run(site: Site, *, dev: bool, wire: Wire = wired) -> Exit:
    """Tower as `wire` composes it, until a signal.

    1. Everything is wired, and the vault takes records. 2. The port is ours. 3. The reaper takes up what an earlier process
    left; then people are let in. 4. Until a signal.
    """
    async with wire(site, dev=dev) as parts:
        probe = await parts.tower.vault.probe()  # (1)
        if not probe.usable:
            say.line(f"the vault takes no records, so there can be no sessions: {probe.sentence}")
            return Exit.WRONG
        say.line(f"vault: {probe.sentence}")
        with contextlib.closing(_bound(site)) as listener:  # (2)
            await parts.reaper.tick()  # (3)
            reaping = asyncio.create_task(parts.reaper.run())
            try:
                await _until_told(site, parts, listener)  # (4)
            finally:
                reaping.cancel()
                await asyncio.gather(reaping, return_exceptions=True)
    say.line("stopped")
    return Exit.DONE


async def _until_told(site: Site, parts: Wired, listener: socket.socket) -> None:
    """Serve; at the signal: no new sessions, live ones are ended in words and sealed, then the last answers go out."""
    app = create_app(parts.service, parts.tower.identity)
    serving = _quiet(server(app, host=site.listen.host, port=site.listen.port))
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    running = asyncio.create_task(serving.serve(sockets=[listener]))
    waiting = asyncio.create_task(told.wait())
    say.line(f"listening on http://{site.listen.host}:{site.listen.port}")
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)  # a second signal is a kill
    await _let_go(app, parts)
    serving.should_exit = True
    await running


async def _let_go(app: FastAPI, parts: Wired) -> None:
    say.line("stopping: no new sessions; live ones are being ended and sealed")
    app.state.stopping = True
    try:
        async with asyncio.timeout(SEAL_SECONDS):
            await parts.running.stop()
    except TimeoutError:
        say.line(f"not everything was sealed within {SEAL_SECONDS:.0f} s; the next start goes on with it")


def _bound(site: Site) -> socket.socket:
    try:
        return socket.create_server((site.listen.host, site.listen.port))
    except OSError as error:
        raise UsageError(
            f"cannot listen on {site.listen.host}:{site.listen.port} ({error.strerror}); see listen in site.yaml"
        ) from None


def _quiet(serving: uvicorn.Server) -> uvicorn.Server:
    """Our signals, not uvicorn's: it would raise one again after it has stopped, and an orderly end is exit code 0."""

    @contextlib.contextmanager
    def ours() -> Iterator[None]:
        yield

    serving.capture_signals = ours  # type: ignore[method-assign]
    return serving


def _logs() -> None:
    """JSON lines on standard error; an exception's values are never written, only its type and place."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger("info"),
    )
