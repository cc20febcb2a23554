"""A git host over HTTPS in this process: the library's server, its own certificate; it can ask for a token or drip."""

from __future__ import annotations

import base64
import ipaddress
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from dulwich import porcelain
from dulwich.repo import Repo
from dulwich.server import DictBackend
from dulwich.web import make_wsgi_chain

WHO = b"ana <ana@example.test>"


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
        """Say nothing."""


@dataclass(slots=True)
class GitHost:
    """Repositories by path; `token` when one is asked for; `answer` instead of git, for a host that is broken."""

    folder: Path
    repos: dict[str, Repo] = field(default_factory=dict)
    token: str = ""
    answer: tuple[str, list[tuple[str, str]]] | None = None
    seen: list[str] = field(default_factory=list)
    netloc: str = ""
    drip: float = 0.0

    @property
    def ca(self) -> Path:
        """The certificate to trust."""
        return self.folder / "host.crt"

    def url(self, name: str) -> str:
        """Where a repository is."""
        return f"https://{self.netloc}/{name}"

    def commit(self, name: str, text: bytes, file: str = "cicd.yaml") -> str:
        """Commit this text in a repository, made when it is new; returns the commit."""
        folder = self.folder / name
        if f"/{name}" not in self.repos:
            porcelain.init(str(folder)).close()
            porcelain.symbolic_ref(str(folder), b"refs/heads/main", force=True)
            self.repos[f"/{name}"] = Repo(str(folder))
        (folder / file).write_bytes(text)
        porcelain.add(str(folder), [str(folder / file)])
        return porcelain.commit(str(folder), message=b"delivery", author=WHO, committer=WHO).decode()

    def application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """One request: its Authorization is noted, then git answers, or whatever a test planned."""
        authorization = environ.get("HTTP_AUTHORIZATION", "")
        self.seen.append(authorization)
        if self.answer is not None:
            start_response(*self.answer)
            return [b"not git"]
        if self.token and authorization != "Basic " + base64.b64encode(f"tower:{self.token}".encode()).decode():
            start_response("401 Unauthorized", [("WWW-Authenticate", "Basic")])
            return [b""]
        if not any(environ["PATH_INFO"].startswith(path + "/") for path in self.repos):
            start_response("404 Not Found", [])
            return [b""]
        return make_wsgi_chain(DictBackend(dict[str, Any](self.repos)))(environ, self._dripping(start_response))

    def _dripping(self, start_response: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any) -> Callable[[bytes], None]:
            write = start_response(*args)

            def drip(data: bytes) -> None:
                for at in range(len(data)):
                    time.sleep(self.drip)  # slow on purpose, in this host's thread
                    write(data[at : at + 1])

            return drip if self.drip else write

        return start


@contextmanager
def git_host(folder: Path) -> Iterator[GitHost]:
    """A host on a port of its own, until the test is over."""
    host = GitHost(folder=folder)
    _certificate(host.ca, folder / "host.key")
    server = make_server("127.0.0.1", 0, host.application, server_class=WSGIServer, handler_class=_Quiet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(host.ca, folder / "host.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    host.netloc = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for repo in host.repos.values():
            repo.close()


def _certificate(certificate: Path, key_file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "git host")])
    now = datetime.now(tz=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_file.write_bytes(pem)
