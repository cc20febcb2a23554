"""Layer 5 without a cluster: what is wrong with a policy before any API server has seen it."""

from __future__ import annotations

import re
import subprocess
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube.models import core_v1

from breakglass.core import workload
from breakglass.core.model import Tier
from breakglass.render import POLICIES, Inputs, RenderError, apply_order, load, render, source, wrap_native
from lab.binaries import KUBERNETES
from tests.installed import PORTAL, PREVIOUS_IMAGE, REPOSITORY
from tests.policies import matrix
from tests.policies.cel_guards import findings, tokens
from tests.policies.regenerate import EXAMPLE, GOLDENS, goldens

FLIGHT = {name: load(name, EXAMPLE) for name in POLICIES}


def expressions(name: str) -> list[tuple[str, frozenset[str]]]:
    """Every expression of a policy with the variables that it may use."""
    policy = FLIGHT[name]
    found = [(item["expression"], frozenset[str]()) for item in policy.conditions]
    declared: list[str] = []
    for item in policy.variables:
        found.append((item["expression"], frozenset(declared)))
        declared.append(item["name"])
    return found + [(item["expression"], frozenset(declared)) for item in policy.validations]


# --- form -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_has_a_scope_variables_and_validations_and_no_parameter(name: str) -> None:
    written = source(name)

    assert written["name"] == name
    assert set(written) == {"name", "scope", "variables", "validations"}
    assert set(written["scope"]) == {"matchConstraints", "matchConditions"}
    for item in written["validations"]:
        assert set(item) <= {"expression", "message", "tier"}
        assert item.get("tier", "flight") in {tier.value for tier in Tier}
    assert {item["reason"] for item in FLIGHT[name].validations} == {"Forbidden"}


@pytest.mark.parametrize("name", POLICIES)
def test_a_refusal_is_one_sentence_of_its_own(name: str) -> None:
    messages = [item["message"] for item in source(name)["validations"]]

    assert len(set(messages)) == len(messages)
    for message in messages:
        assert re.fullmatch(r"[a-z][^\n]{20,160}[^.\s]", message), message


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_can_break_somebody_elses_request_by_an_error(name: str) -> None:
    """One condition decides the scope and is made of operations that cannot fail: a false one beats an error anywhere."""
    (condition,) = FLIGHT[name].conditions

    assert findings(condition["expression"]) == []
    assert condition["expression"].startswith(f"request.userInfo.username == '{PORTAL}' || ")
    assert "variables" not in tokens(condition["expression"])
    assert not {"int", "substring"} & set(tokens(condition["expression"]))


@pytest.mark.parametrize("name", POLICIES)
def test_no_optional_field_is_read_without_a_guard(name: str) -> None:
    assert [(found, text) for text, declared in expressions(name) for found in findings(text, declared)] == []


@pytest.mark.parametrize(
    ("expression", "finding"),
    [
        ("object.metadata.labels['tower.hangar/session'] != ''", "unguarded field object.metadata"),
        ("has(object.metadata.labels) && 'k' in object.metadata.labels", "unguarded field object.metadata"),
        ("object.?spec.containers.size() == 1", "an optional value is used as it is, after object"),
        ("request.name == 'x'", "unguarded field request.name"),
        ("request.?options.?propagationPolicy == 'x' && request.?name == ''", ""),
        ("object.?spec.?ephemeralContainers.orValue([])[0].?name.orValue('') == ''", "unguarded index after )"),
        ("variables.other == ''", "variable other is not declared before"),
        ("object.?spec.?containers.orValue([]).all(c, c.name == 'x')", "unguarded field c.name"),
        ("object.?spec.?containers.orValue([]).all(c, has(c.securityContext.privileged))", "unguarded field c.securityContext"),
        ("int(object.?metadata.?labels[?'n'].orValue('')) > 1", "int() of something that was not matched before"),
        ("!object.?spec.?hostPID", "an optional value is used as it is, after object"),
    ],
)
def test_the_linter_finds_what_once_refused_every_pod_of_a_cluster(expression: str, finding: str) -> None:
    found = findings(expression)

    assert (found[0] if found else "") == finding


# --- completeness -----------------------------------------------------------------------------------------------------


def fields(model: Any) -> list[str]:
    return [field.name for field in msgspec.structs.fields(model)]


@pytest.mark.parametrize(
    ("model", "access"),
    [
        (core_v1.EphemeralContainer, r"(\bc|added\[\?0\])\.\??{}\b"),
        (core_v1.SecurityContext, r"\bc\.\?securityContext\.\?{}\b"),
        (core_v1.Capabilities, r"\.\?capabilities\.\?{}\b"),
        (core_v1.SeccompProfile, r"\.\?seccompProfile\.\?{}\b"),
        (core_v1.ResourceRequirements, r"\.\?resources\.\?{}\b"),
        (core_v1.VolumeMount, r"\bm\.\??{}\b"),
    ],
)
def test_no_field_of_a_debug_container_escapes_the_allow_list(model: Any, access: str) -> None:
    """CEL cannot say "and nothing else": a field that a new Kubernetes adds must be named before it is trusted."""
    judged = " ".join(item["expression"] for item in FLIGHT["debug-container"].validations + FLIGHT["debug-container"].variables)

    missing = [name for name in fields(model) if not re.search(access.format(name), judged)]

    assert missing == []


def test_the_allow_list_is_checked_against_the_version_the_lab_runs() -> None:
    assert version("lightkube-models").split(".")[:2] == KUBERNETES.split(".")[:2]


# --- cases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_every_sentence_of_a_policy_is_a_case_and_every_case_has_one_answer(name: str) -> None:
    written = matrix.read(name)
    said = {item["message"] for item in source(name)["validations"]}

    assert {item["refused"] for item in written["cases"] if "refused" in item} == said
    assert {item["expect"] for item in written["cases"] if "expect" in item} >= {"allowed", "untouched"}
    for item in written["cases"]:
        assert set(item) <= matrix.CASE_KEYS, item
        assert ("expect" in item) != ("refused" in item), item
        assert item.get("expect", "allowed") in {"allowed", "untouched", "invalid"}, item
        assert item["as"] in matrix.PEOPLE, item
    assert len({item["case"] for item in written["cases"]}) == len(written["cases"])
    assert all(set(base) <= matrix.BASE_KEYS for base in written["bases"].values())


def test_the_accepted_debug_container_is_what_tower_makes() -> None:
    made = workload.debug_container(
        name="debug-abcdefgh23-2",
        image=PREVIOUS_IMAGE,
        target_container=None,
        uid=1000,
        gid=1000,
        start_sha256="c" * 64,
        max_seconds=1860,
    )

    assert matrix.read("debug-container")["bases"]["debug"]["object"] == made


# --- rendering --------------------------------------------------------------------------------------------------------


def test_the_goldens_are_what_render_writes() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in GOLDENS.glob("*.yaml")} == goldens(), (
        "run: uv run python tests/policies/regenerate.py"
    )


def test_policies_come_before_the_rights_they_hold_in_check() -> None:
    order = [
        (item["kind"], item["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]) for item in apply_order(render(EXAMPLE))
    ]

    assert order == [
        ("ValidatingAdmissionPolicy", "-10"),
        ("ValidatingAdmissionPolicy", "-10"),
        ("ValidatingAdmissionPolicyBinding", "-9"),
        ("ValidatingAdmissionPolicyBinding", "-9"),
        ("Namespace", "-5"),
        ("ServiceAccount", "-5"),
        ("ClusterRole", "-5"),
        ("ClusterRole", "-5"),
        ("ClusterRole", "-5"),
        ("ClusterRoleBinding", "-5"),
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_fails_closed_and_no_binding_narrows_it(name: str) -> None:
    policy, binding = wrap_native(FLIGHT[name])

    assert policy["spec"]["failurePolicy"] == "Fail"
    assert "paramKind" not in policy["spec"]
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny", "Audit"]}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"portal": "tower"}, "the portal's name is not that of a service account"),
        ({"portal": "system:serviceaccount:tower:portal' || true || '"}, "the portal's name is not that of a service account"),
        ({"images": ()}, "one or two references by digest"),
        ({"images": ("registry.example.test/tower/debug:latest",)}, "one or two references by digest"),
        ({"images": (PREVIOUS_IMAGE, PREVIOUS_IMAGE, PREVIOUS_IMAGE)}, "one or two references by digest"),
        ({"images": (PREVIOUS_IMAGE + "'] || [''",)}, "one or two references by digest"),
        ({"protected_namespaces": frozenset({"a'] || ['"})}, "not a namespace's name"),
    ],
)
def test_a_value_that_would_change_a_policys_meaning_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    values = {"tier": Tier.FLIGHT, "portal": PORTAL, "images": (PREVIOUS_IMAGE,)} | wrong

    with pytest.raises(RenderError, match=sentence):
        Inputs(**values)


def test_a_tier_without_policies_is_refused_and_not_left_open() -> None:
    with pytest.raises(RenderError, match="no policies for Ground"):
        render(Inputs(tier=Tier.GROUND, portal=PORTAL, images=(PREVIOUS_IMAGE,)))


def test_the_package_carries_the_policies_of_the_repository_and_no_other() -> None:
    packaged = REPOSITORY / "src" / "breakglass" / "policies"

    assert {path.name for path in packaged.iterdir()} == {f"{name}.yaml" for name in POLICIES}
    assert {path.name for path in (REPOSITORY / "policies").iterdir() if path.is_dir()} == set(POLICIES)
    for name in POLICIES:
        assert (packaged / f"{name}.yaml").resolve() == (REPOSITORY / "policies" / name / "policy.yaml").resolve()
        assert {path.name for path in Path(REPOSITORY / "policies" / name).iterdir()} == {
            "README.md",
            "cases.yaml",
            "policy.yaml",
        }


def test_an_installed_wheel_carries_the_policies_themselves(tmp_path: Path) -> None:
    """The package names them by links into `policies/`; the wheel must hold the text."""
    subprocess.run(["uv", "build", "--wheel", "--quiet", "--out-dir", tmp_path, REPOSITORY], check=True)
    (wheel,) = tmp_path.glob("*.whl")

    with zipfile.ZipFile(wheel) as packed:
        for name in POLICIES:
            written = (REPOSITORY / "policies" / name / "policy.yaml").read_bytes()
            assert packed.read(f"breakglass/policies/{name}.yaml") == written
