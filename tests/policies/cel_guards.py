"""A linter for our CEL: finds whatever could fail at run time, for under `failurePolicy: Fail` an error refuses the request.

Not a CEL parser: it reads tokens. What it demands is stricter than CEL: below `object`, `oldObject`, `namespaceObject`, `request`
and every loop variable each step is `.?field`, `[?key]` or inside `has()`.
"""

from __future__ import annotations

import re
from typing import Final

TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'[^'\\]*')|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>\d+)|(?P<sign>\.\?|\[\?|&&|\|\||[=!<>]=|[^\s\w]))"
)
#: Fields of a request that the API server always fills in.
ALWAYS: Final = frozenset(
    {"request.operation", "request.userInfo", "request.userInfo.username", "request.resource", "request.resource.resource"}
)
ROOTS: Final = frozenset({"object", "oldObject", "namespaceObject", "request", "variables"})
WORDS: Final = frozenset({"in", "true", "false", "null"})
FAILS: Final = frozenset({"int", "uint", "double", "timestamp", "duration", "substring", "quantity", "url", "ip", "cidr"})


def tokens(expression: str) -> list[str]:
    """The expression's tokens; ValueError for what the linter can't read."""
    found, at = [], 0
    while at < len(expression.rstrip()):
        match = TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"cannot read from: {expression[at : at + 20]}")
        found.append(match.group().strip())
        at = match.end()
    return found


def findings(expression: str, declared: frozenset[str] = frozenset()) -> list[str]:
    """What could fail in this expression; `declared` are the variables that come before it."""
    parts = tokens(expression)
    found = []
    for i, part in enumerate(parts):
        before, after = (parts[i - 1] if i else ""), (parts[i + 1] if i + 1 < len(parts) else "")
        if part == "." and not called(parts, i) and not guarded(parts, i) and chain(parts, i) not in ALWAYS:
            root = chain(parts, i)
            if not root.startswith("variables.") or root.count(".") > 1:
                found.append(f"unguarded field {root}")
            elif after not in declared:
                found.append(f"variable {after} is not declared before")
        if part == "[" and (before in {")", "]"} or is_name(before)):
            found.append(f"unguarded index after {before}")
        if part in FAILS and after == "(" and "matches" not in parts[:i]:
            found.append(f"{part}() of something that was not matched before")
        if part in {"/", "%"}:
            found.append("division")
        if part in {".?", "[?"} and not ends(parts, i):
            found.append(f"an optional value is used as it is, after {before}")
    return found


def is_name(token: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", token) is not None and token not in WORDS


def called(parts: list[str], dot: int) -> bool:
    """Whether what follows this dot is a function."""
    return dot + 2 < len(parts) and parts[dot + 2] == "("


def guarded(parts: list[str], dot: int) -> bool:
    """Whether this dot is the only one of `has(x.field)`, x being a loop variable (which is always there)."""
    around = parts[max(0, dot - 3) : dot] + parts[dot + 1 : dot + 3]
    return len(around) == 5 and around[:2] == ["has", "("] and around[2] not in ROOTS and around[4] == ")"


def chain(parts: list[str], dot: int) -> str:
    """The plain path that ends with the field after this dot, e.g. `request.userInfo.username`."""
    names = [parts[dot + 1]]
    while dot > 0 and parts[dot] == "." and is_name(parts[dot - 1]):
        names.append(parts[dot - 1])
        dot -= 2
    return ".".join(reversed(names))


def ends(parts: list[str], at: int) -> bool:
    """Whether the optional chain from here ends in orValue(), hasValue() or a comparison of two optionals."""
    first = at
    while first > 1 and (parts[first - 1] in {".?", ".", "[?"} or is_name(parts[first - 1])):
        first -= 1
    compared = parts[first - 1] == "=="
    while at < len(parts):
        if parts[at] == ".?":
            at += 2
        elif parts[at] == "[?":
            at = closing(parts, at) + 1
        else:
            break
    rest = parts[at : at + 2]
    return rest in ([".", "orValue"], [".", "hasValue"]) or rest[:1] == ["=="] or compared


def closing(parts: list[str], opening: int) -> int:
    """Where the bracket that opens here closes."""
    depth = 0
    for i in range(opening, len(parts)):
        depth += {"[": 1, "[?": 1, "]": -1}.get(parts[i], 0)
        if depth == 0:
            return i
    raise ValueError("a bracket is never closed")
