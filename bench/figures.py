"""What every bench prints at its end: one JSON object of figures and limits, and whether all of them hold.

Pure. Must never: call a figure good that was not measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a figure may be: at most `max`, or at least `min`; `goal` is what it should become, and never fails a run."""

    max: float | None = None
    min: float | None = None
    goal: float | None = None

    def holds(self, figure: float) -> bool:
        """Whether the figure is a number within the limit."""
        if not math.isfinite(figure):
            return False
        return (self.max is None or figure <= self.max) and (self.min is None or figure >= self.min)

    def fields(self) -> dict[str, float]:
        """The limit as it stands in the JSON object."""
        return {name: value for name, value in (("max", self.max), ("min", self.min)) if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A bench's result."""

    figures: Mapping[str, float]
    limits: Mapping[str, Limit]

    @property
    def ok(self) -> bool:
        """Whether every limit has its figure, and the figure holds."""
        return not self.broken()

    def broken(self) -> list[str]:
        """The limits that do not hold; one whose figure is missing does not."""
        return [name for name, limit in self.limits.items() if not limit.holds(self.figures.get(name, math.nan))]

    def line(self) -> str:
        """The last line. A figure that is no number is left out: JSON has none, and its limit fails."""
        figures = {name: round(value, 4) for name, value in self.figures.items() if math.isfinite(value)}
        limits = {name: limit.fields() for name, limit in self.limits.items()}
        return json.dumps({"figures": figures, "limits": limits, "ok": self.ok})

    def table(self) -> list[str]:
        """The same for people: a figure a line, its limit and goal beside it."""
        lines = []
        for name, value in self.figures.items():
            limit = self.limits.get(name)
            words = "" if limit is None else "  " + _words(limit) + ("" if limit.holds(value) else "  BROKEN")
            lines.append(f"  {name:<32} {value:10.3f}{words}")
        return lines


def _words(limit: Limit) -> str:
    bound = f"limit ≤ {limit.max:g}" if limit.max is not None else f"limit ≥ {limit.min:g}"
    return bound if limit.goal is None else f"{bound}, goal {limit.goal:g}"


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed (nearest rank); not a number when there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """The 0.5 quantile, by nearest rank."""
    return quantile(values, 0.5)
