"""From the click to the prompt: opening an approved session's shell, and a bare ephemeral container attached, in turns.

Tower's time begins with POST open and ends with the first output byte at the CLI's WebSocket, ticket and hello included. The
bare time begins with the patch and ends with the first byte of the attached terminal.
"""

from __future__ import annotations

import asyncio
import time

from bench.figures import Limit, Report, median, quantile
from bench.shells import Direct, approved, ended, joined, opened, person
from bench.standing import pod, run
from lab.site import Site

PER_POD = 10
"""Shells of each kind in one pod: its object grows with every container that ever was in it."""

LIMITS = {"tower_p50_s": Limit(max=1.5), "tower_to_bare": Limit(max=1.5)}


async def through_tower(site: Site, pod_name: str) -> float:
    """Seconds from the click to the prompt; asking, approving and ending are not in it."""
    sid = await approved(site, "ana")
    async with person(site, "ana") as client:
        await client.get("/me")  # the CLI has waited for the approval on this connection
        began = time.perf_counter()
        try:
            await opened(client, sid, pod_name)
            async with joined(client, sid) as shell:
                await shell.read()
                return time.perf_counter() - began
        finally:
            await ended(client, sid)


async def bare(direct: Direct, pod_name: str) -> float:
    """Seconds from the patch to the first byte."""
    began = time.perf_counter()
    async with direct.shell(pod_name) as shell:
        await shell.read()
        return time.perf_counter() - began


async def measured(site: Site, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each, bare and through Tower."""
    bares: list[float] = []
    towers: list[float] = []
    direct = Direct(site.cluster)
    while len(towers) < count:
        with pod(site.cluster) as (name, _):
            await bare(direct, name)  # the first container of a pod's image warms what both use
            for _ in range(min(PER_POD, count - len(towers))):
                bares.append(await bare(direct, name))
                towers.append(await through_tower(site, name))
    return bares, towers


def measure(site: Site, count: int) -> Report:
    """`count` times each."""
    bares, towers = asyncio.run(measured(site, count))
    figures = {
        "bare_p50_s": median(bares),
        "bare_p90_s": quantile(bares, 0.9),
        "tower_p50_s": median(towers),
        "tower_p90_s": quantile(towers, 0.9),
        "tower_to_bare": median(towers) / median(bares),
    }
    return Report(figures=figures, limits=LIMITS)


if __name__ == "__main__":
    run("open", measure, 20)
