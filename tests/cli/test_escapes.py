"""`~` at a line's start is for us, everything else is the shell's, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breakglass.cli.escapes import Escape, Escapes


def _bytes(parts: list[bytes | Escape]) -> bytes:
    return b"".join(part for part in parts if isinstance(part, bytes))


def test_the_first_key_of_a_session_is_at_a_line_start() -> None:
    assert Escapes().feed(b"~.") == [Escape.LEAVE]


def test_a_tilde_in_the_middle_of_a_line_is_the_shells() -> None:
    assert Escapes().feed(b"ls ~.") == [b"ls ~."]


def test_every_escape_counts_after_a_newline_of_either_kind() -> None:
    for newline in (b"\r", b"\n"):
        assert Escapes().feed(b"a" + newline + b"~?~t~e~.") == [
            b"a" + newline,
            Escape.HELP,
            Escape.TIME,
            Escape.END,
            Escape.LEAVE,
        ]


def test_two_tildes_type_one() -> None:
    assert Escapes().feed(b"~~/bin\r") == [b"~/bin\r"]


def test_an_unknown_escape_reaches_the_shell_whole() -> None:
    assert Escapes().feed(b"~x") == [b"~x"]


def test_a_tilde_held_between_two_reads_is_not_lost() -> None:
    escapes = Escapes()
    assert escapes.feed(b"~") == []
    assert escapes.feed(b"/bin\r") == [b"~/bin\r"]


def test_an_escape_after_a_held_tilde_is_found_in_the_next_read() -> None:
    escapes = Escapes()
    escapes.feed(b"~")
    assert escapes.feed(b"e") == [Escape.END]


def test_a_pasted_escape_does_not_end_the_session() -> None:
    pasted = b"\x1b[200~~e\r~.\r\x1b[201~"
    escapes = Escapes()
    assert escapes.feed(pasted) == [pasted]
    assert escapes.feed(b"\r~.") == [b"\r", Escape.LEAVE]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_bytes_without_a_tilde_pass_unchanged_however_they_are_cut(pieces: list[bytes]) -> None:
    pieces = [piece.replace(b"~", b"-") for piece in pieces]
    escapes = Escapes()
    assert b"".join(_bytes(escapes.feed(piece)) for piece in pieces) == b"".join(pieces)


@given(st.binary(max_size=200), st.integers(min_value=0, max_value=200))
def test_where_a_read_ends_changes_nothing(data: bytes, at: int) -> None:
    whole, cut = Escapes(), Escapes()
    one, two = whole.feed(data), [*cut.feed(data[:at]), *cut.feed(data[at:])]
    assert _bytes(one) == _bytes(two)
    assert [part for part in one if isinstance(part, Escape)] == [part for part in two if isinstance(part, Escape)]
