"""Tower's own word on who somebody is, for a trial on one machine: a signed token for a person the catalog knows.

Outside the layers. NOT FOR PRODUCTION: whoever reads the key file is anybody, and every proof it gives says so. Must never: take
another algorithm than its one, a token without an end, or a person the catalog does not know now.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from breakglass.core.codes import Code
from breakglass.core.model import Actor, Denied, EntityRef, entity_ref
from breakglass.ports import Catalog, PortError, Trouble

PROOF: Final = "asserted by Tower's local identity (not for production)"
ISSUER: Final = "tower-local-identity"
AUDIENCE: Final = "tower-breakglass"
ALGORITHM: Final = "EdDSA"
"""The only algorithm (RFC 8037); a token's own header has no say in it."""
CREDENTIAL_MAX: Final = 4096
"""Bytes of a token that are looked at."""
MINUTES_MAX: Final = 12 * 60


def create_key(path: Path) -> None:
    """A new key, readable by its owner only. `conflict` when the file is there: a key is never replaced behind people's backs."""
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise PortError(Trouble.CONFLICT, f"the identity key {path} is there already; remove it to make a new one") from error
    except OSError as error:
        raise PortError(Trouble.FATAL, f"the identity key {path} cannot be made: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)


def read_key(path: Path) -> Ed25519PrivateKey:
    """The key; `fatal` when it cannot be read, others can read it too, or it is another kind of key."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            pem = file.read(CREDENTIAL_MAX)
    except OSError as error:
        words = "Tower makes one: breakglass serve" if isinstance(error, FileNotFoundError) else "look at its rights"
        raise PortError(Trouble.FATAL, f"the identity key {path} cannot be read: {error.strerror}; {words}") from error
    if mode & 0o077:
        raise PortError(Trouble.FATAL, f"others can read the identity key {path}; run: chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise PortError(Trouble.FATAL, f"the identity key {path} is no Ed25519 key in PEM; remove it and start Tower again")
    return key


def mint(key: Ed25519PrivateKey, person: EntityRef, minutes: int, now: datetime) -> str:
    """A token that says its holder is this person, for `minutes` (1 to 720) from now. `invalid` outside that."""
    if not 1 <= minutes <= MINUTES_MAX:
        raise PortError(Trouble.INVALID, f"a local token lives 1 to {MINUTES_MAX} minutes; ask for that")
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": person, "iat": now, "exp": now + timedelta(minutes=minutes)}
    return jwt.encode(claims, key, algorithm=ALGORITHM)


class LocalIdentity:
    """Identity over one key and the catalog."""

    def __init__(
        self, key: Ed25519PrivateKey, catalog: Catalog, now: Callable[[], datetime] = lambda: datetime.now(tz=UTC)
    ) -> None:
        self._key = key
        self._public = key.public_key()
        self._catalog = catalog
        self._now = now

    def mint(self, person: EntityRef, minutes: int) -> str:
        """A token for this person; whether the catalog knows them is asked when it is used."""
        return mint(self._key, person, minutes, self._now())

    async def actor(self, credential: str) -> Actor | Denied:
        """Who holds this token.

        1. Our key signed it, with our algorithm, for us, and it has a beginning and an end. 2. Now lies between the two.
        3. Its subject is a person the catalog knows now, whose aliases come from there and not from the token. Whether they
        are locked, and what they may do, is layers 2 and 3.
        """
        subject = self._subject(credential)  # (1) (2)
        if isinstance(subject, Denied):
            return subject
        try:
            facts = await self._catalog.person(subject)  # (3)
        except PortError as error:
            raise PortError(Trouble.TRANSIENT, f"who {subject} is cannot be looked up: {error}") from error
        if facts is None:
            return _no(f"The catalog does not know {subject}.", "Ask the catalog's owners to add you.")
        return Actor(person=facts.person, proof=PROOF)

    def _subject(self, credential: str) -> EntityRef | Denied:
        if not credential or len(credential) > CREDENTIAL_MAX:
            return _no("This is no token.")
        try:
            claims = jwt.decode(
                credential,
                self._public,
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                issuer=ISSUER,
                options={
                    "require": ["iss", "aud", "sub", "iat", "exp"],
                    "strict_aud": True,
                    "verify_exp": False,  # below, by the clock that was given
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, RecursionError):  # the last from a header nested out of malice
            return _no("This token is not one of Tower's local identity.")
        begin, end, subject = claims["iat"], claims["exp"], claims["sub"]
        now = self._now().timestamp()
        if type(begin) is not int or type(end) is not int or not begin - 5 <= now < end:
            return _no("This token is not valid now.")
        ref = entity_ref(subject, kind="user")
        if ref is None or ref != subject or not ref.startswith("user:"):
            return _no("This token names no person.")
        return ref


def _no(sentence: str, remedy: str = "Get a new one: breakglass dev token NAME") -> Denied:
    return Denied(code=Code.NOT_SIGNED_IN, sentence=sentence, remedy=remedy)
