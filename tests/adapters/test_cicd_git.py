"""What a delivery file, its repository and its host can do wrong, over a local repository and over real HTTPS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from dulwich import porcelain

from breakglass.adapters.cicd_git import FILE_LIMIT, CicdGit, Host
from breakglass.core.facts import AppFacts
from breakglass.core.model import AfterProcessAccess, EntityRef, Tier
from breakglass.ports import PortError, Trouble
from tests.simulators.git_host import GitHost, git_host
from tests.simulators.people import CHECKOUT, NOW

GOOD = b"""
apiVersion: tower.hangar/v1
kind: Delivery
app: component:default/checkout
environments:
  production: {cluster: demo, namespace: checkout, tier: flight, afterProcessAccess: keep}
  staging: {cluster: demo, namespace: checkout-staging, tier: ground}
"""


def app(cicd: str | None = None) -> AppFacts:
    return AppFacts(app=CHECKOUT, owners=frozenset({EntityRef("group:default/checkout-team")}), cicd=cicd)


@pytest.fixture
def host(tmp_path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with git_host(tmp_path / "host") as running:
        yield running


class Clock:
    def __init__(self):
        self.at = NOW

    def __call__(self):
        return self.at


def over(host: GitHost, tmp_path: Path, **changes) -> CicdGit:
    given = {"username": "tower", "ca_file": host.ca} | changes.pop("changed", {})
    return CicdGit(cache=tmp_path / "cache", hosts={host.netloc: Host(**given)}, now=Clock(), **changes)


async def refusal(deployments: CicdGit, facts: AppFacts) -> tuple[Trouble, str]:
    with pytest.raises(PortError) as refused:
        await deployments.environments(facts)
    return refused.value.trouble, str(refused.value)


# --- over HTTPS -------------------------------------------------------------------------------------------------------


async def test_the_head_of_the_default_branch_is_read_with_its_commit_and_again_when_it_moves(host, tmp_path):
    commit = host.commit("pay.git", GOOD)
    deployments = over(host, tmp_path)
    production, staging = await deployments.environments(app(host.url("pay.git")))
    assert (production.name, production.cluster, production.namespace, production.tier) == (
        "production",
        "demo",
        "checkout",
        Tier.FLIGHT,
    )
    assert (production.commit, production.read_at, production.stale) == (commit, NOW, False)
    assert production.after_process_access is AfterProcessAccess.KEEP
    assert (staging.tier, staging.after_process_access) == (Tier.GROUND, AfterProcessAccess.RECYCLE)
    moved = host.commit("pay.git", GOOD.replace(b"tier: ground", b"tier: flight"))
    _, staging = await deployments.environments(app(host.url("pay.git")))
    assert (staging.tier, staging.commit) == (Tier.FLIGHT, moved)


async def test_another_branch_has_no_say(host, tmp_path):
    commit = host.commit("pay.git", GOOD)
    host.repos["/pay.git"].refs[b"refs/heads/evil"] = commit.encode()
    host.repos["/pay.git"].refs.set_symbolic_ref(b"HEAD", b"refs/heads/evil")
    host.commit("pay.git", GOOD.replace(b"tier: flight", b"tier: ground"))
    host.repos["/pay.git"].refs.set_symbolic_ref(b"HEAD", b"refs/heads/main")
    found = await over(host, tmp_path).environments(app(host.url("pay.git")))
    assert (found[0].commit, found[0].tier) == (commit, Tier.FLIGHT)


async def test_when_git_is_down_a_copy_of_a_day_is_used_and_marked_and_an_older_one_is_not(host, tmp_path):
    commit = host.commit("pay.git", GOOD)
    deployments = over(host, tmp_path)
    await deployments.environments(app(host.url("pay.git")))
    host.answer = ("503 Service Unavailable", [])
    deployments.now.at = NOW + timedelta(hours=24)
    found = await deployments.environments(app(host.url("pay.git")))
    assert [(one.stale, one.read_at, one.commit) for one in found] == [(True, NOW, commit)] * 2
    deployments.now.at = NOW + timedelta(hours=24, seconds=1)
    assert await refusal(deployments, app(host.url("pay.git"))) == (
        Trouble.TRANSIENT,
        f"{host.url('pay.git')} cannot be read now (GitProtocolError); look at the git host",
    )


async def test_a_host_that_accepts_and_never_answers_is_given_up(tmp_path):
    silent = socket.create_server(("127.0.0.1", 0))  # accepts by its backlog and never says a word
    netloc = f"127.0.0.1:{silent.getsockname()[1]}"
    deployments = CicdGit(cache=tmp_path / "cache", hosts={netloc: Host()}, now=Clock(), seconds=0.2)
    trouble, words = await refusal(deployments, app(f"https://{netloc}/pay.git"))
    assert trouble is Trouble.TRANSIENT
    assert words == f"https://{netloc}/pay.git cannot be read now (GitProtocolError); look at the git host"
    silent.close()


async def test_a_host_that_drips_bytes_is_cut_off_and_the_copy_used(host, tmp_path):
    host.commit("pay.git", GOOD)
    await over(host, tmp_path).environments(app(host.url("pay.git")))
    host.drip = 0.1
    found = await over(host, tmp_path, seconds=0.5).environments(app(host.url("pay.git")))
    assert found[0].stale is True


async def test_a_repository_that_was_taken_away_is_a_definite_no_and_no_old_copy_is_used(host, tmp_path):
    host.commit("pay.git", GOOD)
    deployments = over(host, tmp_path)
    await deployments.environments(app(host.url("pay.git")))
    host.repos.pop("/pay.git").close()
    assert await refusal(deployments, app(host.url("pay.git"))) == (
        Trouble.NOT_FOUND,
        f"{host.url('pay.git')} is no git repository Tower can see; look at its address and rights",
    )


async def test_the_token_is_read_from_its_file_at_each_fetch_and_never_said(host, tmp_path):
    host.commit("pay.git", GOOD)
    host.token = "correct horse"
    (tmp_path / "token").write_text("wrong\n")
    deployments = over(host, tmp_path, changed={"token_file": tmp_path / "token"})
    trouble, words = await refusal(deployments, app(host.url("pay.git")))
    assert (trouble, "wrong" in words) == (Trouble.FORBIDDEN, False)
    (tmp_path / "token").write_text("correct horse\n")
    assert len(await deployments.environments(app(host.url("pay.git")))) == 2


async def test_a_redirect_is_not_followed_and_takes_no_credential_along(host, tmp_path):
    (tmp_path / "thief").mkdir()
    (tmp_path / "token").write_text("correct horse")
    with git_host(tmp_path / "thief") as thief:
        thief.commit("pay.git", GOOD)
        host.answer = ("302 Found", [("Location", thief.url("pay.git/info/refs?service=git-upload-pack"))])
        deployments = over(host, tmp_path, changed={"token_file": tmp_path / "token"})
        trouble, _ = await refusal(deployments, app(host.url("pay.git")))
        assert (trouble, thief.seen) == (Trouble.TRANSIENT, [])


async def test_a_host_with_a_certificate_nobody_vouches_for_is_refused(host, tmp_path):
    host.commit("pay.git", GOOD)
    deployments = over(host, tmp_path, changed={"ca_file": None})
    assert (await refusal(deployments, app(host.url("pay.git"))))[0] is Trouble.TRANSIENT
    assert host.seen == []


@pytest.mark.parametrize("url", ["https://evil.example.test/pay.git", "https://127.0.0.1/pay.git", "https://localhost:1/pay.git"])
async def test_a_host_the_site_did_not_name_is_never_spoken_to(host, tmp_path, url):
    netloc = url.split("/")[2]
    words = "is not a git host of this site; an admin adds it under deployments.hosts in site.yaml"
    assert await refusal(over(host, tmp_path), app(url)) == (Trouble.INVALID, f"{netloc} {words}")


@pytest.mark.parametrize("tail", ["@{netloc}/pay.git", "{netloc}/pay.git?x=1", "{netloc}/pay.git#main", "{netloc}/\x1bpay.git"])
async def test_a_url_with_more_than_host_and_path_is_refused(host, tmp_path, tail):
    url = "https://" + tail.replace("{netloc}", host.netloc)
    words = "the URL of a delivery file is https://host/path, without user, ? or #"
    assert await refusal(over(host, tmp_path), app(url)) == (Trouble.INVALID, words)


async def test_garbage_instead_of_git_is_git_being_down(host, tmp_path):
    host.answer = ("200 OK", [("Content-Type", "application/x-git-upload-pack-advertisement")])
    assert (await refusal(over(host, tmp_path), app(host.url("pay.git"))))[0] is Trouble.TRANSIENT


async def test_four_askers_at_once_get_one_answer(host, tmp_path):
    host.commit("pay.git", GOOD)
    deployments = over(host, tmp_path)
    found = await asyncio.gather(*(deployments.environments(app(host.url("pay.git"))) for _ in range(4)))
    assert all(one == found[0] for one in found)
    await deployments.close()


# --- local ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path) -> Iterator[GitHost]:
    """A folder to commit in; nothing listens."""
    made = GitHost(folder=tmp_path)
    yield made
    for repo in made.repos.values():
        repo.close()


def trial(tmp_path: Path, **changes) -> CicdGit:
    return CicdGit(
        **({"cache": tmp_path / "cache", "dev": True, "local": {CHECKOUT: tmp_path / "pay"}, "now": Clock()} | changes)
    )


async def test_a_local_repository_is_read_at_its_head_and_not_from_its_files(repository, tmp_path):
    commit = repository.commit("pay", GOOD)
    (tmp_path / "pay" / "cicd.yaml").write_text("edited, not committed")
    found = await trial(tmp_path).environments(app())
    assert [(one.name, one.commit) for one in found] == [("production", commit), ("staging", commit)]


@pytest.mark.parametrize("cicd", [None, "/tmp", "file:///etc", "http://git.example.test/pay.git", "ssh://git@x/y", "git@x:y"])
async def test_outside_a_trial_no_local_path_and_no_other_protocol_is_read(tmp_path, cicd):
    local = {CHECKOUT: tmp_path} if cicd is None else {}
    words = f"the delivery file of {CHECKOUT}: a local repository is for profile try; give its https URL"
    assert await refusal(trial(tmp_path, dev=False, local=local), app(cicd)) == (Trouble.INVALID, words)


async def test_an_app_without_a_delivery_file_is_told_where_to_name_one(tmp_path):
    words = f"where {CHECKOUT} is deployed is not known; give its catalog entity the annotation tower.hangar/cicd"
    assert await refusal(trial(tmp_path, local={}), app()) == (Trouble.INVALID, words)


async def test_a_folder_that_is_no_repository_is_not_found(tmp_path):
    (tmp_path / "pay").mkdir()
    words = f"{tmp_path / 'pay'} is no git repository Tower can see; look at its address and rights"
    assert await refusal(trial(tmp_path), app()) == (Trouble.NOT_FOUND, words)


async def test_a_repository_without_a_commit_or_without_the_file_says_so(repository, tmp_path):
    porcelain.init(str(tmp_path / "pay")).close()
    words = f"{tmp_path / 'pay'} has no commit on its default branch; make one"
    assert await refusal(trial(tmp_path), app()) == (Trouble.INVALID, words)
    repository.folder = tmp_path / "two"
    repository.folder.mkdir()
    repository.commit("pay", b"words", file="README.md")
    words = f"{tmp_path / 'two' / 'pay'} has no cicd.yaml at the head of its default branch; commit one"
    assert await refusal(trial(tmp_path, local={CHECKOUT: tmp_path / "two" / "pay"}), app()) == (Trouble.INVALID, words)


async def test_a_symlink_in_the_files_place_is_refused(repository, tmp_path):
    repository.commit("pay", b"words", file="README.md")
    (tmp_path / "pay" / "cicd.yaml").symlink_to("/etc/passwd")
    porcelain.add(str(tmp_path / "pay"), [str(tmp_path / "pay" / "cicd.yaml")])
    porcelain.commit(str(tmp_path / "pay"), message=b"link", author=b"a <a@x.test>", committer=b"a <a@x.test>")
    words = f"cicd.yaml in {tmp_path / 'pay'} is a link or folder; commit a plain file"
    assert await refusal(trial(tmp_path), app()) == (Trouble.INVALID, words)


def changed(old: bytes, new: bytes) -> bytes:
    assert old in GOOD
    return GOOD.replace(old, new)


LABEL = "must be 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
MALFORMED = {
    "not UTF-8": (b"a: \xff", "line 1: not UTF-8; save it as UTF-8"),
    "a tab": (b"a:\n\tb: 1", "line 2: not YAML; indent with spaces, not tabs"),
    "empty": (b"", "empty; it must hold one document"),
    "two documents": (GOOD + b"---\n" + GOOD, "several documents; it must hold one"),
    "an alias bomb": (
        b"a: &a [x]\nb: [*a, *a]",
        "line 1: anchors (&) and aliases (*) are not accepted; write the value out, or quote it",
    ),
    "deep nesting": (b"a: " + b"[" * 50, "line 1: nested deeper than 20 levels; write it flatter"),
    "huge": (b"#" * (FILE_LIMIT + 1), f"larger than {FILE_LIMIT} bytes; split it or remove what is not needed"),
    "a duplicate environment": (
        changed(b"staging:", b"production:"),
        "line 7: the key 'production' is there twice; keep one",
    ),
    "a list": (b"[]", "must be a mapping, not a list"),
    "no version": (changed(b"apiVersion: tower.hangar/v1", b""), "apiVersion: is missing; write it"),
    "another version": (changed(b"hangar/v1", b"hangar/v9"), "apiVersion: must be 'tower.hangar/v1'"),
    "another kind": (changed(b"kind: Delivery", b"kind: Deployment"), "kind: must be 'Delivery'"),
    "another app": (
        changed(b"component:default/checkout", b"component:default/ledger"),
        "app: must be component:default/checkout, the app that is asked for",
    ),
    "a twin in another namespace": (
        changed(b"component:default/checkout", b"component:evil/checkout"),
        "app: must be component:default/checkout, the app that is asked for",
    ),
    "a field nobody knows": (
        changed(b"app:", b"aproved: yes\napp:"),
        "aproved: is not a field here; remove it or correct its name",
    ),
    "a tier nobody knows": (
        changed(b"tier: flight", b"tier: prod"),
        "environments.production.tier: must be 'ground' or 'flight'",
    ),
    "a tier in a list": (
        changed(b"tier: flight", b"tier: [flight]"),
        "environments.production.tier: must be 'ground' or 'flight'",
    ),
    "a number as namespace": (
        changed(b"namespace: checkout,", b"namespace: 12,"),
        "environments.production.namespace: must be text, not a number",
    ),
    "a namespace that climbs": (
        changed(b"namespace: checkout,", b"namespace: ../kube-system,"),
        f"environments.production.namespace: {LABEL}",
    ),
    "an environment of other letters": (changed(b"staging:", b"Stag:"), f"environments.Stag: {LABEL}"),
    "no environments": (
        b"apiVersion: tower.hangar/v1\nkind: Delivery\napp: checkout\nenvironments: {}",
        "environments: must have at least 1",
    ),
    "an environment in text": (
        b"apiVersion: tower.hangar/v1\nkind: Delivery\napp: checkout\nenvironments: {a: b}",
        "environments.a: must be a mapping, not text",
    ),
    "an unknown end": (
        changed(b"afterProcessAccess: keep", b"afterProcessAccess: hide"),
        "environments.production.afterProcessAccess: must be 'recycle' or 'keep'",
    ),
    "two mistakes": (
        changed(b"tier: flight", b"tier: prod").replace(b"tier: ground", b"tier: dev"),
        "environments.production.tier: must be 'ground' or 'flight' (and 1 more)",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_delivery_file_is_refused_with_its_commit_field_and_what_to_write(repository, tmp_path, case):
    raw, words = MALFORMED[case]
    commit = repository.commit("pay", raw)
    assert await refusal(trial(tmp_path), app()) == (Trouble.INVALID, f"cicd.yaml of {CHECKOUT} at {commit[:12]}: {words}")
