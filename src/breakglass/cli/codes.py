"""Exit codes, and the two ways a command stops early. Documented in `cli/__init__.py` and `docs/reference/cli.md`."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a command's end means to a script."""

    DONE = 0
    WRONG = 1
    USAGE = 2
    REFUSED = 3
    NOT_APPROVED = 4
    NO_CONNECTION = 5
    ENDED = 6


MEANING: dict[Exit, str] = {
    Exit.DONE: "done, or the session was ended or left by you",
    Exit.WRONG: "a check found something wrong (verify, doctor)",
    Exit.USAGE: "usage: a flag, file or answer is missing or wrong",
    Exit.REFUSED: "refused by Tower, with its code and words",
    Exit.NOT_APPROVED: "not approved in time, denied or withdrawn",
    Exit.NO_CONNECTION: "no connection to Tower, or lost for good",
    Exit.ENDED: "the shell was ended by Tower, an owner or an admin (time over, idle, not entitled, …)",
}


class UsageError(Exception):
    """The command cannot start as it was called; `str()` says what to change."""


class SignalledError(Exception):
    """A signal ended the command, after everything was put back; the exit code is 128 and its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number
