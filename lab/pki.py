"""Makes the cluster's certificate authority, certificates and kubeconfigs.

Lab, outside the layers. It must never write a key outside the state directory or readable by others.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: A lab cluster is thrown away long before.
LIFETIME: Final = dt.timedelta(days=30)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def new_key() -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """Return a P-256 key and its PEM text (quick to make, and the API server signs tokens with it as ES256)."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    return key, key.private_bytes(encoding, form, serialization.NoEncryption())


def subject_of(user: str, groups: Sequence[str]) -> x509.Name:
    """Return the subject Kubernetes reads as user (CN) and groups (O)."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


class Authority:
    """The cluster's certificate authority, in `pki/ca.crt` and `pki/ca.key`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority."""
        return self.folder / "ca.crt"

    def create(self) -> None:
        """Make the authority and the keys that sign service account tokens; needs an empty folder."""
        key, pem = new_key()
        write_private(self.folder / "ca.key", pem)
        name = subject_of("tower-lab-ca", ())
        builder = self._builder(name, name, key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._write(self.ca_file, builder.sign(key, hashes.SHA256()))
        token_key, token_pem = new_key()
        write_private(self.folder / "sa.key", token_pem)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        (self.folder / "sa.pub").write_bytes(token_key.public_key().public_bytes(serialization.Encoding.PEM, form))

    def issue(
        self, stem: str, user: str, groups: Sequence[str] = (), addresses: Sequence[str] = (), names: Sequence[str] = ()
    ) -> None:
        """Write `<stem>.crt` and `<stem>.key`: a client certificate, and a serving one where addresses or names are given."""
        signer = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        authority = x509.load_pem_x509_certificate(self.ca_file.read_bytes())
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise TypeError("ca.key is not an elliptic curve key")
        key, pem = new_key()
        write_private(self.folder / f"{stem}.key", pem)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = self._builder(subject_of(user, groups), authority.subject, key.public_key())
        if addresses or names:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            ips = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            builder = builder.add_extension(
                x509.SubjectAlternativeName([*ips, *(x509.DNSName(name) for name in names)]), critical=False
            )
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        self._write(self.folder / f"{stem}.crt", builder.sign(signer, hashes.SHA256()))

    def kubeconfig(self, path: Path, stem: str, server: str, cluster: str) -> Path:
        """Write a kubeconfig that carries the certificate `<stem>` inside itself."""
        user = {
            "client-certificate-data": encoded(self.folder / f"{stem}.crt"),
            "client-key-data": encoded(self.folder / f"{stem}.key"),
        }
        write_private(path, yaml.safe_dump(kubeconfig(server, encoded(self.ca_file), cluster, user)).encode())
        return path

    @staticmethod
    def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        # five minutes back: the programs' clocks are this machine's, but a suspended one may step
        return builder.not_valid_before(now - dt.timedelta(minutes=5)).not_valid_after(now + LIFETIME)

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def encoded(path: Path) -> str:
    """Return a file's content as base64 text."""
    return base64.b64encode(path.read_bytes()).decode()


def kubeconfig(server: str, ca_data: str, cluster: str, user: dict[str, str]) -> dict[str, Any]:
    """Return a kubeconfig with one cluster, one user and one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": ca_data}}],
        "users": [{"name": "lab", "user": user}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": "lab"}}],
    }
