"""Layer 7, shown again: what a recording or a field may do to the terminal of whoever reads it. An allow-list, pure.

Must never: let through a sequence that makes a terminal answer, talk to the clipboard, rename a window or erase what was
there before; nor keep text from an auditor because a string before it has no end.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

STRING_MAX: Final = 64 << 10
"""Characters a terminal swallows of an unfinished string (OSC, DCS, …) before we show the rest as text."""
SEQUENCE_MAX: Final = 128
"""Characters of the longest sequence that counts as one; a longer one is dropped up to here, the rest is text."""

_TEXT: Final = re.compile(r"[^\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]+")
"""Printable characters, and the four control characters that are let through: backspace, tab, newline, return."""
_CSI: Final = re.compile(r"\x1b\[([\x30-\x3f]*)([\x20-\x2f]*)([\x40-\x7e])")
_CSI_BEGUN: Final = re.compile(r"\x1b\[[\x30-\x3f]*[\x20-\x2f]*")
_ESCAPE: Final = re.compile(r"\x1b([\x20-\x2f]*)([\x30-\x7e])")
_ESCAPE_BEGUN: Final = re.compile(r"\x1b[\x20-\x2f]*")
_STRING_END: Final = re.compile(r"\x1b\\|[\x18\x1a\x1b]")
_OSC_END: Final = re.compile(r"\x1b\\|[\x07\x18\x1a\x1b]")
_C1: Final = re.compile(r"[\x80-\x9f]")

_NUMBERS: Final = re.compile(r"(?:[0-9]{0,5};){0,15}[0-9]{0,5}")
_SGR: Final = re.compile(r"(?:[0-9]{0,5}[;:]){0,31}[0-9]{0,5}")
_MOVES: Final = frozenset("@ABCDEFGHILMPSXZ`abdefr")
"""ECMA-48 and xterm ctlseqs: insert, cursor moves, erase or delete characters and lines, scroll, tabs, repeat, region."""
_MODES: Final = frozenset({"6", "7", "12", "25", "47", "1047", "1048", "1049"})
"""Private modes that only draw: origin, wrap, cursor, alternate screen. Those that change what keys or the mouse send are not."""
_RESET: Final = "\x1b[0m\x1b[r\x1b[?25h\x1b[H\x1b[2J"
"""What RIS does to the screen, without what else it does to a terminal."""
_GRAPHICS: Final = dict(zip(range(0x5F, 0x7F), " ◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·", strict=True))
"""DEC special graphics (VT100): line drawing, translated here so that no terminal is left in that character set."""
RESTORE: Final = b"\x1b[0m\x1b[r\x1b[4l\x1b[?6l\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Write this behind the last bytes: whatever the recording drew, the reader's terminal is as it was."""


def escape_field(text: str) -> str:
    r"""`text` on one line, harmless: all that is no printable character (C0, C1, bidi and other format characters, line and
    paragraph separators, surrogates, private use) becomes an escape such as `\x1b` or `\u202e`. Repeating changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def safe_for_terminal(data: bytes) -> bytes:
    """A whole recording's output, made harmless."""
    terminal = SafeTerminal()
    return terminal.feed(data) + terminal.close()


class SafeTerminal:
    """The streaming filter: bytes of a recording in, bytes for a terminal out. How the input is cut changes nothing.

    What comes out is UTF-8 whose only control characters are tab, newline, return, backspace and ESC, and ESC only begins:
    CSI with SGR, cursor moves, erase (not the scroll-back), insert, delete, scroll, region, or a drawing mode; and ESC 7, 8,
    D, E, M. Everything else is dropped, line drawing is translated, a full reset becomes a cleared screen.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._string: re.Pattern[str] | None = None
        self._swallowed = 0
        self._graphics = [False, False]
        self._shift = 0

    def feed(self, data: bytes) -> bytes:
        """What may be written now; an unfinished sequence waits for its rest."""
        return self._filter(self._decoder.decode(data))

    def close(self) -> bytes:
        """The end: an unfinished character is U+FFFD, an unfinished sequence is nothing."""
        rest = self._filter(self._decoder.decode(b"", final=True))
        self._held = ""
        return rest

    def _filter(self, text: str) -> bytes:
        text = _C1.sub(lambda found: "\x1b" + chr(ord(found[0]) - 0x40), text)
        text, self._held = self._held + text, ""
        shown: list[str] = []
        at = 0
        while at < len(text):
            if self._string is not None:
                at = self._swallow(text, at, self._string)
            elif run := _TEXT.match(text, at):
                shown.append(run[0].translate(_GRAPHICS) if self._graphics[self._shift] else run[0])
                at = run.end()
            elif text[at] != "\x1b":
                shown.append(self._control(text[at]))
                at += 1
            elif (end := self._sequence(text, at, shown)) > at:
                at = end
            else:
                self._held = text[at:]
                break
        return "".join(shown).encode()

    def _control(self, char: str) -> str:
        if char in "\x0e\x0f":
            self._shift = 1 if char == "\x0e" else 0
        return "\n" if char in "\v\f" else ""

    def _sequence(self, text: str, at: int, shown: list[str]) -> int:
        """Where the sequence at `at` ends; `at` itself when its end is not there yet. One that breaks off is dropped."""
        if text.startswith("\x1b[", at):
            found, begun = _CSI.match(text, at, at + SEQUENCE_MAX), _CSI_BEGUN
            if found:
                shown.append(_csi(found[0], *found.groups()))
                return found.end()
        else:
            found, begun = _ESCAPE.match(text, at, at + SEQUENCE_MAX), _ESCAPE_BEGUN
            if found:
                shown.append(self._escape(found[1], found[2]))
                return found.end()
        start = begun.match(text, at, at + SEQUENCE_MAX)
        end = start.end() if start else at + 1
        waits = end == len(text) and end - at < SEQUENCE_MAX
        return at if waits else end

    def _escape(self, between: str, final: str) -> str:
        if between == "" and final in "]PX^_":
            self._string = _OSC_END if final == "]" else _STRING_END
            self._swallowed = 0
        elif between in {"(", ")"}:
            self._graphics["()".index(between)] = final == "0"
        elif between == "" and final in "78DEM":
            return "\x1b" + final
        elif between == "" and final == "c":
            self._graphics, self._shift = [False, False], 0
            return _RESET
        return ""

    def _swallow(self, text: str, at: int, end: re.Pattern[str]) -> int:
        """Skip a string. CAN, SUB and ESC break it off (as in xterm), so does its length: better junk than hidden text."""
        stop = min(len(text), at + STRING_MAX - self._swallowed)
        found = end.search(text, at, stop)
        if found is not None:
            if found[0] == "\x1b" and found.end() == len(text):  # the half of a terminator, perhaps
                self._held = text[found.start() :]
                self._swallowed += found.start() - at
                return len(text)
            self._string = None
            return found.start() if found[0] == "\x1b" else found.end()
        self._swallowed += stop - at
        if self._swallowed >= STRING_MAX:
            self._string = None
        return stop


def _csi(whole: str, parameters: str, between: str, final: str) -> str:
    """The sequence itself when it is on the list, else nothing."""
    if between:
        return ""
    if final == "m":
        allowed = _SGR.fullmatch(parameters) is not None
    elif final in "JK":
        allowed = parameters in {"", "0", "1", "2", "?", "?0", "?1", "?2"}  # not 3: that erases the reader's own scroll-back
    elif final in "su":
        allowed = parameters == ""
    elif final == "T":
        allowed = re.fullmatch("[0-9]{0,5}", parameters) is not None  # with more numbers it tracks the mouse
    elif final in "hl":
        allowed = parameters == "4" or (parameters.startswith("?") and _MODES.issuperset(parameters[1:].split(";")))
    else:
        allowed = final in _MOVES and _NUMBERS.fullmatch(parameters) is not None
    return whole if allowed else ""
