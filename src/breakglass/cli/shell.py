"""`breakglass shell`: ask, wait, open, be in it, come back to it. One verb for the whole of a night's work.

Must never: ask for a second session when the person has one for this app already, or end one the person only left.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from breakglass.cli import say
from breakglass.cli.client import OPEN_SECONDS, Answer, Client, Refused, UnreachableError, segment
from breakglass.cli.codes import Exit, UsageError
from breakglass.cli.options import json_option, server_options, with_client
from breakglass.cli.rawtty import Screen, ending_signals
from breakglass.cli.relay import Hello, Left, Lost, Outcome, Over, Relay

BY_YOU = frozenset({"ended_by_requester", "shell_exited"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asked for."""

    app: str
    environment: str
    reason: str | None
    container: str | None
    pod: str | None
    minutes: int
    process_access: bool
    mode: str
    break_glass: bool
    resume: str | None
    reopen: bool
    exit_on_eof: bool
    as_json: bool


@click.command()
@click.argument("target", metavar="APP/ENVIRONMENT", required=False)
@click.option("-r", "--reason", help="Why; the approver and the reviewer read it.")
@click.option("-c", "--container", help="Which container it is about; needed when a pod has several and names no default.")
@click.option("--pod", help="Which pod; else one that is not ready before one that is, the oldest first.")
@click.option("--minutes", type=click.IntRange(10, 60), default=30, show_default=True, help="How long, from the first shell on.")
@click.option("--process-access", is_flag=True, help="Join the app's process namespace: its memory, secrets and files.")
@click.option("--copy", is_flag=True, help="A pod beside the app instead of a container in it.")
@click.option("--break-glass", is_flag=True, help="Admins: without an approver, marked, alarmed and reviewed.")
@click.option("--resume", metavar="SID", help="Go on in a session that is open already.")
@click.option("--no-reopen", is_flag=True, help="Do not open another shell when this one's pod goes away.")
@click.option("--exit-on-eof", is_flag=True, help="When standard input ends, send the shell an end of file.")
@json_option
@server_options
def shell(target: str | None, url: str | None, token_file: Path | None, **options: Any) -> Exit:
    """Ask for a shell next to an app, wait for the approval, and be in it.

    With input from a pipe the same shell runs without a raw terminal: what is piped is typed, and the command waits for
    the shell's end. With --json the shell's bytes go to standard error and one document to standard output.
    """
    wanted = _wanted(target, **options)
    return with_client(url, token_file, lambda client: _Visit(client, wanted).run())


def _wanted(target: str | None, *, copy: bool, no_reopen: bool, resume: str | None, **rest: Any) -> Wanted:
    if (target is None) == (resume is None):
        raise UsageError("name APP/ENVIRONMENT, or a session with --resume SID")
    app, slash, environment = (target or "/").rpartition("/")
    if target is not None and not (slash and app and environment):
        raise UsageError(f"{target} is not APP/ENVIRONMENT; breakglass can {target} lists its environments")
    return Wanted(app=app, environment=environment, mode="copy" if copy else "live", resume=resume, reopen=not no_reopen, **rest)


class _Visit:
    """One run of the command."""

    def __init__(self, client: Client, wanted: Wanted) -> None:
        self._client, self._wanted = client, wanted
        self._sid = ""
        self._seen: Answer = {}

    async def run(self) -> Exit:
        with ending_signals():
            session = await self._session()
            if isinstance(session, Exit):
                return session
            self._sid = session["sid"]
            ready = await self._until_approved()
            return ready if isinstance(ready, Exit) else await self._shells()

    # --- ask ----------------------------------------------------------------------------------------------------------

    async def _session(self) -> Answer | Exit:
        """The session to be in: the one named, the person's own open one for this app and environment, or a new one."""
        wanted = self._wanted
        if wanted.resume is not None:
            seen = await self._client.get(f"/sessions/{segment(wanted.resume)}")
            return self._refused(seen) if isinstance(seen, Refused) else seen["session"]
        if (mine := await self._mine()) is not None:
            return mine
        if not (wanted.reason or "").strip():
            raise UsageError('say why: -r "…"; the approver and the reviewer read it')
        asked = await self._client.post(
            "/sessions",
            {
                "app": wanted.app,
                "environment": wanted.environment,
                "reason": wanted.reason,
                "container": wanted.container,
                "mode": wanted.mode,
                "minutes": wanted.minutes,
                "process_access": wanted.process_access,
                "break_glass": wanted.break_glass,
            },
        )
        if isinstance(asked, Refused):
            return self._refused(asked)
        say.line(
            f"session {asked['sid']}: {asked['app']} in {asked['environment']}, {asked['tier_words']}, {asked['minutes']} min"
        )
        say.line(f"request {asked['request_digest']}")
        return asked

    async def _mine(self) -> Answer | None:
        """The asker's own open session for this app and environment. None also when Tower cannot say: asking will tell."""
        found = await self._client.get(f"/apps/{segment(self._wanted.app)}/capabilities")
        sid = None if isinstance(found, Refused) else found["open_session"]
        seen = await self._client.get(f"/sessions/{sid}") if sid else None
        if seen is None or isinstance(seen, Refused) or isinstance(found, Refused):
            return None
        session: Answer = seen["session"]
        if (session["app"], session["environment"]) != (found["app"]["app"], self._wanted.environment):
            return None
        say.line(f"you have session {session['sid']} open here already ({session['state']}): going on in it")
        return session

    # --- wait ---------------------------------------------------------------------------------------------------------

    async def _until_approved(self) -> Answer | Exit:
        """Follow the session until it can open; Ctrl-C offers to withdraw."""
        progress = say.Progress()
        interrupted = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupted.set)
        try:
            async with aclosing(self._follow(interrupted, progress)) as looks:
                async for seen in looks:
                    progress.clear()
                    answer = await self._interrupted() if seen is None else self._judge(seen)
                    if answer is not None:
                        return answer
                    interrupted.clear()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            progress.clear()
        raise AssertionError("a session is followed until it has an answer")

    async def _follow(self, interrupted: asyncio.Event, progress: say.Progress) -> AsyncGenerator[Answer | Refused | None]:
        """The session now and at each change; None at each Ctrl-C. The live line is redrawn every second."""
        version: int | None = None
        while True:
            asking = asyncio.create_task(self._client.get(f"/sessions/{self._sid}", newer_than=version))
            try:
                while not asking.done():
                    if self._seen:
                        progress.show(_waiting(self._seen))
                    await _first_of(asking, interrupted, seconds=1.0)
                    if interrupted.is_set():
                        yield None
            finally:
                asking.cancel()
            seen = await asking
            if not isinstance(seen, Refused):
                if not self._seen and seen["session"]["state"] == "requested":
                    _asked(seen)
                self._seen, version = seen, seen["session"]["version"]
            yield seen

    def _judge(self, seen: Answer | Refused) -> Answer | Exit | None:
        """What a look at the session means: go in, give up, or (None) wait on."""
        if isinstance(seen, Refused):
            return self._refused(seen)
        session: Answer = seen["session"]
        match session["state"]:
            case "requested" | "opening" | "shell_closing":
                return None
            case "approved" | "active" | "disconnected":
                return session
            case _:
                return self._not_open(session)

    def _not_open(self, session: Answer) -> Exit:
        ended = session["ended"]
        never_opened = not session["shells"]
        say.line(f"session {session['sid']} is over: {say.voice(ended['sentence']) if ended else session['state']}")
        self._document(session)
        return Exit.NOT_APPROVED if never_opened else Exit.ENDED

    async def _interrupted(self) -> Exit | None:
        """Ctrl-C while waiting: withdraw, or leave the request standing; never both silently."""
        waiting = self._seen and self._seen["session"]["state"] == "requested"
        if waiting and sys.stdin.isatty() and click.confirm("tower: withdraw the request?", default=True, err=True):
            answer = await self._client.post(f"/sessions/{self._sid}/withdraw")
            if isinstance(answer, Refused):
                self._refused(answer)
                return None
            say.line(f"session {self._sid} withdrawn")
            return Exit.NOT_APPROVED
        say.line(
            f"session {self._sid} goes on waiting: breakglass shell --resume {self._sid}, or breakglass withdraw {self._sid}"
        )
        return Exit.NOT_APPROVED

    # --- be in it -----------------------------------------------------------------------------------------------------

    async def _shells(self) -> Exit:
        """One shell; when its pod goes and the session has time left, one more."""
        screen = Screen(output=2 if self._wanted.as_json else 1)
        relay = Relay(
            self._client, self._sid, screen, joined=lambda hello: self._banner(screen, hello), end_on_eof=self._wanted.exit_on_eof
        )
        pod, again = self._wanted.pod, self._wanted.reopen
        while True:
            opened = await self._open(pod)
            if isinstance(opened, Exit):
                return opened
            async with screen:
                outcome = await relay.run()
            if not (isinstance(outcome, Over) and outcome.session_open and outcome.reason != "replaced" and again):
                return await self._over(outcome)
            say.line(f"{say.voice(outcome.sentence)}; the session has time left: opening another shell, no new approval needed")
            pod, again = None, False
            self._seen = {}
            ready = await self._until_approved()
            if isinstance(ready, Exit):
                return ready

    async def _open(self, pod: str | None) -> Exit | None:
        """A running shell, opened now unless one is there already; what the opening waits for is shown meanwhile."""
        seen = await self._client.get(f"/sessions/{self._sid}")
        if isinstance(seen, Refused):
            return self._refused(seen)
        if seen["session"]["state"] != "approved":
            return None
        cols, rows = Screen().size()
        progress = say.Progress()
        opening = asyncio.create_task(
            self._client.post(f"/sessions/{self._sid}/open", {"pod": pod, "cols": cols, "rows": rows}, seconds=OPEN_SECONDS)
        )
        async with _showing(self._client, self._sid, progress):
            answer = await opening
        if isinstance(answer, Refused):
            code = self._refused(answer)
            say.line(f"if the session has time left: breakglass shell --resume {self._sid}")
            return code
        return None

    async def _banner(self, screen: Screen, hello: Hello) -> None:
        """Four lines before the first prompt: where, until when, where to read and write, and that it is all kept."""
        session = self._seen["session"]
        ends = f", until {hello.hard_stop_at.astimezone():%H:%M}" if hello.hard_stop_at else ""
        await screen.line(f"shell {hello.shell} on pod {hello.pod}, {session['tier_words']}, session {self._sid}{ends}")
        root = (
            "the app's files are under /proc/1/root"
            if session["process_access"]
            else "no process access: the app's files and processes are not reachable"
        )
        await screen.line(root)
        await screen.line("you can write in /dev/shm, and nowhere else")
        await screen.line("recorded, keys too" + ("; ~? for help" if screen.interactive else ""))

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _over(self, outcome: Outcome) -> Exit:
        match outcome:
            case Left():
                say.line(f"session {self._sid} goes on for 2 minutes without you: breakglass shell --resume {self._sid}")
                return await self._closing(Exit.DONE, "left")
            case Over(reason=reason, sentence=sentence, session_open=session_open):
                say.line(say.voice(sentence))
                if session_open and reason != "replaced":
                    say.line(f"the session has time left: breakglass shell --resume {self._sid}")
                    return await self._closing(Exit.ENDED, reason)
                code = Exit.DONE if reason in BY_YOU else Exit.NO_CONNECTION if reason == "replaced" else Exit.ENDED
                return await self._closing(code, reason)
            case Lost(why=why):
                return await self._lost(why)

    async def _lost(self, why: str) -> Exit:
        """The server will not have us back: perhaps the session is over, and then it says why."""
        try:
            seen = await self._client.get(f"/sessions/{self._sid}")
        except UnreachableError:
            seen = None
        if seen is not None and not isinstance(seen, Refused) and (ended := seen["session"]["ended"]) is not None:
            say.line(say.voice(ended["sentence"]))
            return await self._closing(Exit.DONE if ended["reason"] in BY_YOU else Exit.ENDED, ended["reason"])
        say.line(f"connection lost for good ({why})")
        say.line(f"if the session is still open: breakglass shell --resume {self._sid}")
        return await self._closing(Exit.NO_CONNECTION, "lost")

    async def _closing(self, code: Exit, reason: str) -> Exit:
        if self._wanted.as_json:
            say.document({"sid": self._sid, "reason": reason, "exit": int(code)})
        return code

    def _document(self, session: Answer) -> None:
        if self._wanted.as_json:
            ended = session["ended"]
            say.document(
                {"sid": session["sid"], "reason": ended["reason"] if ended else session["state"], "exit": int(Exit.NOT_APPROVED)}
            )

    def _refused(self, refused: Refused) -> Exit:
        say.refusal(refused, as_json=self._wanted.as_json)
        return Exit.REFUSED


async def _first_of(task: asyncio.Task[Any], event: asyncio.Event, *, seconds: float) -> None:
    """Wait for one of them, at most so long; neither is touched."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


@asynccontextmanager
async def _showing(client: Client, sid: str, progress: say.Progress) -> AsyncIterator[None]:
    """Show what the opening waits for (`waiting.reason` and the like) until the block ends."""

    async def show() -> None:
        while True:
            try:
                seen = await client.get(f"/sessions/{sid}")
            except UnreachableError:
                seen = {"progress": "Tower does not answer"}
            if not isinstance(seen, Refused):
                progress.show(f"opening: {seen['progress'] or 'starting'}")
            await asyncio.sleep(0.5)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        progress.clear()


def _asked(seen: Answer) -> None:
    """Who can say yes, how, and whom to call when nobody does."""
    session = seen["session"]
    say.line(f"can approve: {', '.join(seen['waiting_on']) or 'nobody that the catalog names'}")
    say.line(f"they type: breakglass approve {session['sid']}")
    say.line(say.voice(seen["process_access_sentence"]))
    if seen["on_call"]:
        say.line(f"nobody answers? {seen['on_call']}")


def _waiting(seen: Answer) -> str:
    match seen["session"]["state"]:
        case "requested":
            return "waiting for approval, Ctrl-C to stop"
        case "shell_closing":
            return f"undoing the lost shell: {seen['progress'] or 'closing'}"
        case state:
            return f"{state}: {seen['progress'] or 'going on'}"
