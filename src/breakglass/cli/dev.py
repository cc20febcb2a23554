"""`breakglass dev`: what a trial needs and nothing else may use: tokens of the local identity, and keys to read input with.

Must never: work for a site that is not a trial, or write a secret key where others can read it.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import click
import pyrage  # type: ignore[import-untyped]

from breakglass.adapters.identity_local import MINUTES_MAX, mint
from breakglass.cli import say
from breakglass.cli.codes import Exit, UsageError
from breakglass.cli.serve import load
from breakglass.cli.wiring import local_key
from breakglass.core.model import entity_ref
from breakglass.ports import PortError


@click.group()
def dev() -> None:
    """For the try profile: tokens and keys."""


@dev.command()
@click.argument("person")
@click.option("--site", "site_file", type=click.Path(path_type=Path), required=True, help="The site's site.yaml.")
@click.option("--minutes", type=click.IntRange(1, MINUTES_MAX), default=60, show_default=True, help="How long it is good for.")
def token(person: str, site_file: Path, minutes: int) -> Exit:
    """Print a token that makes its holder PERSON. Loud on purpose: whoever can run this is anybody."""
    ref = entity_ref(person, kind="user")
    if ref is None or not ref.startswith("user:"):
        raise UsageError(f"{person} is no person of a catalog; write user:default/ana, or just ana")
    try:
        minted = mint(local_key(load(site_file)), ref, minutes, datetime.now(tz=UTC))
    except PortError as error:
        raise UsageError(str(error)) from None
    say.line(f"WARNING Tower's local identity, not for production: its holder is {ref} for {minutes} min")
    click.echo(minted)
    return Exit.DONE


@dev.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def keys(directory: Path) -> Exit:
    """Make two age keys in DIRECTORY, reviewers.key and recovery.key, and print the recipients for site.yaml."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = ["recipients:"]
    for name in ("reviewers.key", "recovery.key"):
        identity = pyrage.x25519.Identity.generate()
        public = str(identity.to_public())
        made = f"# created: {datetime.now(tz=UTC):%Y-%m-%dT%H:%M:%SZ}\n# public key: {public}\n{identity}\n"
        try:
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{directory / name} is not written ({error.strerror}); a key is never replaced") from None
        with os.fdopen(descriptor, "w") as file:
            file.write(made)
        lines.append(f"  - {public}  # {name}")
    click.echo("\n".join(lines))
    say.line(f"keep {directory / 'recovery.key'} offline, away from Tower's machine; it reads every input lane")
    return Exit.DONE
