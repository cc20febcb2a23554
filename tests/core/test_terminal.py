"""Against whoever printed it: a recording or a field that is looked at later must not be able to do anything but be seen."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakglass.core.terminal import RESTORE, SEQUENCE_MAX, STRING_MAX, SafeTerminal, escape_field, safe_for_terminal

ALLOWED = re.compile(
    rb"\x1b\[(?:[0-9;:]*m|[0-9;]*[@ABCDEFGHILMPSTXZ`abdefr]|\??[012]?[JK]|[su]|4[hl]|\?(?:(?:6|7|12|25|47|1047|1048|1049);?)+[hl])"
    rb"|\x1b[78DEM]"
)
pieces = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=10).map(str.encode),
    st.sampled_from(
        [b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\x9b", b"\xc2\x9b", b"\xc2\x9d", b"\xc2", b"\x07", b"\x1b\\", b"\x18"]
    ),
    st.sampled_from([b"\x1b[31m", b"\x1b[2J", b"\x1b[3J", b"\x1b[6n", b"\x1b]52;c;aGk=\x07", b"\x1bc", b"m", b"?25h"]),
    st.sampled_from([b"\x0e", b"\x0f", b"\x1b(0", b"\x1b(B", b"\x1b)0", "é€𝄞".encode()]),
    st.sampled_from([b"\x1b[" + b"1;" * 80 + b"m", b"\x1b" + b" " * 200]),
)
streams = st.lists(pieces, max_size=20).map(b"".join)


@pytest.mark.slow
@settings(max_examples=1000)
@given(streams)
def test_nothing_but_text_and_listed_sequences_reaches_the_terminal(data: bytes) -> None:
    shown = safe_for_terminal(data).decode()
    rest = ALLOWED.sub(b"", shown.encode()).decode()
    assert not re.search(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]", rest)


@settings(max_examples=500)
@given(streams, st.lists(st.integers(0, 400), max_size=20))
def test_cutting_the_stream_anywhere_changes_nothing(data: bytes, cuts: list[int]) -> None:
    terminal = SafeTerminal()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    shown = b"".join(terminal.feed(data[a:b]) for a, b in itertools.pairwise(places)) + terminal.close()
    assert shown == safe_for_terminal(data)


@given(streams)
def test_what_was_made_harmless_stays_as_it_is(data: bytes) -> None:
    once = safe_for_terminal(data)
    assert safe_for_terminal(once) == once


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"])))
def test_plain_text_passes_unchanged(text: str) -> None:
    assert safe_for_terminal(text.encode()) == text.encode()


@pytest.mark.parametrize(
    "passes",
    [
        b"\x1b[m",
        b"\x1b[1;38;5;200m",
        b"\x1b[38:2::1:2:3m",
        b"\x1b[10;20H",
        b"\x1b[K",
        b"\x1b[2J",
        b"\x1b[?2J",
        b"\x1b[5;20r",
        b"\x1b[?25l",
        b"\x1b[?1049h",
        b"\x1b[?7;25h",
        b"\x1b[s",
        b"\x1b[3T",
        b"\x1b7\x1b8\x1bM\x1bD\x1bE",
        b"a\tb\r\n\b",
    ],
)
def test_drawing_passes(passes: bytes) -> None:
    assert safe_for_terminal(b"x" + passes + b"y") == b"x" + passes + b"y"


@pytest.mark.parametrize(
    "attack",
    [
        b"\x1b]52;c;cm0gLXJmIC8K\x07",  # the clipboard
        b"\x1b]52;c;cm0gLXJmIC8K\x1b\\",
        b"\xc2\x9d52;c;cm0K\xc2\x9c",  # the same in C1
        b"\x1b]0;title\x07",
        b"\x1b]8;;http://evil\x1b\\",  # a link that is not what it reads
        b'\x1bP$q"p\x1b\\',  # DECRQSS: the terminal answers as if typed
        b"\x1b[c",
        b"\x1b[>c",
        b"\x1b[6n",
        b"\x1b[?6n",
        b"\x1b[21t",  # reports the title
        b"\x1b[5i",  # prints
        b"\x1b[3J",  # the reader's own scroll-back
        b"\x1b[?3J",
        b"\x1b[?1000h",  # mouse reports
        b"\x1b[?25;1000h",
        b"\x1b[?2004h",
        b"\x1b[?1h",
        b"\x1b=",
        b"\x1b[>4;2m",  # modifyOtherKeys
        b"\x1b[1;2;3;4;5T",
        b"\x1b[2 q",
        b"\x1b[!p",
        b"\x1b#8",
        b"\x1b%@",  # leaves UTF-8
        b"\x1b_tower\x1b\\",
        b"\x1b^pm\x1b\\",
        b"\x1bXsos\x1b\\",
        b"\x07",
        b"\x05",  # answerback
        b"\x7f",
        b"\x00",
    ],
)
def test_a_sequence_that_acts_on_the_reader_is_dropped(attack: bytes) -> None:
    assert safe_for_terminal(b"x" + attack + b"y") == b"xy"


def test_a_clipboard_write_cut_in_two_is_dropped_all_the_same() -> None:
    terminal = SafeTerminal()
    assert terminal.feed(b"a\x1b") == b"a"
    assert terminal.feed(b"]52;c;") == b""
    assert terminal.feed(b"aGk=\x1b") == b""
    assert terminal.feed(b"\\b") == b"b"


def test_an_endless_string_does_not_hide_what_comes_after_it() -> None:
    shown = safe_for_terminal(b"\x1b]0;" + b"x" * STRING_MAX + b"rm -rf /\n")
    assert shown == b"xxrm -rf /\n"


def test_a_sequence_that_never_ends_is_cut_off() -> None:
    assert safe_for_terminal(b"\x1b[" + b"1" * SEQUENCE_MAX + b"seen") == b"11seen"


@pytest.mark.parametrize("breaks", [b"\x18", b"\x1a", b"\x1b[31m"])
def test_a_broken_off_string_ends_where_a_terminal_ends_it(breaks: bytes) -> None:
    assert safe_for_terminal(b"\x1bPabc" + breaks + b"seen").endswith(b"seen")


def test_line_drawing_is_translated_and_leaves_no_terminal_in_it() -> None:
    assert safe_for_terminal(b"\x1b(0lqk\x1b(Blqk").decode() == "┌─┐lqk"
    assert safe_for_terminal(b"\x1b)0\x0elqk\x0flqk").decode() == "┌─┐lqk"


def test_a_full_reset_only_clears_the_screen() -> None:
    assert safe_for_terminal(b"\x1b(0q\x1bcq") == "─".encode() + b"\x1b[0m\x1b[r\x1b[?25h\x1b[H\x1b[2Jq"


def test_restoring_is_itself_on_the_list() -> None:
    assert ALLOWED.sub(b"", RESTORE) == b""


@given(st.text(alphabet=st.characters()))
def test_a_field_stays_on_one_line_and_harmless(text: str) -> None:
    shown = escape_field(text)
    assert shown.isprintable()
    assert escape_field(shown) == shown
    assert shown.encode().decode() == shown


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("ana", "ana"),
        ("größe 日本", "größe 日本"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m", "\\x9b31m"),
        ("x\u202etxt.exe", "x\\u202etxt.exe"),
        ("\u2066a\u2069", "\\u2066a\\u2069"),
        ("a\u2028b", "a\\u2028b"),
        ("a\u200bb", "a\\u200bb"),
        ("\ufeffa", "\\ufeffa"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\x7f", "\\x7f"),
    ],
)
def test_a_field_cannot_move_hide_or_turn_text(field: str, shown: str) -> None:
    assert escape_field(field) == shown
