"""From a keystroke to its echo: through Tower, recorded, and attached directly to the same pod; one key at a time, in turns."""

from __future__ import annotations

import asyncio
import random
import time

from bench.figures import Limit, Report, quantile
from bench.shells import Direct, Shell, tower_shell, until
from bench.standing import pod, run
from lab.site import Site

ROUND = 50
"""Keys one shell gets before it is the other's turn."""
PAUSE_SECONDS = 0.004, 0.012
"""Between an echo and the next key, at random: nobody types in step with a disk or a scheduler."""
WARM_UP = 20

LIMITS = {
    "p50_over_direct_ms": Limit(max=3, goal=1.5),
    "p99_over_direct_ms": Limit(max=10, goal=5),
}


async def prepare(shell: Shell) -> None:
    """Both shells do the same: `cat`, so that the terminal itself echoes each key as it comes."""
    await shell.write(b"stty -echo; PS1=; echo re''ady; stty echo; exec cat > /dev/null\n")
    await until(shell, b"ready\r\n")
    await asyncio.sleep(0.5)
    await keys(shell, WARM_UP)


async def keys(shell: Shell, count: int) -> list[float]:
    """Milliseconds from key to echo, one after another; then a new line."""
    found = []
    for _ in range(count):
        await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
        key = bytes([random.randrange(ord("a"), ord("z") + 1)])
        began = time.perf_counter()
        await shell.write(key)
        seen = await shell.read()
        found.append((time.perf_counter() - began) * 1000)
        if seen != key:
            raise RuntimeError(f"typed {key!r}, saw {seen!r}")
    await shell.write(b"\n")
    await until(shell, b"\n")
    return found


async def measured(site: Site, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each, direct and through Tower."""
    tower_ms: list[float] = []
    direct_ms: list[float] = []
    with pod(site.cluster) as (name, _):
        async with tower_shell(site, "ana", name) as tower, Direct(site.cluster).shell(name) as direct:
            await prepare(tower)
            await prepare(direct)
            while len(tower_ms) < count:
                size = min(ROUND, count - len(tower_ms))
                direct_ms += await keys(direct, size)
                tower_ms += await keys(tower, size)
    return direct_ms, tower_ms


def measure(site: Site, count: int) -> Report:
    """`count` keys to each."""
    direct, tower = asyncio.run(measured(site, count))
    figures = {
        "direct_p50_ms": quantile(direct, 0.5),
        "direct_p99_ms": quantile(direct, 0.99),
        "tower_p50_ms": quantile(tower, 0.5),
        "tower_p99_ms": quantile(tower, 0.99),
    }
    figures["p50_over_direct_ms"] = figures["tower_p50_ms"] - figures["direct_p50_ms"]
    figures["p99_over_direct_ms"] = figures["tower_p99_ms"] - figures["direct_p99_ms"]
    return Report(figures=figures, limits=LIMITS)


if __name__ == "__main__":
    run("echo", measure, 1000)
