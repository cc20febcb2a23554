"""YAML text to plain values, or one sentence about why not: what people edit by hand is read one way only. Pure; layer 3.

The YAML 1.2 core schema (https://yaml.org/spec/1.2.2/#103-core-schema) without its doubtful spellings: `no`, `017`, `1:30` stay
text. No tags, anchors or aliases (a bomb has no fuse), no duplicate keys; bytes and depth bounded. Must never: build an object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import yaml

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

DEPTH_MAX: Final = 20
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where the wheel has it: 17 times faster, same events

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18}([eE][-+]?[0-9]{1,2})?|[eE][-+]?[0-9]{1,2})")
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a file: its number, from 1, the line it starts on, and its value."""

    number: int
    line: int
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """Why the text is not ours to read, with the line, in words that follow a file's name and a colon."""

    sentence: str


class _RefusedError(Exception):
    """A refusal on its way up to `documents`; never leaves this module."""


@dataclass(slots=True)
class _Open:
    """A sequence or mapping whose end has not come yet; `key` is the mapping's key that waits for its value."""

    value: list[Value] | dict[str, Value]
    key: str | None = None


@dataclass(slots=True)
class _Reading:
    """The document being read, as a stack: no recursion, so depth is a number and not a crash."""

    stack: list[_Open] = field(default_factory=list)
    result: Value = None

    def put(self, value: Value, line: int) -> None:
        """Place one finished value where it belongs: as a key, under the waiting key, in the list, or as the document."""
        if not self.stack:
            self.result = value
            return
        top = self.stack[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is None:
            if not isinstance(value, str):
                raise _RefusedError(f"line {line}: a key must be text; write it in quotes")
            if value in top.value:
                raise _RefusedError(f"line {line}: the key {value[:60]!r} is there twice; keep one")
            top.key = value
        else:
            top.value[top.key] = value
            top.key = None

    def open(self, value: list[Value] | dict[str, Value], line: int) -> None:
        """Begin a sequence or mapping, unless it is one too deep or stands where a key must."""
        if len(self.stack) >= DEPTH_MAX:
            raise _RefusedError(f"line {line}: nested deeper than {DEPTH_MAX} levels; write it flatter")
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            raise _RefusedError(f"line {line}: a key must be text; write it in quotes")
        self.stack.append(_Open(value))

    def close(self, line: int) -> None:
        """End the innermost sequence or mapping."""
        self.put(self.stack.pop().value, line)


def documents(raw: bytes, *, limit: int) -> tuple[Document, ...] | Malformed:
    """Every document of the text that is not empty, or why the text is refused. `limit` in bytes."""
    if len(raw) > limit:
        return Malformed(sentence=f"larger than {limit} bytes; split it or remove what is not needed")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Malformed(sentence=f"line {line}: not UTF-8; save it as UTF-8")
    try:
        return tuple(_documents(text))
    except _RefusedError as refused:
        return Malformed(sentence=str(refused))
    except yaml.MarkedYAMLError as error:
        return Malformed(sentence=_marked(error, text))
    except yaml.YAMLError:
        return Malformed(sentence="a control character is in it; remove it")


def document(raw: bytes, *, limit: int) -> Document | Malformed:
    """The only document of the text, or why not."""
    found = documents(raw, limit=limit)
    if isinstance(found, Malformed):
        return found
    if len(found) != 1:
        return Malformed(sentence="empty; it must hold one document" if not found else "several documents; it must hold one")
    return found[0]


def _documents(text: str) -> Iterator[Document]:
    reading, number, line = _Reading(), 0, 1
    for event in yaml.parse(text, Loader=_LOADER):
        at = event.start_mark.line + 1 if event.start_mark is not None else line
        if isinstance(event, yaml.DocumentStartEvent):
            reading, number, line = _Reading(), number + 1, at
        elif isinstance(event, yaml.DocumentEndEvent):
            if reading.result is not None:
                yield Document(number=number, line=line, value=reading.result)
        else:
            _take(reading, event, at)


def _take(reading: _Reading, event: yaml.Event, line: int) -> None:
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
        raise _RefusedError(f"line {line}: anchors (&) and aliases (*) are not accepted; write the value out, or quote it")
    if getattr(event, "tag", None) not in {None, "!"}:
        raise _RefusedError(f"line {line}: tags (!) are not accepted; write plain text, numbers, lists and mappings")
    if isinstance(event, yaml.ScalarEvent):
        reading.put(event.value if event.style or event.tag else _plain(event.value), line)
    elif isinstance(event, yaml.SequenceStartEvent):
        reading.open([], line)
    elif isinstance(event, yaml.MappingStartEvent):
        reading.open({}, line)
    elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
        reading.close(line)


def _plain(text: str) -> Value:
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _marked(error: yaml.MarkedYAMLError, text: str) -> str:
    """Where the library tripped; it is often over a tab, so say that. An end that comes too early is the last line's fault."""
    mark = error.problem_mark or error.context_mark
    lines = text.splitlines()
    number = min(mark.line if mark is not None else 0, max(len(lines) - 1, 0))
    hint = "indent with spaces, not tabs" if lines and "\t" in lines[number] else "check indentation, quotes and brackets there"
    return f"line {number + 1}: not YAML; {hint}"


def kind_of(value: Any) -> str:
    """What a value is, in the words of somebody who edits YAML."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a mapping"


# --- what is wrong with the values ------------------------------------------------------------------------------------

_KINDS: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def problem(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of a pydantic model's errors as `where.it[0].is: what to write`, and how many more there are."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{_place(first['loc'])}{_words(first)}{more}"


def _place(loc: Sequence[int | str]) -> str:
    place = ""
    for part in loc:
        if part != "[key]":
            place += f"[{part}]" if isinstance(part, int) else f".{part[:60]}"
    return f"{place.removeprefix('.')}: " if place else ""


def _words(error: Mapping[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}, not {kind_of(error['input'])}"
    match kind:
        case "missing":
            return "is missing; write it"
        case "extra_forbidden":
            return "is not a field here; remove it or correct its name"
        case "literal_error":
            return f"must be {context['expected']}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "too_short":
            return f"must have at least {context['min_length']}"
        case "too_long":
            return f"must have at most {context['max_length']}"
        case "value_error":
            return str(context["error"])
        case _:
            return str(error["msg"])[:1].lower() + str(error["msg"])[1:]
