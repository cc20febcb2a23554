"""Writes `docs/reference/config.md` from the models of `config.py`; part of `generate.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from breakglass import config

NOTE = "<!-- Made by tests/docs/generate.py; do not edit. -->"

EXAMPLE = """\
profile: try
state_dir: state
clusters:
  - {name: demo, kubeconfig: portal.kubeconfig, tier: flight}
catalog: {file: catalog-info.yaml}
deployments:
  local: {"component:default/checkout": delivery}
identity: {local: {key_file: identity.pem}}
admins: group:default/tower-admins
auditors: group:default/auditors
recipients:  # the public lines of: age-keygen -o reviewers.key, age-keygen -o offline.key
  - age1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs3290gq
  - age1qgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpquuzgag
debug_images:
  - registry.example.test/tower/debug@sha256:0000000000000000000000000000000000000000000000000000000000000000
on_call: "platform on call, extension 4711"
"""

_WORDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    Path: "path",
}


def _marked(annotation: Any) -> str | None:
    names = {
        config.FilePath: "path",
        config.Label: "name (a-z, 0-9, -)",
        config.GroupRef: "group reference",
        config.AppRef: "app reference",
        config.Words: "one line of text",
        config.Recipient: "age recipient",
        config.Image: "`image@sha256:…`",
        config.Netloc: "host or host:port",
        config.WebhookUrl: "https URL",
    }
    return next((words for known, words in names.items() if known == annotation), None)


def _what(annotation: Any) -> str:
    """What to write for a value of this type, in words."""
    if (words := _marked(annotation)) is not None:
        return words
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in args)
    if origin is list:
        return f"list of {_what(args[0])}"
    if origin is dict:
        return f"mapping of {_what(args[0])} to {_what(args[1])}"
    if args and type(None) in args:
        return _what(next(one for one in args if one is not type(None)))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if args:
        return _what(args[0])
    return _WORDS[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default is None or field.default in ([], {}) or isinstance(field.default, BaseModel):
        return ""
    return f"`{field.default}`"


def _bounds(field: FieldInfo) -> str:
    found = {
        name: getattr(one, name)
        for one in field.metadata
        for name in ("ge", "le", "min_length", "max_length")
        if hasattr(one, name)
    }
    low, high = found.get("ge", found.get("min_length")), found.get("le", found.get("max_length"))
    return "" if low is None else f" ({low} to {high})"


def _models(model: type[BaseModel], seen: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """The model and all it holds, each once, in the order a reader meets them."""
    if model in seen:
        return seen
    seen[model] = None
    for field in model.model_fields.values():
        pending = [field.annotation]
        while pending:
            one = pending.pop()
            if isinstance(one, type) and issubclass(one, BaseModel):
                _models(one, seen)
            pending.extend(get_args(one))
    return seen


def _annotations(model: type[BaseModel]) -> dict[str, Any]:
    """Annotations as written: pydantic's own fields have lost the names of our types."""
    return {name: eval(text, vars(config)) for name, text in model.__annotations__.items()}  # noqa: S307 (our own source)


def page() -> str:
    """`docs/reference/config.md`."""
    lines = [
        NOTE,
        "# site.yaml",
        "",
        "Everything a site decides. Read strictly: a key nobody knows, a missing one or a value of another kind stops Tower with",
        "one sentence that names the place and what to write. YAML 1.2 without anchors, aliases and tags. It holds no secret.",
        "",
        "```yaml",
        EXAMPLE.rstrip(),
        "```",
    ]
    for model in _models(config.Site, {}):
        written = _annotations(model)
        lines += ["", f"## {model.__name__}", "", (model.__doc__ or "").strip(), ""]
        lines += ["| key | what to write | default | meaning |", "|---|---|---|---|"]
        for name, field in model.model_fields.items():
            what = _what(written[name]) + _bounds(field)
            lines.append(f"| `{name}` | {what} | {_default(field)} | {field.description} |")
    return "\n".join([*lines, ""])
