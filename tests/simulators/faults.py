"""When a simulated port fails: by its call's name, at its nth call, in one of four ways. Outside the layers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from breakglass.ports import PortError, Trouble


class Fault(StrEnum):
    """`fail`: not done, says so. `fail_but_happened`: done, says it may not be. `slow`: done after a long while.
    `hang`: not done, and never says so.
    """

    FAIL = "fail"
    FAIL_BUT_HAPPENED = "fail_but_happened"
    SLOW = "slow"
    HANG = "hang"


SLOW_SECONDS = 30.0


@dataclass(slots=True)
class Faults:
    """A plan: which call (`put`, `replace`, …) fails how, at its nth time from 1, or every time when n is 0."""

    plan: dict[tuple[str, int], Fault] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def at(self, call: str, fault: Fault, *, nth: int = 0) -> Faults:
        """Add one fault to the plan."""
        self.plan[call, nth] = fault
        return self

    async def before(self, call: str) -> Fault | None:
        """Count the call, wait when it is slow, raise when it fails; the fault is returned for `around`."""
        self.seen[call] += 1
        fault = self.plan.get((call, self.seen[call]), self.plan.get((call, 0)))
        if fault is Fault.FAIL:
            raise PortError(Trouble.TRANSIENT, f"{call} failed, as planned")
        if fault is Fault.SLOW:
            await asyncio.sleep(SLOW_SECONDS)
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        return fault


@contextmanager
def around(fault: Fault | None, call: str) -> Iterator[None]:
    """Let the call happen, then lose its answer when that is the fault."""
    yield
    if fault is Fault.FAIL_BUT_HAPPENED:
        raise PortError(Trouble.UNKNOWN, f"{call} got no answer, as planned")
