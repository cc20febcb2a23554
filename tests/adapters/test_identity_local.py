"""Whoever forges, keeps or bends a local token gets a sentence, and a good one is only as good as the catalog says now."""

from __future__ import annotations

import base64
import json
import stat
from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breakglass.adapters.identity_local import AUDIENCE, ISSUER, PROOF, LocalIdentity, create_key, mint, read_key
from breakglass.core.codes import Code
from breakglass.core.model import Actor, Denied, EntityRef
from breakglass.ports import PortError, Trouble
from tests.simulators.catalog import demo_catalog
from tests.simulators.faults import Fault
from tests.simulators.people import ANA, NOW

KEY = Ed25519PrivateKey.generate()
NOT_OURS = "This token is not one of Tower's local identity."


def identity(at=NOW, catalog=None) -> LocalIdentity:
    return LocalIdentity(KEY, catalog or demo_catalog(), lambda: at)


def signed(key=KEY, algorithm="EdDSA", headers=None, without=(), **claims) -> str:
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": ANA.ref, "iat": int(NOW.timestamp()), "exp": int(NOW.timestamp()) + 600}
    payload = {name: value for name, value in (usual | claims).items() if name not in without}
    return jwt.encode(payload, key, algorithm=algorithm, headers=headers)


def raw(header: bytes, payload: bytes, signature: bytes = b"x" * 64) -> str:
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (header, payload, signature))


async def test_a_token_says_who_its_holder_is_and_that_it_is_not_for_production():
    actor = await identity().actor(identity().mint(ANA.ref, 30))
    assert actor == Actor(person=ANA, proof=PROOF)
    assert PROOF == "asserted by Tower's local identity (not for production)"


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        ("", "This is no token."),
        ("x" * 4097, "This is no token."),
        ("a.b.c", NOT_OURS),
        (signed(Ed25519PrivateKey.generate()), NOT_OURS),
        (signed(key="", algorithm="none"), NOT_OURS),
        (signed()[:-4] + "AAAA", NOT_OURS),
        (signed(iss="somebody"), NOT_OURS),
        (signed(aud="another-app"), NOT_OURS),
        (signed(aud=[AUDIENCE, "another-app"]), NOT_OURS),
        (signed(sub=12), NOT_OURS),
        *((signed(without=(name,)), NOT_OURS) for name in ("iss", "aud", "sub", "iat", "exp")),
        (signed(exp="tomorrow"), "This token is not valid now."),
        (signed(exp=1e300), "This token is not valid now."),
        (signed(iat=True), "This token is not valid now."),
        (signed(exp=int(NOW.timestamp())), "This token is not valid now."),
        (signed(iat=int(NOW.timestamp()) + 60), "This token is not valid now."),
        (signed(sub="ana"), "This token names no person."),
        (signed(sub="user:default/ANA"), "This token names no person."),
        (signed(sub="group:default/tower-admins"), "This token names no person."),
        (signed(sub="user:default/ana\nuser:default/carla"), "This token names no person."),
        (signed(sub="user:default/nobody"), "The catalog does not know user:default/nobody."),
        (raw(b'{"alg":"EdDSA","x":' + b"[" * 2800, b"{}"), NOT_OURS),
        (raw(b'{"alg":"EdDSA","crit":["x"],"x":1}', b"{}"), NOT_OURS),
    ],
)
async def test_a_forged_bent_or_foreign_token_is_nobody(token, sentence):
    denied = await identity().actor(token)
    assert isinstance(denied, Denied)
    assert (denied.code, denied.sentence) == (Code.NOT_SIGNED_IN, sentence)


async def test_the_public_key_is_no_secret_to_sign_with():
    public = KEY.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    forged = jwt.encode(
        {"iss": ISSUER, "aud": AUDIENCE, "sub": "user:default/carla", "iat": int(NOW.timestamp()), "exp": 2**40}, public, "HS256"
    )
    denied = await identity().actor(forged)
    assert (denied.code, denied.sentence) == (Code.NOT_SIGNED_IN, NOT_OURS)


async def test_a_token_ends_with_its_minutes():
    token = identity().mint(ANA.ref, 30)
    assert isinstance(await identity(NOW + timedelta(minutes=29, seconds=59)).actor(token), Actor)
    late = await identity(NOW + timedelta(minutes=30)).actor(token)
    assert late.sentence == "This token is not valid now."


@pytest.mark.parametrize("minutes", [0, -1, 721])
def test_a_token_without_an_end_in_reach_is_not_minted(minutes):
    with pytest.raises(PortError, match=r"^a local token lives 1 to 720 minutes; ask for that$"):
        mint(KEY, EntityRef(ANA.ref), minutes, NOW)


async def test_a_person_removed_from_the_catalog_is_nobody_at_once():
    catalog = demo_catalog()
    token = identity().mint(ANA.ref, 30)
    del catalog.people_by_ref[ANA.ref]
    assert (await identity(catalog=catalog).actor(token)).sentence == "The catalog does not know user:default/ana."


async def test_a_catalog_that_does_not_answer_is_not_a_bad_credential():
    catalog = demo_catalog()
    catalog.faults.at("person", Fault.FAIL)
    with pytest.raises(PortError, match=r"^who user:default/ana is cannot be looked up: person failed, as planned$") as refused:
        await identity(catalog=catalog).actor(identity().mint(ANA.ref, 30))
    assert refused.value.trouble is Trouble.TRANSIENT


@given(st.text(max_size=200) | st.builds(raw, *[st.binary(max_size=60)] * 3))
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_no_credential_makes_it_crash(credential):
    assert isinstance(identity()._subject(credential), Denied)


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "sub", "iat", "exp", "nbf"]), st.none() | st.integers() | st.text() | st.lists(st.text())
    )
)
@settings(max_examples=200, deadline=None)
def test_no_claims_make_it_crash_even_signed_by_our_key(claims):
    token = jwt.api_jws.encode(json.dumps(claims).encode(), KEY, algorithm="EdDSA")
    assert isinstance(identity()._subject(token), Denied)


def test_a_new_key_is_its_owners_only_and_is_never_replaced(tmp_path):
    path = tmp_path / "keys" / "identity.pem"
    create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert isinstance(read_key(path), Ed25519PrivateKey)
    before = path.read_bytes()
    with pytest.raises(PortError, match=r"is there already; remove it to make a new one$"):
        create_key(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (None, 0, "cannot be read: No such file or directory; Tower makes one: breakglass serve"),
        (b"not a key", 0o600, "is no Ed25519 key in PEM; remove it and start Tower again"),
        (b"\xff\x00", 0o600, "is no Ed25519 key in PEM; remove it and start Tower again"),
    ],
)
def test_a_key_file_that_is_no_key_says_so(tmp_path, content, mode, words):
    path = tmp_path / "identity.pem"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(PortError) as refused:
        read_key(path)
    assert str(refused.value) == f"the identity key {path} {words}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path, mode):
    path = tmp_path / "identity.pem"
    create_key(path)
    path.chmod(mode)
    with pytest.raises(PortError) as refused:
        read_key(path)
    assert str(refused.value) == f"others can read the identity key {path}; run: chmod 600 {path}"
