"""`make demo`: from nothing to a recorded shell on a real cluster, through the real command line.

Without a terminal, or with DEMO=auto, it plays itself through and checks what it sees; at a terminal it leaves Tower running
and hands the person the shell. Lab, outside the layers. It must never print "ok" for something it did not see.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.rbac_authorization_v1 import RoleBinding

from lab import demo_app
from lab import site as sites
from lab.api import Cluster

ASK = "checkout/production"
SHELL_SECONDS = 60


class DemoError(Exception):
    """The demo did not see what it should have."""


class Stage:
    """The terminal as a reader sees it: numbered steps with times, commands as they are typed, their answers indented."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._number = 0

    @contextlib.contextmanager
    def step(self, words: str) -> Iterator[None]:
        """One numbered step, with its seconds at its end."""
        self._number += 1
        begun = time.monotonic()
        self.say(f"\n{self._number:2}. {words}")
        yield
        self.say(f"    ({time.monotonic() - begun:.1f} s)")

    def say(self, line: str) -> None:
        """A line."""
        print(line, flush=True)

    def show(self, text: str, most: int = 12) -> None:
        """An answer, indented, cut when it is long."""
        shown = [re.sub(r".*\r|\x1b\[[0-9;?]*[A-Za-z]", "", line.rstrip()) for line in text.strip().splitlines()]
        lines = [line for line, after in zip(shown, [*shown[1:], ""], strict=True) if line.strip() and not _progress(line, after)]
        for line in lines[:most]:
            self.say(f"      {line}")
        if len(lines) > most:
            self.say(f"      … {len(lines) - most} more lines")

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun


class People:
    """The command line, as somebody."""

    def __init__(self, site: sites.Site, stage: Stage) -> None:
        self._site, self._stage = site, stage
        self._tokens: dict[str, Path] = {}

    def environment(self, who: str) -> dict[str, str]:
        """What a person's terminal has: Tower's address and their token, in a file of their own."""
        if who not in self._tokens:
            token = self.tool("dev", "token", who, "--site", str(self._site.file)).stdout
            path = self._site.folder / f"{who}.token"
            path.write_text(token)
            path.chmod(0o600)
            self._tokens[who] = path
        return os.environ | {"BREAKGLASS_URL": self._site.url, "BREAKGLASS_TOKEN": self._tokens[who].read_text().strip()}

    def tool(self, *arguments: str, who: str | None = None, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `breakglass …`; any other exit code than the expected one ends the demo."""
        environment = os.environ if who is None else self.environment(who)
        done = subprocess.run(
            [sys.executable, "-m", "breakglass.cli", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if expect is not None and done.returncode != expect:
            raise DemoError(
                f"breakglass {arguments[0]} ended with {done.returncode}, not {expect}:\n{done.stdout}\n{done.stderr}"
            )
        return done

    def says(self, who: str, *arguments: str, expect: int = 0, most: int = 12) -> str:
        """Run a command as somebody and show what they see."""
        self._stage.say(f"    {who}$ breakglass {' '.join(map(_quoted, arguments))}")
        done = self.tool(*arguments, who=who, expect=expect)
        self._stage.show(done.stdout + done.stderr, most)
        return done.stdout + done.stderr

    def terminal(self, who: str, *arguments: str) -> pexpect.spawn[str]:
        """A command at a terminal of its own."""
        self._stage.say(f"    {who}$ breakglass {' '.join(map(_quoted, arguments))}")
        return pexpect.spawn(
            sys.executable,
            ["-m", "breakglass.cli", *arguments],
            env=self.environment(who),
            encoding="utf-8",
            timeout=SHELL_SECONDS,
            dimensions=(24, 100),
        )


def main() -> int:
    """Play, or hand over. Exit code 0 only for the last line `demo: ok, …`."""
    auto = os.environ.get("DEMO") == "auto" or not (sys.stdin.isatty() and sys.stdout.isatty())
    stage = Stage()
    name = f"demo-{os.getpid()}"
    try:
        with _standing(name, stage) as site:
            people = People(site, stage)
            if auto:
                sealed = play(site, people, stage)
                stage.say(f"\n    ({stage.seconds:.0f} s in all)")
                stage.say(f"demo: ok, sessions sealed and verified: {sealed}")
            else:
                hand_over(site, people, stage)
    except (DemoError, RuntimeError, subprocess.SubprocessError, pexpect.ExceptionPexpect) as error:
        stage.say(f"demo: failed: {error}")
        return 1
    return 0


@contextlib.contextmanager
def _standing(name: str, stage: Stage) -> Iterator[sites.Site]:
    """A cluster, policies, an app and Tower, gone again at the end."""
    with contextlib.ExitStack() as stack:
        with stage.step("a real cluster: etcd, API server, kubelet, containerd; the app checkout, two pods"):
            cluster = Cluster.up(name, say=lambda line: stage.say(f"    {line.strip()}"))
            stack.callback(cluster.down)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tower-demo-")))
        with stage.step("rights and admission policies applied and enforced; site.yaml; Tower"):
            site = sites.make(cluster, folder / "site")
            _second_environment(site)
            stack.callback(site.stop)
            site.start()
            stage.show(site.log.read_text())
        yield site


def _second_environment(site: sites.Site) -> None:
    """The app also runs as `canary`, in the same namespace: one commit to its delivery file."""
    repository = site.folder / "checkout.git"
    production = next(line for line in (repository / "cicd.yaml").read_text().splitlines() if line.startswith("  production:"))
    text = (repository / "cicd.yaml").read_text().rstrip("\n") + "\n" + production.replace("production", "canary") + "\n"
    demo_app.commit_delivery(repository, text)


# --- the play ---------------------------------------------------------------------------------------------------------


def play(site: sites.Site, people: People, stage: Stage) -> int:
    """The whole story; returns how many sessions were sealed and verified."""
    first = _asked_and_approved(site, people, stage)
    _verified(people, stage, first)
    second = _glass_broken(site, people, stage)
    _refusals(site, people, stage)
    return len({first, second})


def _asked_and_approved(site: sites.Site, people: People, stage: Stage) -> str:
    with stage.step("ana owns checkout and asks for a shell with process access; she cannot approve it herself"):
        terminal = people.terminal("ana", "shell", ASK, "-r", "checkout answers 502 since 03:10", "--process-access")
        sid = _new_session(site, "requested")
        stage.show(_until(terminal, "waiting"))
        people.says("ana", "approve", sid, "--yes", expect=3)
    with stage.step("ben owns it too and says yes, to exactly this request"):
        people.says("ben", "approve", sid, "--yes")
    with stage.step("the shell: beside the app, inside its process namespace"):
        terminal.expect(r"[$#] $")
        stage.show(str(terminal.before))
        _types(terminal, stage, "id", "uid=1000")
        _types(terminal, stage, "echo 'Grüße, 世界 ✓'", "Grüße, 世界 ✓")
        _types(terminal, stage, "tr '\\0' '\\n' </proc/1/environ | grep DB_", "DB_")
        terminal.setwinsize(40, 120)
        _types(terminal, stage, "stty size", "40 120")
    with stage.step("ana ends it with ~e: the shell dies, the grant goes, the record is sealed"):
        terminal.send("\r~e")
        terminal.expect(pexpect.EOF)
        stage.show(str(terminal.before))
        _sealed(site, people, stage, sid)
    return sid


def _verified(people: People, stage: Stage, sid: str) -> None:
    with stage.step("carla, an admin, verifies the record and plays it"):
        said = people.says("carla", "verify", sid, most=40)
        if "not proved" not in said:
            raise DemoError("verify did not say what it does not prove")
        played = people.tool("replay", sid, "--text", who="carla").stdout
        if "Grüße, 世界 ✓" not in played:
            raise DemoError("the replay does not show what was on the screen")
        stage.say(f"    carla$ breakglass replay {sid} --text")
        stage.show(played, 8)


def _glass_broken(site: sites.Site, people: People, stage: Stage) -> str:
    with stage.step("nobody answers tonight: carla breaks the glass; it is marked, alarmed, and will be reviewed"):
        terminal = people.terminal("carla", "shell", ASK, "-r", "all owners asleep, checkout is down", "--break-glass")
        sid = _new_session(site, "approved", "opening", "active")
        terminal.expect(r"[$#] $")
        stage.show(str(terminal.before))
        _types(terminal, stage, "hostname", "checkout-")
        terminal.sendline("exit")
        terminal.expect(pexpect.EOF)
        _sealed(site, people, stage, sid)
        people.says("dora", "verify", sid, most=4)
    return sid


def _refusals(site: sites.Site, people: People, stage: Stage) -> None:
    with stage.step("what is refused, each in its own words"):
        waiting = people.terminal("ana", "shell", ASK, "-r", "still looking at the 502s")
        sid = _new_session(site, "requested")
        stage.say("    ana, who would like a second one in another environment:")
        _refused(people, "ana", "session_open_elsewhere", "checkout/canary")
        people.says("ana", "withdraw", sid)
        waiting.expect(pexpect.EOF)
        stage.say("    oz, who does not own checkout:")
        _refused(people, "oz", "not_entitled")
        stage.say("    ben, after somebody gave the namespace to another app:")
        with _label(site.cluster, "checkout", "ledger"):
            _refused(people, "ben", "namespace_not_apps")


def _refused(people: People, who: str, code: str, what: str = ASK) -> None:
    said = people.says(who, "shell", what, "-r", "just a look at the logs", "--json", expect=3)
    if code not in said:
        raise DemoError(f"{who} was refused, but not for {code}")


@contextlib.contextmanager
def _label(cluster: Cluster, namespace: str, app: str) -> Iterator[None]:
    with cluster.client() as admin:
        before = (admin.get(Namespace, namespace).metadata or ObjectMeta()).labels or {}
        admin.patch(Namespace, namespace, {"metadata": {"labels": {"tower.hangar/app": app}}})
        yield
        admin.patch(Namespace, namespace, {"metadata": {"labels": {"tower.hangar/app": before["tower.hangar/app"]}}})


# --- looking ----------------------------------------------------------------------------------------------------------


def _until(terminal: pexpect.spawn[str], words: str) -> str:
    terminal.expect(words)
    return str(terminal.before) + str(terminal.after)


def _types(terminal: pexpect.spawn[str], stage: Stage, command: str, sees: str) -> None:
    terminal.sendline(command)
    terminal.expect_exact(sees)
    stage.say(f"      $ {command}")
    stage.say(f"      {sees}")
    terminal.expect(r"[$#] $")


def _new_session(site: sites.Site, *states: str) -> str:
    """The newest session once it is in one of these states, as an auditor sees it."""
    give_up = time.monotonic() + SHELL_SECONDS
    while time.monotonic() < give_up:
        _, answer = site.ask("eve", "GET", "/sessions?open=true")
        found: list[dict[str, Any]] = answer["sessions"]
        if found and found[0]["state"] in states:
            return str(found[0]["sid"])
        time.sleep(0.1)
    raise DemoError(f"no session became {' or '.join(states)}")


def _sealed(site: sites.Site, people: People, stage: Stage, sid: str) -> None:
    """The session is sealed and its grant is gone, by the API server's own word."""
    people.tool("end", sid, "--wait", who="carla", expect=None)
    give_up = time.monotonic() + SHELL_SECONDS
    while True:
        _, answer = site.ask("eve", "GET", f"/sessions/{sid}")
        session = answer["session"]
        if session["state"] in {"sealed", "account_due"}:
            break
        if time.monotonic() > give_up:
            raise DemoError(f"session {sid} is {session['state']}, not sealed: {session['stuck_because']}")
        time.sleep(0.1)
    with site.cluster.client() as admin:
        left = [one.metadata.name for one in admin.list(RoleBinding, namespace="checkout") if one.metadata]
    if any(str(name).startswith("tower-breakglass-") for name in left):
        raise DemoError(f"a grant is left: {left}")
    ended = session["ended"]["sentence"]
    stage.show(f"{sid}: {session['state']}. {ended} Grants left in namespace checkout: none.\n{json.dumps(session['sealed'])}")


def _progress(line: str, after: str) -> bool:
    """A line that a terminal would have written over with the next: the same words with another time behind."""
    return bool(re.search(r"\(\d+:\d\d\)$", line)) and line.partition("(")[0].split()[:2] == after.partition("(")[0].split()[:2]


def _quoted(argument: str) -> str:
    return f'"{argument}"' if " " in argument else argument


# --- by hand ----------------------------------------------------------------------------------------------------------


def hand_over(site: sites.Site, people: People, stage: Stage) -> None:
    """Ana is at the keyboard; ben says yes as soon as she has asked. Everything is taken down when she leaves."""
    stage.say(f"\n    Tower runs at {site.url}; its log is {site.log}. You are ana, an owner of checkout.")
    stage.say("    ben approves in a moment. In the shell: ~? for help, ~e to end. Another terminal can act as anybody:")
    stage.say(f"      export BREAKGLASS_URL={site.url}")
    stage.say(f"      export BREAKGLASS_TOKEN=$(uv run breakglass dev token carla --site {site.file})\n")
    command = [sys.executable, "-m", "breakglass.cli", "shell", ASK, "-r", "trying the demo", "--process-access"]
    shell = subprocess.Popen(command, env=people.environment("ana"))
    sid = _new_session(site, "requested")
    people.tool("approve", sid, "--yes", who="ben")
    shell.wait()
    people.tool("end", sid, "--wait", who="carla", expect=None)
    people.says("carla", "verify", sid, most=40)


if __name__ == "__main__":
    sys.exit(main())
