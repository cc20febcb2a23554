"""A Tower process on the session's real cluster, as people at their shells see it, and an auditor afterwards."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from lightkube import ApiError, Client
from lightkube.models.core_v1 import ContainerStatus
from lightkube.resources.core_v1 import Pod
from lightkube.resources.rbac_authorization_v1 import RoleBinding
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from breakglass.cli.verify import Objects
from breakglass.core.grant import PREFIX
from breakglass.core.record_read import Reader
from breakglass.core.verify import Result, verify
from breakglass.core.workload import PROCESS_ACCESS
from lab import demo_app
from lab import site as sites
from lab.api import Cluster
from lab.site import Site

NAMESPACE = "checkout"
OPEN = ("requested", "approved", "opening", "active", "disconnected", "shell_closing")
SECONDS = 60.0

T = TypeVar("T")


def until(what: str, look: Callable[[], T | None], seconds: float = SECONDS, every: float = 0.05) -> T:
    """The first answer that is something; `what` names in a failure what never came."""
    give_up = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < give_up, f"not within {seconds:g} s: {what}"
        time.sleep(every)
    return found


class Standing:
    """One site and whoever works with it."""

    def __init__(self, site: Site, admin: Client) -> None:
        self.site, self.admin = site, admin

    # --- people -------------------------------------------------------------------------------------------------------

    def ask(self, who: str = "ana", **changes: Any) -> str:
        """Ask for a shell with process access; the session's id."""
        body = {"app": "checkout", "environment": "production", "reason": "checkout answers 502", "process_access": True}
        status, answer = self.site.ask(who, "POST", "/sessions", body | changes)
        assert status == 201, answer
        return str(answer["sid"])

    def approve(self, sid: str, who: str = "ben") -> None:
        digest = self.session(sid)["request_digest"]
        status, answer = self.site.ask(who, "POST", f"/sessions/{sid}/approve", {"request_digest": digest})
        assert status == 200, answer

    def approved(self, **changes: Any) -> str:
        """A session that may be opened, and an app that is whole."""
        self.app_is_ready()
        sid = self.ask(**changes)
        self.approve(sid)
        return sid

    def open(self, sid: str, who: str = "ana") -> tuple[int, Any]:
        return self.site.ask(who, "POST", f"/sessions/{sid}/open", {"cols": 80, "rows": 24})

    def opened(self, **changes: Any) -> tuple[str, Seat]:
        """A session with a shell, and ana at it."""
        sid = self.approved(**changes)
        status, answer = self.open(sid)
        assert status == 200, answer
        return sid, Seat(self.site, sid)

    def end(self, sid: str, who: str = "ana") -> tuple[int, Any]:
        return self.site.ask(who, "POST", f"/sessions/{sid}/end", {})

    def session(self, sid: str) -> dict[str, Any]:
        status, answer = self.site.ask("eve", "GET", f"/sessions/{sid}")
        assert status == 200, answer
        found: dict[str, Any] = answer["session"]
        return found

    def reaches(self, sid: str, *states: str, seconds: float = SECONDS) -> dict[str, Any]:
        """The session once it is in one of these states."""

        def there() -> dict[str, Any] | None:
            session = self.session(sid)
            return session if session["state"] in states else None

        return until(f"session {sid} {' or '.join(states)}", there, seconds, every=0.1)

    def end_all(self) -> None:
        """Whatever a failed test left open: nobody's next session may be refused for it."""
        for person in ("ana", "ben", "carla"):
            _, answer = self.site.ask("eve", "GET", "/sessions?open=true")
            for session in answer["sessions"]:
                if session["requester"] == f"user:default/{person}":
                    self.end(session["sid"], person)

    def reconnect(self) -> None:
        """The API server is another process now: connections to the old one are let go."""
        self.admin.close()
        self.admin = self.site.cluster.client()

    # --- the cluster --------------------------------------------------------------------------------------------------

    def app_is_ready(self) -> None:
        def ready() -> bool | None:
            with contextlib.suppress(ApiError, httpx2.HTTPError):
                return demo_app.ready(self.admin, NAMESPACE, "checkout")
            return None

        until("the app's pods are ready", ready)

    def grants(self) -> list[str]:
        found = self.admin.list(RoleBinding, namespace=NAMESPACE)
        return [one.metadata.name or "" for one in found if one.metadata and (one.metadata.name or "").startswith(PREFIX)]

    def marked(self) -> dict[str, str]:
        """Pods that are marked for process access, and for which session."""
        pods = [one.metadata for one in self.admin.list(Pod, namespace=NAMESPACE) if one.metadata]
        marks = {one.name or "": (one.annotations or {}).get(PROCESS_ACCESS) for one in pods}
        return {pod: sid for pod, sid in marks.items() if sid is not None}

    def swept(self) -> None:
        """Take away what a run that was broken off left in a cluster that stands."""
        for grant in self.grants():
            self.admin.delete(RoleBinding, grant, namespace=NAMESPACE)
        for pod in self.marked():
            self.admin.patch(Pod, pod, {"metadata": {"annotations": {PROCESS_ACCESS: None}}}, namespace=NAMESPACE)

    def debug_containers(self, sid: str) -> list[ContainerStatus]:
        """What the API says of the session's debug containers; one whose pod is gone is gone."""
        found = []
        for pod in self.admin.list(Pod, namespace=NAMESPACE):
            statuses = (pod.status.ephemeralContainerStatuses if pod.status else None) or []
            found += [status for status in statuses if status.name.startswith(f"debug-{sid}-")]
        return found

    def running(self, sid: str) -> list[ContainerStatus]:
        return [status for status in self.debug_containers(sid) if status.state is not None and status.state.terminated is None]

    def processes(self, status: ContainerStatus) -> list[int]:
        return self.site.cluster.container_pids(status.containerID) if status.containerID else []

    # --- evidence -----------------------------------------------------------------------------------------------------

    def objects(self, sid: str) -> Objects:
        return Objects(self.site.state / "vault" / "objects" / "sessions" / sid)

    def recorded(self, sid: str) -> bytes:
        """Every output byte of the locked record, read strictly, with its end."""
        objects, reader, found = self.objects(sid), Reader(), b""
        for name in sorted(name for name in objects if name.endswith(".cast")):
            segment = reader.segment(objects[name], objects[name.replace(".cast", ".in")])
            found += b"".join(event.data for event in segment.events if event.code == "o")
        if reader.number:
            reader.finish()
        return found

    def verified(self, sid: str) -> None:
        """Nothing that `verify` looks at is wrong."""
        steps = verify(self.objects(sid)).steps
        assert [step for step in steps if step.result in {Result.FAILED, Result.DOUBTED}] == []

    def is_clean(self, sid: str) -> None:
        """Nothing of the session is left in the cluster or in the spool."""
        assert [name for name in self.grants() if name.endswith(sid)] == []
        assert sid not in self.marked().values()
        assert self.running(sid) == []
        until("the local copy is deleted", lambda: not (self.site.state / "spool" / sid).exists(), 5)


class Seat:
    """Somebody at a shell over the WebSocket, in a thread: every byte they were shown, what they were told, why it ended."""

    def __init__(self, site: Site, sid: str, who: str = "ana") -> None:
        status, answer = site.ask(who, "POST", f"/sessions/{sid}/tickets", {"role": "drive"})
        assert status == 201, answer
        url = f"ws://127.0.0.1:{site.port}/api/v1/sessions/{sid}/stream"
        words = [Subprotocol("tower.v1"), Subprotocol(f"tower.ticket.{answer['ticket']}")]
        self._until = contextlib.ExitStack()
        self._socket = self._until.enter_context(connect(url, subprotocols=words, max_size=1 << 20, proxy=None))
        self._socket.send(json.dumps({"type": "hello", "cols": 80, "rows": 24}))
        self.hello: dict[str, Any] = json.loads(self._socket.recv(15))
        self.saw = bytearray()
        self.told: list[str] = []
        self.ended: dict[str, Any] | None = None
        self._look = threading.Thread(target=self._looks, daemon=True)
        self._look.start()

    def _looks(self) -> None:
        at = self.hello["offset"]
        with contextlib.suppress(ConnectionClosed):
            for message in self._socket:
                if isinstance(message, bytes):
                    assert int.from_bytes(message[:8], "big") == at
                    at += len(message) - 8
                    self.saw += message[8:]
                    self._socket.send(json.dumps({"type": "ack", "offset": at}))
                    continue
                word = json.loads(message)
                if word["type"] == "ended":
                    self.ended = word
                elif word["type"] == "notice":
                    self.told.append(word["sentence"])

    def types(self, text: str) -> None:
        self._socket.send(text.encode())

    def sees(self, what: bytes, seconds: float = SECONDS) -> None:
        until(f"{what!r} on the screen, which ends {bytes(self.saw[-300:])!r}", lambda: what in self.saw, seconds)

    def does(self, command: str, sees: bytes) -> None:
        """Type a command whose answer is not in its own echo."""
        self.types(command + "\n")
        self.sees(sees)

    def is_over(self, seconds: float = SECONDS) -> dict[str, Any]:
        """The last word this seat was given."""
        return until("the last word", lambda: self.ended, seconds)

    def leaves(self) -> None:
        """Also after the connection broke; nothing comes after this."""
        self._until.close()
        self._look.join(10)


@contextlib.contextmanager
def standing_on(cluster: Cluster, folder: Path, *, start: Callable[[Site], None] = Site.start) -> Iterator[Standing]:
    """A site in a new folder and its Tower, stopped at the end. One a cluster: each would sweep the other's grants."""
    site = sites.make(cluster, folder)
    standing = Standing(site, cluster.client())
    try:
        standing.swept()
        start(site)
        yield standing
    finally:
        site.stop()
        standing.admin.close()


def unanswered(call: Callable[[], object]) -> bool:
    """Make a call that may find Tower dead, or kill it; whether that was so."""
    try:
        call()
    except (OSError, http.client.HTTPException, ConnectionClosed, json.JSONDecodeError):
        return True
    return False
