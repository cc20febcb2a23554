"""`can`, `sessions`, `approve`, `deny`, `withdraw`, `end`: small questions and small changes, one request each."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import click

from breakglass.cli import say
from breakglass.cli.client import Answer, Client, Refused, segment
from breakglass.cli.codes import Exit, UsageError
from breakglass.cli.options import json_option, server_options, with_client


@click.command()
@click.argument("app")
@json_option
@server_options
def can(app: str, url: str | None, token_file: Path | None, *, as_json: bool) -> Exit:
    """What you may do to APP in each environment, why not the rest, and who could."""

    async def use(client: Client) -> Exit:
        found = await client.get(f"/apps/{segment(app)}/capabilities")
        if isinstance(found, Refused):
            return _refused(found, as_json=as_json)
        if as_json:
            say.document(found)
        else:
            _can(found)
        return Exit.DONE

    return with_client(url, token_file, use)


def _can(found: Answer) -> None:
    app, mine = found["app"], ", ".join(found["relations"]) or "nothing to it"
    say.text(f"{app['app']}: you are {mine}; owned by {', '.join(app['owners'])}")
    if found["open_session"]:
        say.text(f"your open session: {found['open_session']}")
    for environment in found["environments"]:
        say.text()
        if (error := environment["error"]) is not None:
            say.text(f"{environment['name'] or 'an environment'}: {error['sentence']} ({error['code']})")
            say.text(f"  {error['remedy']}")
        else:
            stale = ", as of an old cicd.yaml" if environment["stale"] else ""
            say.text(
                f"{environment['name']}: {environment['tier_words']}, {environment['cluster']}/{environment['namespace']}{stale}"
            )
        rows = [_capability(each) for each in environment["capabilities"]]
        if rows:
            say.table(("action", "you", "why not", "who could"), rows)


def _capability(each: Answer) -> tuple[str, str, str, str]:
    why = "" if each["allowed"] else f"{each['sentence']} ({each['code']})"
    return each["action"], "yes" if each["allowed"] else "no", why, ", ".join(each["who_could"])


@click.command()
@click.option("--open", "only_open", is_flag=True, help="Only sessions that are not over.")
@click.option("--app", help="Only this app's.")
@json_option
@server_options
def sessions(app: str | None, url: str | None, token_file: Path | None, *, only_open: bool, as_json: bool) -> Exit:
    """List the sessions you may see, newest first."""

    async def use(client: Client) -> Exit:
        found = await client.get("/sessions", app=app, open=only_open)
        if isinstance(found, Refused):
            return _refused(found, as_json=as_json)
        if as_json:
            say.document(found)
        elif found["sessions"]:
            say.table(
                ("sid", "app", "environment", "requester", "state", "since", "reason"), [_row(each) for each in found["sessions"]]
            )
        else:
            say.line("no sessions")
        return Exit.DONE

    return with_client(url, token_file, use)


def _row(session: Answer) -> tuple[str, ...]:
    since = datetime.fromisoformat(session["changed_at"]).astimezone()
    marks = [*session["flags"], *(["glass broken"] if session["glass"] else [])]
    state = session["state"] + (f" ({', '.join(marks)})" if marks else "")
    reason = session["reason"]
    return (
        session["sid"],
        session["app"],
        session["environment"],
        session["requester"],
        state,
        f"{since:%Y-%m-%d %H:%M}",
        reason if len(reason) <= 60 else reason[:59] + "…",
    )


@click.command()
@click.argument("sid")
@click.option("--digest", help="The request's digest, as the requester gave it to you: approves that and nothing else.")
@click.option("--yes", is_flag=True, help="Approve what is shown without being asked.")
@json_option
@server_options
def approve(sid: str, digest: str | None, url: str | None, token_file: Path | None, *, yes: bool, as_json: bool) -> Exit:
    """Say yes to somebody else's request, after it has been shown to you."""

    async def use(client: Client) -> Exit:
        seen = await client.get(f"/sessions/{segment(sid)}")
        if isinstance(seen, Refused):
            return _refused(seen, as_json=as_json)
        _shown(seen)
        session = seen["session"]
        if digest is None and not yes and not _agreed(f"approve {session['sid']}", "--yes or --digest"):
            say.line("not approved")
            return Exit.NOT_APPROVED
        done = await client.post(f"/sessions/{session['sid']}/approve", {"request_digest": digest or session["request_digest"]})
        return _changed(done, "approved", as_json=as_json)

    return with_client(url, token_file, use)


def _shown(seen: Answer) -> None:
    """Everything an approval is about, on standard error: the digest last, it names all of it."""
    session = seen["session"]
    for words in (
        f"{session['requester']} asks for {session['app']} in {session['environment']}, {session['tier_words']}",
        f"for {session['minutes']} min, from the first shell on",
        f"because: {session['reason']}",
        f"container {session['container'] or 'chosen by Tower'}, mode {session['mode']}, state {session['state']}",
        say.voice(seen["process_access_sentence"]),
        f"request {session['request_digest']}",
    ):
        say.line(words)


def _agreed(what: str, flag: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"nobody is here to ask: {flag} says it")
    return click.confirm(f"tower: {what}?", default=False, err=True)


@click.command()
@click.argument("sid")
@json_option
@server_options
def deny(sid: str, url: str | None, token_file: Path | None, *, as_json: bool) -> Exit:
    """Say no to a request."""
    return _verb(sid, "deny", "denied", url, token_file, as_json=as_json)


@click.command()
@click.argument("sid")
@json_option
@server_options
def withdraw(sid: str, url: str | None, token_file: Path | None, *, as_json: bool) -> Exit:
    """Take back your own request."""
    return _verb(sid, "withdraw", "withdrawn", url, token_file, as_json=as_json)


@click.command()
@click.argument("sid")
@click.option("--wait", is_flag=True, help="Until its record is sealed.")
@json_option
@server_options
def end(sid: str, url: str | None, token_file: Path | None, *, wait: bool, as_json: bool) -> Exit:
    """End a session: its shell dies, its grant goes, its record is sealed."""

    async def use(client: Client) -> Exit:
        done = await client.post(f"/sessions/{segment(sid)}/end")
        if isinstance(done, Refused) or not wait:
            return _changed(done, "ending", as_json=as_json)
        progress = say.Progress()
        while done["state"] in {"approved", "opening", "active", "disconnected", "shell_closing", "closing"}:
            progress.show(f"session {done['sid']} {done['state']}")
            seen = await client.get(f"/sessions/{done['sid']}", newer_than=done["version"])
            if isinstance(seen, Refused):
                progress.clear()
                return _refused(seen, as_json=as_json)
            done = seen["session"]
        progress.clear()
        if done["state"] == "stuck":
            say.line(f"the record is sealed, but the cluster side is not clean: {done['stuck_because']}")
        return _changed(done, done["state"], as_json=as_json)

    return with_client(url, token_file, use)


def _verb(sid: str, verb: str, past: str, url: str | None, token_file: Path | None, *, as_json: bool) -> Exit:
    async def use(client: Client) -> Exit:
        return _changed(await client.post(f"/sessions/{segment(sid)}/{verb}"), past, as_json=as_json)

    return with_client(url, token_file, use)


def _changed(done: Answer | Refused, past: str, *, as_json: bool) -> Exit:
    if isinstance(done, Refused):
        return _refused(done, as_json=as_json)
    if as_json:
        say.document(done)
    else:
        say.line(f"session {done['sid']} {past}")
    return Exit.DONE


def _refused(refused: Refused, *, as_json: bool) -> Exit:
    say.refusal(refused, as_json=as_json)
    return Exit.REFUSED
