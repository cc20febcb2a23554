"""A whole sealed record in a directory, as a vault holds it: two segments, both lanes, a case file and the manifest."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyrage

from breakglass.core.evidence import case_file, manifest, prefix
from breakglass.core.model import (
    AfterProcessAccess,
    Approval,
    Ended,
    EndReason,
    EntityRef,
    Mode,
    Person,
    Request,
    Session,
    Shell,
    Sid,
    State,
    Tier,
    canonical_json,
)
from breakglass.core.record import End, Header, Kind, Typed, Writer, segment_name
from breakglass.core.targets import Target

SID = Sid("abcdefgh23")
NOW = datetime(2026, 12, 1, 3, 0, tzinfo=UTC)
ANA = Person(ref=EntityRef("user:default/ana"), aliases=frozenset({"ana@example.com"}))
BEN = Person(ref=EntityRef("user:default/ben"))
OUTPUT = [b"$ ls\r\n", "grüße\r\n".encode(), b"\xff\xfe\r\n", b"\x1b]52;c;ZXZpbA==\x07\x1b[31mred\x1b[0m\r\n", b"$ exit\r\n"]


def session() -> Session:
    request = Request(
        sid=SID,
        app=EntityRef("component:default/checkout"),
        environment="prod",
        container=None,
        mode=Mode.LIVE,
        minutes=30,
        process_access=False,
        reason="checkout answers 500",
        requester=ANA,
        cluster="flight-1",
        namespace="checkout",
        tier=Tier.FLIGHT,
        commit="0" * 40,
        after_process_access=AfterProcessAccess.RECYCLE,
        asked_at=NOW,
    )
    whole = b"".join(OUTPUT)
    words = {"out_bytes": len(whole), "out_sha256": hashlib.sha256(whole).hexdigest(), "final": True}
    shell = Shell(
        number=1,
        pod="checkout-1",
        pod_uid="uid-1",
        container=f"debug-{SID}-1",
        opening_at=NOW,
        active_at=NOW,
        ended_at=NOW,
        end=EndReason.SHELL_EXITED,
        witness=json.dumps(words, separators=(",", ":")),
    )
    return Session(
        request=request,
        state=State.SEALED,
        version=9,
        changed_at=NOW,
        approval=Approval(approver=BEN, request_digest=request.digest, at=NOW),
        approved_at=NOW,
        started_at=NOW,
        shells=(shell,),
        ended=Ended(reason=EndReason.SHELL_EXITED, at=NOW),
    )


def write(directory: Path, *, of: Session | None = None, end: End | None = None) -> dict[str, Any]:
    """Write everything; returns the manifest."""
    of = of or session()
    key = bytes(range(32))
    wrapped = pyrage.encrypt(key, [pyrage.x25519.Identity.generate().to_public()])
    header = Header(sid=of.sid, request_digest=of.request.digest, cols=80, rows=24, started_at=NOW)
    writer = Writer(header, key=key, wrapped_key=wrapped)
    at, chain = 0, b""
    for number, pieces in ((1, OUTPUT[:3]), (2, OUTPUT[3:])):
        out, inp = writer.begin()
        if number == 1:
            out += writer.marker("shell 1 on pod checkout-1", at).out
        for piece in pieces:
            at += 400_000
            inp += writer.input([Typed(at_us=at, kind=Kind.TYPED, data=b"x")])
            out += writer.output(piece, at).out
        out += writer.flush(at).out
        line, seal = writer.seal((end or End(reason="shell_exited", cut=False)) if number == 2 else None)
        chain = seal.chain
        (directory / f"{segment_name(number)}.cast").write_bytes(out + line)
        (directory / f"{segment_name(number)}.in").write_bytes(inp)
    target = Target(pod="checkout-1", pod_uid="uid-1", node="node-1", container="app", uid=1000, gid=1000)
    case = case_file(of, of.shells[0], target, image="registry.example/debug@sha256:" + "0" * 64, evidence={}, now=NOW)
    (directory / "case-1.json").write_bytes(canonical_json(case))
    summary = {"segments": 2, "chain": chain.hex(), "output_bytes": writer.output_bytes, "cut": bool(end and end.cut)}
    return seal_manifest(directory, of, summary)


def seal_manifest(directory: Path, of: Session, summary: dict[str, Any]) -> dict[str, Any]:
    """Write a manifest of what is in the directory now."""
    objects = [
        {
            "key": prefix(of.sid) + path.name,
            "version": "1",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "bytes": path.stat().st_size,
        }
        for path in sorted(directory.iterdir())
        if path.name != "manifest.json"
    ]
    value = manifest(of, objects=objects, record=summary)
    (directory / "manifest.json").write_bytes(canonical_json(value))
    return value
