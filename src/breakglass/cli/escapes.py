"""`~` at the start of a line, as in ssh: a pure scanner from typed bytes to what goes to the shell and what is for us.

Must never: keep a byte that was not the beginning of an escape, or read an escape inside a bracketed paste.
"""

from __future__ import annotations

from enum import Enum

PASTE_BEGINS, PASTE_ENDS = b"\x1b[200~", b"\x1b[201~"
"""xterm bracketed paste: a terminal puts pasted text between these when the program asked for it."""


class Escape(Enum):
    """What a person asks of the CLI, not of the shell."""

    HELP = ord("?")
    TIME = ord("t")
    END = ord("e")
    LEAVE = ord(".")


HELP = (
    "~?  this help",
    "~t  how much time is left",
    "~e  end the session for good: the record is sealed",
    "~.  leave: the session goes on for 2 minutes without you (--resume comes back)",
    "~~  a ~ for the shell",
    "escapes count only at the start of a line",
)


class Escapes:
    """Feed it what was typed; it gives back runs of bytes for the shell and escapes, in order."""

    def __init__(self) -> None:
        self._line_start = True
        self._held = False
        self._pasting = False
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes | Escape]:
        """A held `~` waits for the key after it, however late that comes."""
        found: list[bytes | Escape] = []
        run = bytearray()
        for byte in data:
            if self._held:
                self._held = False
                if (escape := _escape(byte)) is not None:
                    if run:
                        found.append(bytes(run))
                        run.clear()
                    found.append(escape)
                    self._line_start = True
                    continue
                run += b"~" if byte == ord("~") else bytes([ord("~"), byte])
                self._passed(byte)
            elif byte == ord("~") and self._line_start and not self._pasting:
                self._held = True
            else:
                run.append(byte)
                self._passed(byte)
        if run:
            found.append(bytes(run))
        return found

    def _passed(self, byte: int) -> None:
        self._line_start = byte in b"\r\n"
        self._tail = (self._tail + bytes([byte]))[-len(PASTE_BEGINS) :]
        if self._tail == PASTE_BEGINS:
            self._pasting = True
        elif self._tail == PASTE_ENDS:
            self._pasting = False


def _escape(byte: int) -> Escape | None:
    try:
        return Escape(byte)
    except ValueError:
        return None
