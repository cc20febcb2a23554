"""Against two readers who disagree: the checked-in records, our reader, and one written from `spec/record.md` alone."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pyrage  # type: ignore[import-untyped]
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from breakglass.core.record_read import Fault, Reader, RecordInvalid, decrypt_input, plain_key

SPEC = Path(__file__).parents[2] / "spec"
DIRECTORY = SPEC / "vectors" / "record"
VECTORS: dict[str, Any] = json.loads((DIRECTORY / "vectors.json").read_bytes())
GOOD: dict[str, Any] = VECTORS["good"]
Rows = list[tuple[bytes, bytes | None]]


def rows(vector: dict[str, Any]) -> Rows:
    return [tuple(None if name is None else (DIRECTORY / name).read_bytes() for name in row) for row in vector["objects"]]  # type: ignore[misc]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_record", SPEC / "vectors" / "make_record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(objects: Rows) -> Fault | None:
    reader = Reader(GOOD["sid"])
    try:
        segments = [reader.segment(*row) for row in objects]
        reader.finish()
        if all(inp is not None for _, inp in objects):
            list(decrypt_input(segments, GOOD["sid"], bytes.fromhex(GOOD["input_key"])))
    except RecordInvalid as invalid:
        return invalid.code
    return None


def test_the_checked_in_records_are_what_the_generator_makes() -> None:
    assert {path.name: path.read_bytes() for path in DIRECTORY.iterdir()} == generator().files()


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda vector: vector["name"])
def test_our_reader_finds_exactly_the_fault_that_is_there(vector: dict[str, Any]) -> None:
    assert ours(rows(vector)) == vector["fault"]


def test_every_fault_a_small_file_can_have_is_among_the_records() -> None:
    assert {vector["fault"] for vector in VECTORS["records"]} == {None, *Fault} - {Fault.TOO_LONG}


def test_every_fault_is_explained_on_the_page() -> None:
    page = (SPEC / "record.md").read_text()
    assert set(re.findall(r"`([a-z_]+)`", page[page.index("## 7.") : page.index("## 8.")])) >= set(Fault)


def test_each_recipient_alone_opens_the_input_key() -> None:
    reader = Reader()
    wrapped = reader.segment(*rows(VECTORS["records"][0])[0]).wrapped_key
    assert wrapped is not None
    for identity in GOOD["identities"]:
        assert plain_key(pyrage.decrypt(wrapped, [pyrage.x25519.Identity.from_str(identity)])).hex() == GOOD["input_key"]


# --- another reader, from the page alone ------------------------------------------------------------------------------


class RefusedError(Exception):
    pass


def must(truth: object) -> None:
    if not truth:
        raise RefusedError


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parsed(text: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text.decode())
    must(canonical(value) == text and b"." not in re.sub(rb'"[^"]*"', b"", text))
    return value


def event(line: bytes, exact: bytes | None) -> bytes:
    found = re.fullmatch(r'\[(?:0|[1-9]\d{0,9})\.\d{6}, "([ormx])", (".*")\]', line.decode(), re.DOTALL | re.ASCII)
    must(found)
    assert found is not None
    text: str = json.loads(found[2])
    must(json.dumps(text, ensure_ascii=False) == found[2])
    if found[1] != "o":
        form = {"r": r"[1-9]\d{0,4}x[1-9]\d{0,4}", "x": r"\d{1,3}", "m": r".{0,4096}"}[found[1]]
        must(exact is None and re.fullmatch(form, text, re.DOTALL | re.ASCII))
        return b""
    if exact is None:
        must(text)
        return text.encode()
    data = base64.b64decode(exact, validate=True)
    must(base64.b64encode(data) == exact)
    shown = "".join(chr(byte) if byte < 128 else "?" for byte in data) if 0 in data else data.decode(errors="replace")
    must(text == shown and text.encode() != data)
    return data


def theirs(objects: Rows) -> tuple[str, bytes, list[list[Any]]]:
    """Chain, output and input of a record, or `RefusedError`."""
    link, sid, output, typed, counter, end, clock = b"", "", b"", [], 0, None, 0
    for number, (out, inp) in enumerate(objects, 1):
        must(end is None and out.endswith(b"\n"))
        *lines, last = out[:-1].split(b"\n")
        body = out[: -len(last) - 1]
        if number == 1:
            head = parsed(lines[0])
            sid = head["tower"]["sid"]
            must(set(head) == {"term", "timestamp", "title", "tower", "version"} and head["version"] == 3)
            must(head["title"] == f"tower session {sid}" and sid == GOOD["sid"] and head["tower"]["format"] == 1)
            link = hashlib.sha256(b"tower record v1 start\n" + lines.pop(0) + b"\n").digest()
        must(lines and lines[0] == b"# tower:seg " + canonical({"n": number, "prev": link.hex()}))
        must(last.startswith(b"# tower:seal "))
        seal = parsed(last.removeprefix(b"# tower:seal "))
        events, shown, exact = 0, b"", None
        for line in lines[1:]:
            if exact is None and line.startswith(b"#b "):
                exact = line.removeprefix(b"#b ")
                continue
            shown, exact, events = shown + event(line, exact), None, events + 1
        must(exact is None)
        link = hashlib.sha256(
            b"tower record v1 chain\n" + link + canonical({name: seal[name] for name in seal if name != "chain"})
        ).digest()
        must((seal.pop("chain"), seal["n"], seal["out_sha256"]) == (link.hex(), number, hashlib.sha256(body).hexdigest()))
        must((seal["events"], seal["out_bytes"]) == (events, len(shown)))
        output, end = output + shown, seal["end"]
        if inp is None:
            continue
        must(hashlib.sha256(inp).hexdigest() == seal["in_sha256"] and inp.endswith(b"\n"))
        first, *records = inp[:-1].split(b"\n")
        must(set(parsed(first)) == {"format", "n", "sid"} | ({"key"} if number == 1 else set()))
        must((parsed(first)["sid"], parsed(first)["n"], len(records)) == (sid, number, seal["inputs"]))
        for record in records:
            counter += 1
            aad = canonical(["tower record v1 input", sid, number, counter])
            plain = ChaCha20Poly1305(bytes.fromhex(GOOD["input_key"])).decrypt(
                counter.to_bytes(12, "big"), base64.b64decode(record, validate=True), aad
            )
            while any(plain):
                at, kind, size = int.from_bytes(plain[:8], "big"), plain[8], int.from_bytes(plain[9:13], "big")
                must(at >= clock and kind in {1, 2} and len(plain[13 : 13 + size]) == size > 0)
                typed.append([at, kind, plain[13 : 13 + size].hex()])
                clock, plain = at, plain[13 + size :]
            must(len(plain) < 64)
    must(end is not None)
    return link.hex(), output, typed


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda vector: vector["name"])
def test_a_reader_written_from_the_page_alone_takes_and_refuses_the_same(vector: dict[str, Any]) -> None:
    if vector["fault"] is None:
        theirs(rows(vector))
        return
    with pytest.raises((RefusedError, ValueError, KeyError, InvalidTag)):
        theirs(rows(vector))


def test_a_reader_written_from_the_page_alone_reads_the_same_bytes() -> None:
    chain, output, typed = theirs(rows(VECTORS["records"][0]))
    assert (chain, len(output), hashlib.sha256(output).hexdigest()) == (
        GOOD["chain"],
        GOOD["output_bytes"],
        GOOD["output_sha256"],
    )
    assert typed == GOOD["typed"]
