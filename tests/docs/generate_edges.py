"""The pages about the edges: every HTTP route with its permission, and every command with its options."""

# ruff: noqa: E501 - a table row is one line in Markdown
from __future__ import annotations

import json
from typing import Any

import click
from fastapi.openapi.utils import get_openapi

from breakglass.cli.codes import MEANING
from breakglass.cli.main import COMMANDS, cli
from breakglass.core.permissions import Permission
from breakglass.web.app import ROUTES, Route, create_app
from breakglass.web.errors import STATUS

NOTE = "<!-- Made by tests/docs/generate.py; do not edit. -->"
RULES = {"own": "whoever is signed in, for themselves", "open": "anybody", "ticket": "a one-time ticket"}


def http() -> str:
    """`docs/reference/http.md`."""
    by_status: dict[int, list[str]] = {}
    for code, status in STATUS.items():
        by_status.setdefault(int(status), []).append(f"`{code.value}`")
    return "\n".join(
        [
            NOTE,
            "# HTTP API",
            "",
            "`Authorization: Bearer <token>` on every route that is not open. Whatever changes something is `POST` with",
            "`Content-Type: application/json` (`{}` where there is nothing to say), at most 64 KiB, and not from another site",
            "(`Sec-Fetch-Site`). A field that is not listed is refused. `/openapi.json` is the same, for machines.",
            "",
            "## Routes",
            "",
            "| method | path | who | what |",
            "|---|---|---|---|",
            *(_row(route) for route in ROUTES),
            "",
            "The permission is asked for the session's or the request's app, again on every call (`service.py`). A requester may see and end their",
            "own session without one; only they open it and type in it.",
            "",
            "## Bodies",
            "",
            *_bodies(),
            "## Errors",
            "",
            'One shape: `{"error": {"code", "sentence", "remedy", "sid"?}}`. What the codes mean: [codes](codes.md).',
            "",
            "| status | codes |",
            "|---|---|",
            *(f"| {status} | {', '.join(sorted(codes))} |" for status, codes in sorted(by_status.items())),
            "",
            *_WEBSOCKET,
        ]
    )


def _row(route: Route) -> str:
    who = f"`{route.rule.value}`" if isinstance(route.rule, Permission) else RULES[route.rule]
    what = (route.handler.__doc__ or "").strip().partition("\n")[0]
    return f"| {route.method} | `{route.path.replace(':path', '')}` | {who} | {what} |"


def _bodies() -> list[str]:
    app = create_app(None, None)  # type: ignore[arg-type]  # described, not run
    api = get_openapi(title=app.title, version=app.version, routes=app.routes)
    lines: list[str] = []
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            reference = (
                operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {}).get("$ref")
            )
            schema = api["components"]["schemas"][reference.rpartition("/")[2]] if reference else {}
            if schema.get("properties"):
                lines += [f"`{method.upper()} {path}`", "", "| field | type | default |", "|---|---|---|"]
                lines += [_field(name, field, name in schema.get("required", [])) for name, field in schema["properties"].items()]
                lines.append("")
    return lines


def _field(name: str, field: dict[str, Any], needed: bool) -> str:
    words = [_kind(kind) for kind in [field, *field.get("anyOf", [])] if "type" in kind]
    default = json.dumps(field.get("default"))
    return f"| `{name}` | {' or '.join(words)} | {'required' if needed else f'`{default}`'} |"


def _kind(kind: dict[str, Any]) -> str:
    if "enum" in kind:
        return " / ".join(f"`{value}`" for value in kind["enum"])
    shown = (("minimum", "≥ {}"), ("maximum", "≤ {}"), ("maxLength", "≤ {} characters"))
    limits = [form.format(int(kind[name])) for name, form in shown if name in kind]
    return kind["type"] + (f" ({', '.join(limits)})" if limits else "")


_WEBSOCKET = (
    "## The WebSocket, `tower.v1`",
    "",
    "Offer the subprotocols `tower.v1` and `tower.ticket.<ticket>`; the server selects `tower.v1`. A refusal is plain HTTP 403 with the",
    "error body, before any upgrade. Origin, where there is one, must be Tower's own, and the one the ticket was issued to.",
    "",
    "| from | frame | means |",
    "|---|---|---|",
    '| viewer | text `{"type":"hello","cols","rows","offset"}` | first, within 10 s; `offset`: go on after this output byte, null: this shell from its beginning |',
    '| server | text `{"type":"hello","sid","role","offset","shell","pod","hard_stop_at"}` | the answer; output begins at `offset` |',
    "| server | binary | 8 bytes big-endian offset of the first byte, then output |",
    "| viewer | binary, ≤ 64 KiB | typed bytes (role `drive`) |",
    '| server | text `{"type":"taken","bytes"}` | the shell has taken so many typed bytes of this connection; more than 1 MiB ahead is closed |',
    '| viewer | text `{"type":"ack","offset"}` | every byte before `offset` is on the screen; the server keeps 1 MiB ahead of it |',
    '| viewer | text `{"type":"resize","cols","rows"}` | the terminal has a new size |',
    '| server | text `{"type":"notice","kind","sentence",…}` | words for the person |',
    '| server | text `{"type":"ended","reason","sentence","session_open"}` | the last word; close 4000 follows |',
    "",
    "Close 4000: the shell ended, do not reconnect. 1008 and a word (`no_hello`, `bad_frame`, `read_only`) or 1009 (`too_big`, `too_far_ahead`):",
    "a rule was broken. Anything else: reconnect with a new ticket and the offset. Both sides ping every 10 s.",
    "",
)


def commands() -> str:
    """`docs/reference/cli.md`."""
    context = click.Context(cli, info_name="breakglass", terminal_width=110)
    lines = [
        NOTE,
        "# Command line",
        "",
        "Answers go to standard output, everything else to standard error as `tower: …`; `--json` makes the answer one JSON document.",
        "Which server and who: `--url` or `BREAKGLASS_URL`; `BREAKGLASS_TOKEN`, `--token-file` or `~/.config/breakglass/token` (mode 0600).",
        "",
        "| exit code | means |",
        "|---|---|",
        *(f"| {int(code)} | {words} |" for code, words in MEANING.items()),
        "",
        "The exit code of what ran in the shell is not passed on: it is in the record. A signal ends a command with 128 and its number.",
        "",
    ]
    for name in sorted(COMMANDS):
        command = cli.get_command(context, name)
        assert command is not None
        lines += _command(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(lines)


def _command(command: click.Command, context: click.Context) -> list[str]:
    lines = [f"## {context.command_path}", "", "```", command.get_help(context), "```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            lines += [
                f"#{line}" if line.startswith("## ") else line
                for line in _command(inner, click.Context(inner, info_name=name, parent=context))
            ]
    return lines
