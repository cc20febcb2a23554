"""The catalog in one `catalog-info.yaml`, read again whenever the file changes: ownership and membership as they are now.

Backstage's format (https://backstage.io/docs/features/software-catalog/descriptor-format): Component, Group and User count,
other kinds are looked at for their names only. Must never: answer from a copy the file no longer says, or guess a relation.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from breakglass.core.facts import AppFacts, PersonFacts
from breakglass.core.model import EntityRef, Person, entity_ref
from breakglass.core.strict_yaml import Document, Malformed, Value, documents, kind_of
from breakglass.ports import PortError, Trouble

LIMIT: Final = 4 * 1024 * 1024
"""Bytes of the file; about twenty thousand entities."""
SETTLED_SECONDS: Final = 2.0
"""A file changed this recently is read again even when it looks the same: two writes can share one time stamp."""

ALIASES: Final = "tower.hangar/aliases"
LOCKED: Final = "tower.hangar/locked"
CICD: Final = "tower.hangar/cicd"

_VERSIONS: Final = frozenset({"backstage.io/v1alpha1", "backstage.io/v1beta1"})
_KINDS: Final = frozenset({"component", "group", "user"})


class _MalformedError(Exception):
    """What is wrong in which document; becomes `PortError(invalid)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    """The file's relations: apps, people, and each group's people."""

    apps: Mapping[EntityRef, AppFacts] = field(default_factory=dict)
    people: Mapping[EntityRef, PersonFacts] = field(default_factory=dict)


class CatalogFile:
    """Catalog over one file. The file's state is looked at on every call; only an unchanged one is not parsed again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._parsed = _Parsed()

    async def app(self, ref: EntityRef) -> AppFacts | None:
        """The component and its owner now. `transient` when the file cannot be read, `invalid` when it is malformed."""
        return (await self._now()).apps.get(ref)

    async def apps(self) -> Sequence[AppFacts]:
        """All components, by reference."""
        return [facts for _, facts in sorted((await self._now()).apps.items())]

    async def person(self, ref: EntityRef) -> PersonFacts | None:
        """The person under all their names, with their direct groups."""
        return (await self._now()).people.get(ref)

    async def members(self, group: EntityRef) -> Sequence[Person]:
        """The group's direct members, one for each human: a second entity of the same human adds nobody."""
        humans: list[Person] = []
        for _, facts in sorted((await self._now()).people.items()):
            if group in facts.groups and not any(facts.person.same(other) for other in humans):
                humans.append(facts.person)
        return humans

    async def _now(self) -> _Parsed:
        return await asyncio.to_thread(self._read)

    def _read(self) -> _Parsed:
        with self._lock:
            try:
                raw, seen = self._changed()
            except OSError as error:
                self._seen = None
                words = f"the catalog {self._path} cannot be read: {error.strerror}; look at its path and rights"
                raise PortError(Trouble.TRANSIENT, words) from error
            if raw is not None:
                self._seen = None  # until it is parsed there is no catalog: an old copy is not "now"
                try:
                    self._parsed = _parse(raw)
                except _MalformedError as error:
                    raise PortError(Trouble.INVALID, f"the catalog {self._path}: {error}") from error
                self._seen = seen
            return self._parsed

    def _changed(self) -> tuple[bytes | None, tuple[int, ...]]:
        """The file's bytes, or None when it is the one that was parsed; all of one descriptor, so of one file."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(0, "not a file")
            seen = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            settled = time.time() - max(state.st_mtime, state.st_ctime) > SETTLED_SECONDS
            if seen == self._seen and settled:
                return None, seen
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return file.read(LIMIT + 1), seen
        finally:
            os.close(descriptor)


# --- the format -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entity:
    """One entity's fields with the words to complain about them."""

    number: int
    kind: str
    namespace: str
    ref: EntityRef
    metadata: Mapping[str, Value]
    spec: Mapping[str, Value]

    def wrong(self, name: str, words: str) -> _MalformedError:
        return _MalformedError(f"document {self.number} ({self.ref}): {name}: {words}")

    def mapping(self, name: str, value: Value) -> Mapping[str, Value]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(name, f"must be a mapping, not {kind_of(value)}")
        return value

    def text(self, name: str, value: Value) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or len(value) > 500 or not value.isprintable():
            raise self.wrong(name, "must be text of 1 to 500 printable characters")
        return value.strip()

    def refs(self, name: str, value: Value, *, kind: str) -> frozenset[EntityRef]:
        """References to entities of one kind, in a list; Backstage completes short ones with the entity's own namespace."""
        if value is None:
            return frozenset()
        if not isinstance(value, list):
            raise self.wrong(name, f"must be a list of {kind} names, not {kind_of(value)}")
        return frozenset(self.ref_to(f"{name}[{index}]", one, kinds=(kind,)) for index, one in enumerate(value))

    def ref_to(self, name: str, value: Value, *, kinds: tuple[str, ...]) -> EntityRef:
        found = entity_ref(value, kind=kinds[0], namespace=self.namespace) if isinstance(value, str) else None
        if found is None or found.partition(":")[0] not in kinds:
            raise self.wrong(name, f"must name a {' or '.join(kinds)}, as in {kinds[0]}:default/name")
        return found

    def annotation(self, name: str) -> str | None:
        annotations = self.mapping("metadata.annotations", self.metadata.get("annotations"))
        return self.text(f"metadata.annotations.{name}", annotations.get(name))


def _parse(raw: bytes) -> _Parsed:
    found = documents(raw, limit=LIMIT)
    if isinstance(found, Malformed):
        raise _MalformedError(found.sentence)
    entities: dict[EntityRef, _Entity] = {}
    for document in found:
        entity = _entity(document)
        if (twin := entities.get(entity.ref)) is not None:
            raise entity.wrong("metadata.name", f"document {twin.number} is {entity.ref} too; keep one of them")
        entities[entity.ref] = entity
    ours = [entity for entity in entities.values() if entity.kind in _KINDS]
    return _Parsed(apps={one.ref: _app(one) for one in ours if one.kind == "component"}, people=_people(ours))


def _entity(document: Document) -> _Entity:
    where = f"document {document.number} (line {document.line})"
    top = document.value
    if not isinstance(top, dict):
        raise _MalformedError(f"{where}: must be a mapping with kind, metadata and spec, not {kind_of(top)}")
    kind, metadata, spec = top.get("kind"), top.get("metadata"), top.get("spec")
    if not isinstance(kind, str) or not kind:
        raise _MalformedError(f"{where}: kind: must be text, as in Component, Group or User")
    if not isinstance(metadata, dict):
        raise _MalformedError(f"{where}: metadata: must be a mapping with a name, not {kind_of(metadata)}")
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    if not isinstance(namespace, str) or not isinstance(name, str) or ":" in f"{name}{namespace}" or "/" in f"{name}{namespace}":
        raise _MalformedError(f"{where}: metadata: name and namespace must be text without : and /")
    ref = entity_ref(name, kind=kind.lower(), namespace=namespace.lower())
    if ref is None:
        raise _MalformedError(f"{where}: metadata.name: 1 to 63 of a-z, 0-9, -, _ and . name an entity")
    bare = _Entity(number=document.number, kind=kind.lower(), namespace=namespace.lower(), ref=ref, metadata=metadata, spec={})
    if bare.kind not in _KINDS:
        return bare
    if top.get("apiVersion") not in _VERSIONS:
        raise bare.wrong("apiVersion", f"must be {' or '.join(sorted(_VERSIONS))}")
    fields = bare.mapping("spec", spec)
    return _Entity(number=bare.number, kind=bare.kind, namespace=bare.namespace, ref=ref, metadata=metadata, spec=fields)


def _app(entity: _Entity) -> AppFacts:
    owner = entity.ref_to("spec.owner", entity.spec.get("owner"), kinds=("group", "user"))
    title = entity.text("metadata.title", entity.metadata.get("title"))
    return AppFacts(app=entity.ref, owners=frozenset({owner}), cicd=entity.annotation(CICD), title=title or "")


def _people(entities: Iterable[_Entity]) -> Mapping[EntityRef, PersonFacts]:
    """Everybody, with groups from both ends of the relation, and one human's entities tied together.

    Entities that share a name, directly or through a third, are one human: each carries all their names, and a lock on one
    locks all. Groups are not pooled: an entity has only the rights that were given to it.
    """
    groups: dict[EntityRef, set[EntityRef]] = {}
    names: dict[EntityRef, set[str]] = {}
    locked: set[EntityRef] = set()
    for entity in entities:
        if entity.kind == "user":
            member_of = entity.refs("spec.memberOf", entity.spec.get("memberOf"), kind="group")
            groups.setdefault(entity.ref, set()).update(member_of)
            names[entity.ref] = {str(entity.ref), *_aliases(entity)}
            if _is_locked(entity):
                locked.add(entity.ref)
        elif entity.kind == "group":
            for member in entity.refs("spec.members", entity.spec.get("members"), kind="user"):
                groups.setdefault(member, set()).add(entity.ref)
    humans = _tied(names)
    return {
        ref: PersonFacts(
            person=Person(ref=ref, aliases=frozenset(humans[ref] - {str(ref)})),
            groups=frozenset(groups[ref]),
            locked=not locked.isdisjoint(EntityRef(name) for name in humans[ref]),
        )
        for ref in names
    }


def _tied(names: Mapping[EntityRef, set[str]]) -> Mapping[EntityRef, set[str]]:
    """For each person, the names of everybody they share a name with, through any chain."""
    holder: dict[str, set[str]] = {}
    for own in names.values():
        merged = set(own).union(*(holder.get(name, set()) for name in own))
        for name in merged:
            holder[name] = merged
    return {ref: holder[str(ref)] for ref in names}


def _aliases(entity: _Entity) -> set[str]:
    profile = entity.mapping("spec.profile", entity.spec.get("profile"))
    email = entity.text("spec.profile.email", profile.get("email"))
    listed = [part.strip() for part in (entity.annotation(ALIASES) or "").split(",")]
    return {name.casefold() for name in (email or "", *listed) if name}


def _is_locked(entity: _Entity) -> bool:
    value = entity.mapping("metadata.annotations", entity.metadata.get("annotations")).get(LOCKED)
    if isinstance(value, bool | list | dict) or value not in {None, "true", "false"}:
        raise entity.wrong(f"metadata.annotations.{LOCKED}", 'must be "true" or "false", in quotes')
    return value == "true"
