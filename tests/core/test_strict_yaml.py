"""Hand-written YAML has one reading: no type that changes behind the writer's back, no bomb, no crash."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakglass.core.strict_yaml import DEPTH_MAX, Document, Malformed, document, documents

PLAIN = st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"])
LEAVES = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(PLAIN, max_size=20)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(PLAIN, min_size=1), inner, max_size=4)
)


def value_of(text: str) -> object:
    found = document(text.encode(), limit=10_000)
    assert isinstance(found, Document), found
    return found.value


@pytest.mark.parametrize(
    "word", ["no", "yes", "on", "off", "y", "NO", "1:30", "0x1f", "0o17", "017", "1_000", "2026-12-01", ".inf", "="]
)
def test_a_word_that_older_yaml_turned_into_something_else_stays_text(word):
    assert value_of(f"a: {word}") == {"a": word}


PLAIN_VALUES = {
    "true": True,
    "False": False,
    "null": None,
    "~": None,
    "": None,
    "-12": -12,
    "1.5e3": 1500.0,
    "0.25": 0.25,
    "'12'": "12",
    '"true"': "true",
}


@pytest.mark.parametrize(("text", "value"), PLAIN_VALUES.items())
def test_plain_values_are_those_of_the_core_schema(text, value):
    assert value_of(f"a: {text}") == {"a": value}


def test_a_number_too_long_to_be_meant_stays_text():
    assert value_of("a: " + "9" * 4000) == {"a": "9" * 4000}


@pytest.mark.slow
@given(VALUES)
@settings(max_examples=300, deadline=None)
def test_json_is_read_as_json(value):
    found = document(json.dumps(value).encode(), limit=100_000)
    assert (found.value if isinstance(found, Document) else None) == value


@pytest.mark.slow
@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | st.text("[]{}:,-&*!'\"\t\n #?|>%@`ab", max_size=60).map(str.encode)
)
@settings(max_examples=2000, deadline=None)
def test_no_bytes_make_it_crash(raw):
    found = documents(raw, limit=150)
    assert isinstance(found, Malformed | tuple)


def test_documents_keep_their_number_and_line_and_empty_ones_are_left_out():
    found = documents(b"a: 1\n---\n---\n# nothing\n---\nb: 2\n", limit=1000)
    assert [(one.number, one.line, one.value) for one in found] == [(1, 1, {"a": 1}), (4, 5, {"b": 2})]


def test_the_deepest_value_is_read_and_one_deeper_is_refused():
    assert isinstance(document(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, limit=1000), Document)
    deeper = document(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), limit=1000)
    assert deeper == Malformed(sentence="line 1: nested deeper than 20 levels; write it flatter")


def test_a_merge_key_merges_nothing():
    assert value_of("<<: {a: 1}\nb: 2") == {"<<": {"a": 1}, "b": 2}
