"""The `breakglass` command: what there is to type, and how every end becomes an exit code. Imports a command only to run it."""

from __future__ import annotations

import importlib
import os
import sys

import click

from breakglass.cli.client import UnreachableError
from breakglass.cli.codes import Exit, SignalledError, UsageError

COMMANDS: dict[str, tuple[str, str]] = {
    "approve": ("breakglass.cli.sessions:approve", "Say yes to somebody else's request."),
    "can": ("breakglass.cli.sessions:can", "What you may do to an app, why not the rest, and who could."),
    "deny": ("breakglass.cli.sessions:deny", "Say no to a request."),
    "dev": ("breakglass.cli.dev:dev", "For the try profile: tokens and keys."),
    "doctor": ("breakglass.cli.doctor:doctor", "Check a site: every red line comes with its fix."),
    "end": ("breakglass.cli.sessions:end", "End a session; its record is sealed."),
    "replay": ("breakglass.cli.replay:replay", "Play a record in this terminal."),
    "serve": ("breakglass.cli.serve:serve", "Run Tower."),
    "sessions": ("breakglass.cli.sessions:sessions", "List sessions."),
    "shell": ("breakglass.cli.shell:shell", "Ask for a shell next to an app, wait, and be in it."),
    "verify": ("breakglass.cli.verify:verify", "Check a record: what is proved, and what is not."),
    "withdraw": ("breakglass.cli.sessions:withdraw", "Take back your own request."),
}
"""Every command, with the line `--help` shows; `docs/reference/cli.md` is generated from it and checked."""


class Commands(click.Group):
    """Commands by name, imported when used: `verify` must not load a server, `shell` must start at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, by name."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None for click to say that there is none of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module), name)
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without importing any of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in sorted(COMMANDS.items())])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="tower-breakglass", message="%(version)s")
def cli() -> None:
    """A shell next to a misbehaving pod in seconds, and proof for everybody else."""


def main() -> None:
    """Entry point. Every way out is one of `codes.Exit`, or 128 + the signal that ended us."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """One command; its exit code."""
    try:
        result = cli.main(arguments, prog_name="breakglass", standalone_mode=False)
    except UsageError as error:
        _say(str(error))
        return Exit.USAGE
    except UnreachableError as error:
        _say(str(error))
        return Exit.NO_CONNECTION
    except SignalledError as error:
        return 128 + error.number
    except click.exceptions.Abort:
        _say("stopped")
        return 130
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's own flush finds an open end
        return 141
    except KeyboardInterrupt:
        _say("stopped")
        return 130
    return int(result) if isinstance(result, int) else Exit.DONE


def _say(words: str) -> None:
    from breakglass.core.terminal import escape_field

    sys.stderr.write(f"tower: {escape_field(words)}\n")
