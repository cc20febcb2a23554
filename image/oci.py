"""Writes OCI image archives byte for byte the same from the same files, without a container engine.

Build tool, outside the layers: product code never imports it.
It must never copy an owner name, a time stamp or a set-uid bit of the machine that builds.
Source of the formats: OCI image specification v1.1 (image layout, config, layer).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

#: One fixed date for every file and every image: 2026-01-01T00:00:00Z, unless SOURCE_DATE_EPOCH says otherwise.
EPOCH: Final = int(os.environ.get("SOURCE_DATE_EPOCH", "1767225600"))
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
#: containerd reads the name it stores an image under from this annotation of the index entry.
NAME_ANNOTATION: Final = "io.containerd.image.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """An uncompressed layer: its digest is its diff id."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A manifest and its parts; `reference` is what a pod may name (`repository@sha256:…`)."""

    repository: str
    manifest: bytes
    config: bytes
    layers: tuple[Layer, ...]

    @property
    def digest(self) -> str:
        """Return the manifest's digest."""
        return digest_of(self.manifest)

    @property
    def reference(self) -> str:
        """Return the name by digest."""
        return f"{self.repository}@{self.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path of a layer; `content` of a directory is None, of a link its target."""

    path: str
    mode: int
    content: bytes | None = None
    link: str | None = None
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What the image says about running: a numeric user, always."""

    user: str
    env: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


def digest_of(data: bytes) -> str:
    """Return `sha256:<hex>` of the data."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the header without what differs between machines, and without set-uid, set-gid bits."""
    info.mtime = EPOCH
    info.uname = info.gname = ""
    info.pax_headers = {}
    special = stat.S_ISUID | stat.S_ISGID
    info.mode &= ~special
    return info


def write_entries(path: Path, entries: Iterable[Entry]) -> Layer:
    """Write a layer from entries given here; parents must be among them or exist below."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(entries, key=lambda e: e.path):
            info = tarfile.TarInfo(entry.path.lstrip("/"))
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
            if entry.link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.content)
            tar.addfile(plain(info), io.BytesIO(entry.content or b""))
    return layer_at(path)


def rewrite(source: Path, path: Path, drop: tuple[str, ...] = ()) -> Layer:
    """Write a layer from another tar: sorted, fixed times, no set-uid bits, without the `drop` prefixes and devices."""
    with tarfile.open(source) as old, tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as new:
        members = {member.name.removeprefix("./").rstrip("/"): member for member in old.getmembers()}
        for name in link_targets_first(members):
            member = members[name]
            skipped = not name or any(name.startswith(prefix) for prefix in drop) or member.ischr() or member.isblk()
            if skipped:
                continue
            content = old.extractfile(member) if member.isreg() else None
            member.name = name
            if member.islnk():
                member.linkname = member.linkname.removeprefix("./")
            new.addfile(plain(member), content)
    return layer_at(path)


def link_targets_first(members: dict[str, tarfile.TarInfo]) -> list[str]:
    """Sort names so that a hard link comes after the file it names."""
    return sorted(members, key=lambda name: (members[name].islnk(), name))


def layer_at(path: Path) -> Layer:
    """Describe a layer file that is already written."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Layer(path=path, digest=f"sha256:{digest}", size=path.stat().st_size)


def image(repository: str, layers: tuple[Layer, ...], run: RunConfig) -> Image:
    """Put layers and configuration together; nothing is written."""
    config = canonical(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {
                "User": run.user,
                "WorkingDir": "/",
                "Env": list(run.env),
                "Entrypoint": list(run.entrypoint),
                "Cmd": list(run.cmd),
                "Labels": run.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        },
    )
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": digest_of(config), "size": len(config)},
            "layers": [{"mediaType": LAYER_TYPE, "digest": layer.digest, "size": layer.size} for layer in layers],
        },
    )
    return Image(repository=repository, manifest=manifest, config=config, layers=layers)


def write_archive(path: Path, images: Iterable[Image], *, without: frozenset[str] = frozenset(), tag: str = "lab") -> None:
    """Write an OCI layout as one tar; layers whose digest is in `without` are left out (the reader has them)."""
    blobs: dict[str, bytes | Path] = {}
    entries: list[dict[str, Any]] = []
    for item in images:
        blobs[item.digest], blobs[digest_of(item.config)] = item.manifest, item.config
        blobs.update({layer.digest: layer.path for layer in item.layers if layer.digest not in without})
        described = {"mediaType": MANIFEST_TYPE, "digest": item.digest, "size": len(item.manifest)}
        names = (item.reference, f"{item.repository}:{tag}")
        entries += [{**described, "annotations": {NAME_ANNOTATION: name}} for name in names]
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        add_bytes(tar, "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
        add_bytes(tar, "index.json", canonical({"schemaVersion": 2, "manifests": entries}))
        for digest in sorted(blobs):
            blob, name = blobs[digest], "blobs/sha256/" + digest.removeprefix("sha256:")
            if isinstance(blob, bytes):
                add_bytes(tar, name, blob)
            else:
                with blob.open("rb") as file:
                    add_file(tar, name, file, blob.stat().st_size)


def add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Append one member from memory."""
    add_file(tar, name, io.BytesIO(data), len(data))


def add_file(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    """Append one member from an open file."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o444
    tar.addfile(plain(info), file)


def canonical(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces: the same value is the same digest."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
