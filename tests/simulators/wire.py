"""The wire under an API server: TLS on loopback, requests answered byte by byte as a test says, WebSockets that misbehave."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import hashlib
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, section 1.3."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Wire:
    """A server: `answer` gets each request and the connection, and does what it likes; `asked` is what came."""

    url: str
    authority: Path
    answer: Callable[[Asked, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    asked: list[Asked] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def tls(self) -> ssl.SSLContext:
        """What a client needs to believe this server."""
        return ssl.create_default_context(cafile=self.authority)


def status(code: int, body: object, kind: str = "application/json", **headers: str) -> bytes:
    """An HTTP answer; a dict is sent as JSON."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {code} x\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode() + data


def no(code: int, message: str) -> bytes:
    """The API server's Status for a refusal."""
    return status(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})


def upgraded(asked: Asked, subprotocol: str | None) -> bytes:
    """The answer that opens a WebSocket (RFC 6455, section 4.2.2)."""
    key = hashlib.sha1(asked.headers["sec-websocket-key"].encode() + GUID, usedforsecurity=False).digest()
    chosen = f"Sec-WebSocket-Protocol: {subprotocol}\r\n" if subprotocol else ""
    accept = base64.b64encode(key).decode()
    head = "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return f"{head}Sec-WebSocket-Accept: {accept}\r\n{chosen}\r\n".encode()


def message(payload: bytes, opcode: int = 2) -> bytes:
    """One unfragmented server frame (RFC 6455, section 5.2): binary unless said otherwise."""
    size = len(payload)
    if size < 126:
        return bytes([0x80 | opcode, size]) + payload
    if size < 1 << 16:
        return bytes([0x80 | opcode, 126]) + size.to_bytes(2, "big") + payload
    return bytes([0x80 | opcode, 127]) + size.to_bytes(8, "big") + payload


async def frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next client frame, unmasked: opcode and payload."""
    first, second = await reader.readexactly(2)
    size = second & 0x7F
    if size >= 126:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
    mask = await reader.readexactly(4)
    masked = await reader.readexactly(size)
    return first & 0x0F, bytes(byte ^ mask[i % 4] for i, byte in enumerate(masked))


@contextlib.asynccontextmanager
async def served(
    folder: Path, answer: Callable[[Asked, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[Wire]:
    """A wire until the block ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = certified(folder, context)

    connections: set[asyncio.Task[None] | None] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            while True:
                asked = await request(reader)
                wire.asked.append(asked)
                await answer(asked, reader, writer)
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            wire.closed.set()

    server = await asyncio.start_server(connection, "127.0.0.1", 0, ssl=context)
    wire = Wire(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", authority, answer)
    try:
        yield wire
    finally:
        server.close()
        for task in connections:
            if task is not None:
                task.cancel()
        await asyncio.sleep(0)


async def request(reader: asyncio.StreamReader) -> Asked:
    """The next request of a connection, whole."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def certified(folder: Path, context: ssl.SSLContext) -> Path:
    """Give the server a certificate for 127.0.0.1; the file to trust it by."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wire")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "wire.crt", folder / "wire.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    context.load_cert_chain(certificate, private)
    return certificate
