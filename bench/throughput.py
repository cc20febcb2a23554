"""How fast 50 MB of text come out of a shell: through Tower, recorded, and attached directly to the same pod, in turns."""

from __future__ import annotations

import asyncio
import time

from bench.figures import Limit, Report, median
from bench.shells import Direct, Shell, tower_shell, until
from bench.standing import pod, run
from lab.site import Site

MEGABYTE = 1_000_000
OUTPUT_BYTES = 50 * MEGABYTE
CHUNK = 10 * MEGABYTE
"""What is made beforehand, in memory, so that no generator is measured; shown five times."""

LIMITS = {"tower_to_direct": Limit(min=0.6, goal=0.8)}


async def prepare(shell: Shell) -> None:
    """Lines of base64, of random bytes: nothing on the way can shorten them."""
    await shell.write(b"stty -echo -opost; PS1= exec bash --noprofile --norc --noediting\n")
    line = f"head -c {CHUNK} /dev/urandom | base64 | head -c {CHUNK} > /dev/shm/t; echo re''ady\n"
    await shell.write(line.encode())
    await until(shell, b"ready\n")


async def once(shell: Shell) -> float:
    """Megabytes a second, from the command to the last byte."""
    times = OUTPUT_BYTES // CHUNK
    began = time.perf_counter()
    await shell.write(b"cat %s; echo 'th''at is all'\n" % b" ".join([b"/dev/shm/t"] * times))
    seen, tail = 0, b""
    while not tail.endswith(b"that is all\n"):
        data = await shell.read()
        seen += len(data)
        tail = (tail + data)[-16:]
    seconds = time.perf_counter() - began
    if seen != times * CHUNK + len(b"that is all\n"):
        raise RuntimeError(f"{seen} bytes came, not {times * CHUNK}")
    return seen / MEGABYTE / seconds


async def measured(site: Site, count: int) -> tuple[list[float], list[float]]:
    """MB/s of each, direct and through Tower."""
    tower_rates: list[float] = []
    direct_rates: list[float] = []
    with pod(site.cluster) as (name, _):
        async with tower_shell(site, "ana", name) as tower, Direct(site.cluster).shell(name) as direct:
            await prepare(tower)
            await prepare(direct)
            for _ in range(count):
                direct_rates.append(await once(direct))
                tower_rates.append(await once(tower))
    return direct_rates, tower_rates


def measure(site: Site, count: int) -> Report:
    """`count` times to each; medians, and the median of the ratios of the pairs."""
    direct, tower = asyncio.run(measured(site, count))
    figures = {
        "direct_mb_s": median(direct),
        "tower_mb_s": median(tower),
        "tower_to_direct": median([mine / other for other, mine in zip(direct, tower, strict=True)]),
    }
    return Report(figures=figures, limits=LIMITS)


if __name__ == "__main__":
    run("throughput", measure, 5)
