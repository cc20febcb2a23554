"""Layer 5 on the real API server, request by request: `policies/*/cases.yaml`, with layers 1 to 4 taken away."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import yaml

from breakglass.render import render
from lab import processes
from lab.api import Cluster
from tests.asking import Api
from tests.installed import inputs
from tests.policies import matrix

POLICIES = ("rolebinding", "debug-container")
CASES = [case for policy in POLICIES for case in matrix.cases(policy)]


@pytest.fixture(scope="module")
def prepared(api: Api, cluster: Cluster) -> Iterator[Api]:
    """The cases' objects, and a shadow of each policy that says which requests its scope took in."""
    shadows = []
    for name, text in render(inputs(cluster.debug_image)).items():
        shadows += matrix.shadow(next(yaml.safe_load_all(text))) if name.startswith("policy-") else []
    for item in shadows:
        matrix.put(api, item)
    for policy in POLICIES:
        matrix.prepare(api, matrix.read(policy))
    for policy in POLICIES:
        first = next(case for case in CASES if case.policy.endswith(policy) and case.expect == "allowed")
        processes.wait_until(f"the shadow of {policy}", partial(matrix.sees, api, first), 20)
    yield api
    for item in reversed(shadows):
        api.ask(None, "DELETE", matrix.path_of(item))
    for policy in POLICIES:
        matrix.remove(api, matrix.read(policy))


@pytest.mark.lab
@pytest.mark.parametrize("case", CASES, ids=[f"{case.policy.removeprefix('tower-breakglass-')}: {case.title}" for case in CASES])
def test_the_api_server_answers_as_the_case_says(prepared: Api, case: matrix.Case) -> None:
    answer = matrix.ask(prepared, case.who, case.request)

    assert "resulted in error" not in answer.message, answer
    if case.refused is not None:
        assert answer.refused == (case.policy, case.refused), answer
        return
    if case.expect == "invalid":
        assert (answer.status, answer.refused) == (422, None), answer
        return
    assert answer.status != 403, answer
    assert answer.ok or case.request["path"].endswith(("/exec", "/attach")), answer
    assert matrix.looked(answer, case.policy) == (case.expect == "allowed"), answer
