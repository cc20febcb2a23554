"""`uv run python tests/policies/regenerate.py`: writes the goldens of `render` anew; git shows what has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from breakglass.core.model import Tier
from breakglass.render import Inputs, render

GOLDENS: Final = Path(__file__).parents[2] / "deploy" / "flight"
EXAMPLE: Final = Inputs(
    tier=Tier.FLIGHT,
    portal="system:serviceaccount:tower:portal",
    images=tuple(f"registry.example.test/tower/debug@sha256:{digit * 64}" for digit in "21"),
)


def goldens() -> dict[str, str]:
    """Every golden by its name: an example cluster's files."""
    return render(EXAMPLE)


if __name__ == "__main__":
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for stale in GOLDENS.glob("*.yaml"):
        stale.unlink()
    for name, text in goldens().items():
        (GOLDENS / name).write_text(text, encoding="utf-8")
