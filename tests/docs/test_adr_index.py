"""The decisions' index has no hole and no dead link."""

import re
from pathlib import Path

ADR = Path(__file__).parents[2] / "docs" / "adr"


def test_the_index_names_every_decision_once_without_a_hole() -> None:
    rows = re.findall(r"\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|", (ADR / "README.md").read_text())
    files = sorted(path.name for path in ADR.glob("0*.md"))
    assert [name for _, name, _ in rows] == files
    assert [int(number) for number, _, _ in rows] == list(range(1, len(files) + 1))
    for number, name, title in rows:
        assert (ADR / name).read_text().splitlines()[0] == f"# {number} {title}"
