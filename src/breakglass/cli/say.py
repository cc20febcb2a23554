"""Where words go: answers to standard output, everything else to standard error as `tower: …`, every field escaped.

Must never: print a field that did not go through `escape_field`, or a second document after the first.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from breakglass.cli.client import Refused
from breakglass.core.terminal import escape_field


def line(text: str) -> None:
    """One `tower:` line on standard error. In a raw terminal use `rawtty.Screen.line`."""
    sys.stderr.write(f"tower: {escape_field(text)}\n")
    sys.stderr.flush()


def refusal(refused: Refused, *, as_json: bool = False) -> None:
    """The server's words, its remedy, and with --json the same as a document."""
    line(f"{voice(refused.sentence)} ({refused.code})")
    if refused.remedy:
        line(f"what you can do: {voice(refused.remedy)}")
    if as_json:
        error = {"code": refused.code, "sentence": refused.sentence, "remedy": refused.remedy}
        document({"error": {**error, **({"sid": refused.sid} if refused.sid else {})}})


def document(value: Any) -> None:
    """One JSON document on standard output, ASCII, so that nothing in it can move a cursor."""
    sys.stdout.write(json.dumps(value, ensure_ascii=True, indent=2) + "\n")
    sys.stdout.flush()


def text(words: str = "") -> None:
    """One line of an answer on standard output."""
    sys.stdout.write(escape_field(words) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the last one is not padded."""
    cells = [[escape_field(cell) for cell in row] for row in [[word.upper() for word in head], *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        sys.stdout.write("  ".join([*padded, row[-1]]).rstrip() + "\n")
    sys.stdout.flush()


def voice(sentence: str) -> str:
    """A server's sentence in the voice of a `tower:` line: lower-case at the start, no full stop at the end."""
    words = sentence.strip().removesuffix(".")
    first, _, _ = words.partition(" ")
    keep = first in {"Tower", "Tower's", "I", "Kubernetes", "Backstage"} or first[1:] != first[1:].lower()
    return words if keep else words[:1].lower() + words[1:]


class Progress:
    """One live line while something is waited for: on a terminal rewritten in place, elsewhere a line per change."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._live = sys.stderr.isatty()
        self._said = ""
        self._shown = False

    def show(self, what: str, done: str = "") -> None:
        """Say what is waited for now; call again as often as wanted. `done` says how far it is, on a live line only."""
        words = escape_field(f"{what}{done}" if self._live else what)
        if self._live:
            elapsed = int(time.monotonic() - self._since)
            sys.stderr.write(f"\r\x1b[2Ktower: {words} ({elapsed // 60}:{elapsed % 60:02d})")
            self._shown = True
        elif words != self._said:
            sys.stderr.write(f"tower: {words}\n")
        self._said = words
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the live line away, before something lasting is printed."""
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown = False
