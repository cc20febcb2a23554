"""Writes the pages that are made from the code: `uv run python -m tests.docs.generate`. Checked by `test_generated.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from breakglass.core.meaning import MEANING
from breakglass.core.session import OPEN_STATES, TRANSITIONS, Fork, event_word
from tests.docs import generate_config, generate_edges

DOCS = Path(__file__).parents[2] / "docs"
NOTE = "<!-- Made by tests/docs/generate.py; do not edit. -->"


def codes() -> str:
    """`docs/reference/codes.md`."""
    rows = [f"| `{code.value}` | {meaning.when} | {meaning.do} |" for code, meaning in sorted(MEANING.items())]
    return "\n".join(
        [
            NOTE,
            "# Refusal codes",
            "",
            "Every no carries one of these: in the UI, the CLI, the audit event and the HTTP error body alike. The refusal's own",
            "sentence and remedy say it of the case at hand; this page says it in general.",
            "",
            "| code | when | what to do |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def session() -> str:
    """`docs/session.md`: the diagram and the table of `core/session.py`."""
    arrows, rows = [], []
    for state, events in TRANSITIONS.items():
        grouped: dict[str, list[str]] = {}
        for event, following in events.items():
            word = event_word(event)
            if isinstance(following, Fork):
                outcomes = [(following.then, f"{word} ({following.when})"), (following.otherwise, word)]
                text = f"`{following.then}` if {following.when}, else `{following.otherwise}`"
            else:
                outcomes, text = [(following, word)], f"`{following}`"
            for to, label in outcomes:
                grouped.setdefault(to.value, []).append(label)
            rows.append(f"| `{state}` | {word} | {text} |")
        arrows += [f"    {state} --> {to}: {' / '.join(labels)}" for to, labels in grouped.items()]
        arrows += [] if events else [f"    {state} --> [*]"]
    held = ", ".join(f"`{state}`" for state in TRANSITIONS if state in OPEN_STATES)
    return "\n".join(
        [
            NOTE,
            "# A session's life",
            "",
            "The one table of `core/session.py`. What is not in it is refused with `wrong_state`; nothing leads out of `closed`,",
            f"`sealed` and `reviewed`. A person's one open session is held in {held}.",
            "",
            "```mermaid",
            "stateDiagram-v2",
            "    [*] --> requested",
            *arrows,
            "```",
            "",
            "| state | event | leads to |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


PAGES = {
    DOCS / "reference" / "cli.md": generate_edges.commands,
    DOCS / "reference" / "codes.md": codes,
    DOCS / "reference" / "config.md": generate_config.page,
    DOCS / "reference" / "http.md": generate_edges.http,
    DOCS / "session.md": session,
}


def main() -> int:
    """Write every page."""
    for path, page in PAGES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
