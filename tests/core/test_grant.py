"""Layer 4's one object: what a grant may never say, name or carry, whatever the session is."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakglass.core import grant
from breakglass.core import session as machine
from breakglass.core.model import Mode, Person, Request, Session, Sid, State
from tests.core.builders import ANA, APP, APPROVE, BEN, BROKEN, EVERY, GROUND, INSIDE, NOW, REQUEST, after
from tests.policies.matrix import read

PORTAL = "system:serviceaccount:tower:portal"
CASE = "sha256:" + "b" * 64


def made(session: Session = EVERY[State.OPENING], **changes: object) -> dict[str, object]:
    return grant.manifest(session, **({"portal": PORTAL, "ttl_minutes": 45, "case_digest": CASE} | changes))  # type: ignore[arg-type]


def said(session: Session) -> dict[str, str]:
    found: dict[str, str] = made(session)["metadata"]["annotations"]  # type: ignore[index]
    return found


def test_a_grant_is_exactly_the_object_that_the_policy_lets_through() -> None:
    """The accepted case of `policies/rolebinding`, but for the request's digest."""
    request = replace(REQUEST, sid=Sid("abcdefgh23"), namespace="cases-app")
    approve = replace(APPROVE, request_digest=request.digest)
    accepted = read("rolebinding")["bases"]["grant"]["object"]
    accepted["metadata"]["namespace"] = "cases-app"
    accepted["metadata"]["annotations"]["tower.hangar/request"] = request.digest

    assert made(after(machine.new(request, NOW), approve)) == accepted


@given(minutes=st.integers(10, 60), access=st.booleans(), mode=st.sampled_from(Mode), ttl=st.integers(15, 75))
def test_a_grant_binds_one_debug_role_to_one_portal_whatever_is_asked(minutes: int, access: bool, mode: Mode, ttl: int) -> None:
    request = replace(REQUEST, minutes=minutes, process_access=access, mode=mode)

    found = made(machine.new(request, NOW), ttl_minutes=ttl)

    assert found["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"debug-{mode.value}"}
    assert found["subjects"] == [{"kind": "ServiceAccount", "name": "portal", "namespace": "tower"}]
    assert found["metadata"]["labels"] == {"tower.hangar/session": request.sid, "cleanup.kyverno.io/ttl": f"{ttl}m"}  # type: ignore[index]
    assert set(found) == {"apiVersion", "kind", "metadata", "roleRef", "subjects"}
    assert set(found["metadata"]) == {"name", "namespace", "labels", "annotations"}  # type: ignore[call-overload]


@given(reason=st.text(min_size=1, max_size=200))
def test_the_reason_and_the_aliases_never_reach_the_cluster(reason: str) -> None:
    secret = "tower" + reason.encode().hex()
    request = replace(REQUEST, reason=secret, requester=Person(ref=ANA.ref, aliases=frozenset({"alias-" + secret})))

    text = json.dumps(made(machine.new(request, NOW)))

    assert secret not in text
    for value in said(machine.new(request, NOW)).values():
        assert re.fullmatch(r"true|false|\d\d|sha256:[0-9a-f]{64}|[a-z0-9.\-]+:[a-z0-9.\-_]+/[a-z0-9.\-_]+", value), value


def test_a_grant_says_on_whose_word_it_rests() -> None:
    approved, broken, ground = EVERY[State.APPROVED], BROKEN, GROUND

    assert said(approved)["tower.hangar/approver"] == BEN.ref
    assert "tower.hangar/glass-broken" not in said(approved)
    assert said(broken)["tower.hangar/glass-broken"] == "true"
    assert "tower.hangar/approver" not in said(broken)
    assert not {"tower.hangar/approver", "tower.hangar/glass-broken"} & set(said(ground))


def test_a_grant_names_the_very_request_and_case_file() -> None:
    found = said(EVERY[State.OPENING])

    assert found["tower.hangar/request"] == REQUEST.digest
    assert found["tower.hangar/case"] == CASE
    assert found["tower.hangar/entity"] == APP
    assert found["tower.hangar/requester"] == ANA.ref
    assert said(machine.new(INSIDE, NOW))["tower.hangar/process-access"] == "true"
    assert found["tower.hangar/process-access"] == "false"


@pytest.mark.parametrize("ttl", [-1, 0, 14, 76, 600])
def test_a_grant_that_the_cluster_would_keep_too_long_is_not_made(ttl: int) -> None:
    with pytest.raises(ValueError, match="a grant lives 15 to 75 minutes"):
        made(ttl_minutes=ttl)


@pytest.mark.parametrize("digest", ["", "b" * 64, "sha256:" + "B" * 64, CASE + "\n", "sha256:" + "b" * 63])
def test_a_grant_without_a_case_file_is_not_made(digest: str) -> None:
    with pytest.raises(ValueError, match="the case file's digest"):
        made(case_digest=digest)


@pytest.mark.parametrize(
    "portal", ["", "portal", "system:serviceaccount:tower", "system:serviceaccount:tower:portal:x", "ana", PORTAL + "\n"]
)
def test_a_grant_to_somebody_who_is_no_service_account_is_not_made(portal: str) -> None:
    with pytest.raises(ValueError, match="the portal's name is not that of a service account"):
        made(portal=portal)


@pytest.mark.parametrize(
    "metadata",
    [{"labels": {}}, {"labels": {"tower.hangar/session": "zzzzzzzzzz"}}, {"annotations": None}, {"finalizers": ["x/y"]}],
)
def test_a_grant_whose_labels_were_damaged_is_still_found(metadata: dict[str, object]) -> None:
    assert grant.belongs({"metadata": {"name": f"tower-breakglass-{REQUEST.sid}"} | metadata}) == REQUEST.sid


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"metadata": None},
        {"metadata": {}},
        {"metadata": {"name": None}},
        {"metadata": {"name": "tower-breakglass-"}},
        {"metadata": {"name": "tower-breakglass-abcdefgh01"}},
        {"metadata": {"name": "tower-breakglass-abcdefghijk"}},
        {"metadata": {"name": "x-tower-breakglass-abcdefghij"}},
        {"metadata": {"name": "tower-breakglass-abcdefghij\n"}},
        {"metadata": {"name": "readers", "labels": {"tower.hangar/session": "abcdefghij"}}},
    ],
)
def test_somebody_elses_binding_is_never_taken_for_a_grant(manifest: dict[str, object]) -> None:
    assert grant.belongs(manifest) is None


@given(st.from_regex(r"[a-z2-7]{10}", fullmatch=True))
def test_every_grant_is_recognised_by_its_own_name(sid: str) -> None:
    request: Request = replace(REQUEST, sid=Sid(sid))

    assert grant.belongs(made(machine.new(request, NOW))) == sid == grant.name(Sid(sid)).removeprefix(grant.PREFIX)
