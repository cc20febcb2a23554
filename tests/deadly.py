"""The real Tower with ports that kill it: `python -m tests.deadly CALL:N:before|after serve --site FILE --dev`.

SIGKILL right before the nth call, or right after the nth that succeeded. `@FILE` instead of the trap names a file that holds one
(or nothing); it is read whenever a session is asked for, and calls count from there: what an earlier process left is closed
undisturbed. Calls: a port's name and method (`store.replace`, `workloads.annotate`; taking the annotation off is
`workloads.unannotate`), `stream.bytes` for the nth output byte, `disk.fdatasync` for the record's commits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from breakglass.cli.serve import load, run
from breakglass.cli.wiring import Wire, Wired, orchestrated, wired
from breakglass.config import Site
from breakglass.ports import Attach, AttachStream, Cluster, Grants, Store, Vault, Workloads


class Trap:
    """Which call is the last one, and how often each was done so far."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._last: tuple[str, int, str] | None = None
        self._begun: Counter[str] = Counter()
        self._done: Counter[str] = Counter()

    def arm(self) -> None:
        """Count from here."""
        text = Path(self._text[1:]).read_text() if self._text.startswith("@") else self._text
        call, nth, when = text.split(":") if text else ("nothing", "1", "before")
        self._last = call, int(nth), when
        self._begun.clear()
        self._done.clear()

    def asked(self) -> None:
        """Somebody asks for a session."""
        if self._text.startswith("@"):
            self.arm()

    def before(self, call: str) -> None:
        """This call is about to be made."""
        self._begun[call] += 1
        if self._last == (call, self._begun[call], "before"):
            self._spring()

    def after(self, call: str, by: int = 1) -> None:
        """This call was done, `by` of its kind at once."""
        if self._last is None:
            return
        before, self._done[call] = self._done[call], self._done[call] + by
        name, nth, when = self._last
        if name == call and when == "after" and before < nth <= self._done[call]:
            self._spring()

    def _spring(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class _Port:
    """A port whose named calls go through the trap; everything else is the port's own."""

    def __init__(self, port: object, name: str, trap: Trap, *calls: str) -> None:
        self._port, self._name, self._trap, self._calls = port, name, trap, calls

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        return self._trapped(real, f"{self._name}.{method}") if method in self._calls else real

    def _trapped(self, real: Any, call: str) -> Any:
        async def made(*arguments: Any, **named: Any) -> Any:
            name = "workloads.unannotate" if call == "workloads.annotate" and arguments[-1] is None else call
            self._trap.before(name)
            answer = await real(*arguments, **named)
            self._trap.after(name)
            return answer

        return made


class _Store(_Port):
    async def create(self, *arguments: Any) -> None:
        self._trap.asked()
        await cast("Store", self._port).create(*arguments)


class _Workloads(_Port):
    async def watch(self, *arguments: Any) -> AsyncIterator[Any]:
        """Done once it has said something."""
        self._trap.before("workloads.watch")
        first = True
        async with aclosing(cast("Any", self._port).watch(*arguments)) as looks:
            async for seen in looks:
                if first:
                    self._trap.after("workloads.watch")
                first = False
                yield seen


class _Attach(_Port):
    @asynccontextmanager
    async def attach(self, *arguments: Any) -> AsyncIterator[AttachStream]:
        self._trap.before("attach.attach")
        async with cast("Attach", self._port).attach(*arguments) as stream:
            self._trap.after("attach.attach")
            yield cast("AttachStream", _Stream(stream, "stream", self._trap, "write"))


class _Stream(_Port):
    async def read(self) -> bytes:
        self._trap.before("stream.read")
        data = await cast("AttachStream", self._port).read()
        self._trap.after("stream.read")
        self._trap.after("stream.bytes", len(data))
        return data


def deadly(trap: Trap) -> Wire:
    """`wired`, with the trap between the orchestration and its ports."""

    def of(cluster: Cluster) -> Cluster:
        grants = _Port(cluster.grants, "grants", trap, "create", "delete")
        workloads = _Workloads(cluster.workloads, "workloads", trap, "annotate", "add_debug_container", "delete_pod")
        attach = _Attach(cluster.attach, "attach", trap)
        return replace(
            cluster, grants=cast("Grants", grants), workloads=cast("Workloads", workloads), attach=cast("Attach", attach)
        )

    @asynccontextmanager
    async def wire(site: Site, *, dev: bool) -> AsyncIterator[Wired]:
        async with wired(site, dev=dev) as parts:
            yield orchestrated(
                replace(
                    parts.tower,
                    store=cast("Store", _Store(parts.tower.store, "store", trap, "replace")),
                    vault=cast("Vault", _Port(parts.tower.vault, "vault", trap, "put")),
                    clusters={name: of(cluster) for name, cluster in parts.tower.clusters.items()},
                )
            )

    return wire


def through_the_disk(trap: Trap) -> None:
    """The recorder has no port: its disk is the system's."""
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        trap.before("disk.fdatasync")
        real(descriptor)
        trap.after("disk.fdatasync")

    os.fdatasync = cast("Any", fdatasync)


def main() -> int:
    """Run until the trap springs or somebody says stop."""
    trap = Trap(sys.argv[1])
    if not sys.argv[1].startswith("@"):
        trap.arm()
    through_the_disk(trap)
    site = load(Path(sys.argv[sys.argv.index("--site") + 1]))
    return int(asyncio.run(run(site, dev="--dev" in sys.argv, wire=deadly(trap))))


if __name__ == "__main__":
    sys.exit(main())
