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
from breakglass.cli.options import json_option
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
@json_option
def token(person: str, site_file: Path, minutes: int, *, as_json: bool) -> Exit:
    """Print a token that makes its holder PERSON. Loud on purpose: whoever can run this is anybody."""
    ref = entity_ref(person, kind="user")
    if ref is None or not ref.startswith("user:"):
        raise UsageError(f"{person} is no person of a catalog; write user:default/ana, or just ana")
    try:
        minted = mint(local_key(load(site_file)), ref, minutes, datetime.now(tz=UTC))
    except PortError as error:
        raise UsageError(str(error)) from None
    say.line(f"WARNING Tower's local identity, not for production: its holder is {ref} for {minutes} min")
    if as_json:
        say.document({"person": ref, "minutes": minutes, "token": minted})
    else:
        click.echo(minted)
    return Exit.DONE


@dev.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@json_option
def keys(directory: Path, *, as_json: bool) -> Exit:
    """Make two age keys in DIRECTORY, reviewers.key and recovery.key, and print the recipients for site.yaml."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: dict[str, str] = {}
    for name in ("reviewers.key", "recovery.key"):
        identity = pyrage.x25519.Identity.generate()
        public = str(identity.to_public())
        text = f"# created: {datetime.now(tz=UTC):%Y-%m-%dT%H:%M:%SZ}\n# public key: {public}\n{identity}\n"
        try:
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{directory / name} is not written ({error.strerror}); a key is never replaced") from None
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        made[name] = public
    if as_json:
        say.document({"recipients": list(made.values())})
    else:
        click.echo("\n".join(["recipients:", *(f"  - {public}  # {name}" for name, public in made.items())]))
    say.line(f"keep {directory / 'recovery.key'} offline, away from Tower's machine; it reads every input lane")
    return Exit.DONE
