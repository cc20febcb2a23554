"""What somebody can get wrong in `site.yaml`, and the one sentence each mistake gets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breakglass.config import LIMIT, ConfigError, Site, parse_site, read_site
from breakglass.core.model import Tier
from tests.docs.generate_config import EXAMPLE

SITE = Path("/etc/tower/site.yaml")


def site(*changes: tuple[str, str]) -> Site:
    text = EXAMPLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_site(text.encode(), SITE)


def refusal(raw: bytes) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_site(raw, SITE)
    return str(refused.value)


def test_the_example_of_the_reference_is_a_site():
    found = site()
    assert found.state_dir == Path("/etc/tower/state")
    assert found.clusters[0].kubeconfig == Path("/etc/tower/portal.kubeconfig")
    assert found.deployments.local == {"component:default/checkout": Path("/etc/tower/delivery")}
    assert found.portal_user == "system:serviceaccount:tower:portal"
    assert found.protected == {"kube-node-lease", "kube-public", "kube-system", "kyverno", "tower"}
    assert (found.tier_of("demo"), found.tier_of("other")) == (Tier.FLIGHT, None)
    assert found.settings().images == tuple(found.debug_images)


def test_an_absolute_path_stays_where_it_is():
    assert site(("state_dir: state", "state_dir: /var/lib/tower")).state_dir == Path("/var/lib/tower")


def test_short_group_names_are_completed():
    found = site(("group:default/tower-admins", "Tower-Admins"))
    assert (found.admins, found.settings().admins) == ("group:default/tower-admins", "group:default/tower-admins")


def test_a_trial_is_loud_about_who_says_who_people_are_and_that_nobody_is_told():
    assert site().warnings() == (
        "Profile try: Tower itself asserts who people are. Whoever reads its key is anybody. Not for production.",
        "No notify.webhook: nobody is told that somebody waits; notices are in this log only.",
    )
    assert len(site(("on_call:", "notify: {webhook: {url: 'http://127.0.0.1:9000/x'}}\non_call:")).warnings()) == 1


IMAGE = "registry.example.test/tower/debug@sha256:" + "0" * 64
FIRST = "age1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs3290gq"
SECOND = "age1qgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpquuzgag"
LABEL = "must be 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
GROUP = "must name a group of the catalog, as in group:default/tower-admins"
PICTURE = "must name an image by its digest, as in registry.example/tower/debug@sha256:<64 hex digits>"
RECIPIENT = "must be an age recipient, as in age1…: the public line that age-keygen prints"
URL = "must be an https URL without user and password (http only to this machine)"
LINE = "must be one line of 1 to 300 printable characters"


def webhook(url: str) -> tuple[str, str]:
    return ("on_call:", f"notify: {{webhook: {{url: '{url}'}}}}\non_call:")


MISTAKES = {
    "misspelt": (("state_dir:", "statedir:"), "state_dir: is missing; write it (and 1 more)"),
    "unknown": (("on_call:", "oncall: x\non_call:"), "oncall: is not a field here; remove it or correct its name"),
    "unknown deep": (
        ("tier: flight", "tier: flight, admin: yes"),
        "clusters[0].admin: is not a field here; remove it or correct its name",
    ),
    "profile": (("profile: try", "profile: prod"), "profile: must be 'try', 'small' or 'full'"),
    "real profile": (
        ("profile: try", "profile: full"),
        "profile: full needs an identity provider, and identity.local is for a trial; write try",
    ),
    "tier": (("tier: flight", "tier: production"), "clusters[0].tier: must be 'ground' or 'flight'"),
    "no clusters": (("  - {name: demo, kubeconfig: portal.kubeconfig, tier: flight}", "  []"), "clusters: must have at least 1"),
    "clusters mapping": (
        ("  - {name: demo, kubeconfig: portal.kubeconfig, tier: flight}", "  demo: x"),
        "clusters: must be a list, not a mapping",
    ),
    "cluster twin": (
        ("tier: flight}", "tier: flight}\n  - {name: demo, kubeconfig: b, tier: ground}"),
        "clusters: demo is there twice; give each its own name",
    ),
    "cluster name": (("name: demo", "name: Demo_1"), f"clusters[0].name: {LABEL}"),
    "no kubeconfig": (("kubeconfig: portal.kubeconfig, ", ""), "clusters[0].kubeconfig: is missing; write it"),
    "path number": (("state_dir: state", "state_dir: 12"), "state_dir: must be the path of a file or folder, not a number"),
    "path empty": (("state_dir: state", "state_dir:"), "state_dir: must be the path of a file or folder, not nothing"),
    "path control": (("state_dir: state", 'state_dir: "a\\0b"'), "state_dir: must be the path of a file or folder, not text"),
    "port": (("on_call:", "listen: {port: 70000}\non_call:"), "listen.port: must be at most 65535"),
    "port text": (("on_call:", "listen: {port: '80'}\non_call:"), "listen.port: must be a whole number, not text"),
    "port zero": (("on_call:", "listen: {port: 0}\non_call:"), "listen.port: must be at least 1"),
    "open to the world": (
        ("on_call:", "listen: {host: 0.0.0.0}\non_call:"),
        "listen.host: in profile try Tower listens on this machine only; write 127.0.0.1",
    ),
    "admins user": (("admins: group:default/tower-admins", "admins: user:default/carla"), f"admins: {GROUP}"),
    "admins list": (("admins: group:default/tower-admins", "admins: [a, b]"), "admins: must be text, not a list"),
    "auditors are admins": (
        ("auditors: group:default/auditors", "auditors: tower-admins"),
        "auditors: must be another group than admins",
    ),
    "one recipient": ((f"  - {SECOND}\n", ""), "recipients: must have at least 2"),
    "the same recipient": ((SECOND, FIRST), f"recipients: the same twice ({FIRST}); they must differ"),
    "a secret key": ((SECOND, "AGE-SECRET-KEY-1QQQQ"), f"recipients[1]: {RECIPIENT}"),
    "a bent recipient": ((SECOND, SECOND[:-1] + "z"), f"recipients[1]: {RECIPIENT}"),
    "an image by tag": ((IMAGE, "registry.example.test/tower/debug:latest"), f"debug_images[0]: {PICTURE}"),
    "an image without registry": ((IMAGE, "debug@sha256:" + "0" * 64), f"debug_images[0]: {PICTURE}"),
    "three images": (
        (f"  - {IMAGE}", "".join(f"  - {IMAGE[:-1]}{n}\n" for n in range(3))),
        "debug_images: must have at most 2",
    ),
    "on-call empty": (('"platform on call, extension 4711"', "''"), f"on_call: {LINE}"),
    "on-call escape": (('"platform on call, extension 4711"', '"\\e[2J"'), f"on_call: {LINE}"),
    "webhook plain": (webhook("http://chat.example.test/x"), f"notify.webhook.url: {URL}"),
    "webhook with password": (webhook("https://a:b@chat.example.test/x"), f"notify.webhook.url: {URL}"),
    "webhook file": (webhook("file:///etc/passwd"), f"notify.webhook.url: {URL}"),
    "reserve": (("on_call:", "limits: {reserve_bytes: 1}\non_call:"), "limits.reserve_bytes: must be at least 1048576"),
    "commit forever": (
        ("on_call:", "limits: {commit_seconds: 1e30}\non_call:"),
        "limits.commit_seconds: must be at most 30.0",
    ),
    "local app": (
        ("component:default/checkout", "group:default/checkout"),
        "deployments.local.group:default/checkout: must name an app of the catalog, as in component:default/checkout",
    ),
    "protected": (
        ("on_call:", "protected_namespaces: [Kube_System]\non_call:"),
        f"protected_namespaces[0]: {LABEL}",
    ),
    "git host": (
        ("  local:", "  hosts: {'https://git.example.test': {}}\n  local:"),
        "deployments.hosts.https://git.example.test: must be a host name in lower case, with :port when it is not 443",
    ),
    "a token in the file": (
        ("  local:", "  hosts: {git.example.test: {token: hunter2}}\n  local:"),
        "deployments.hosts.git.example.test.token: is not a field here; remove it or correct its name",
    ),
    "identity": (("identity: {local: {key_file: identity.pem}}", "identity: {}"), "identity.local: is missing; write it"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_said_with_its_place_and_what_to_write(case):
    change, words = MISTAKES[case]
    assert change[0] in EXAMPLE
    assert refusal(EXAMPLE.replace(*change).encode()) == f"{SITE}: {words}"


MALFORMED = {
    "not UTF-8": (b"profile: \xff", "line 1: not UTF-8; save it as UTF-8"),
    "a tab": (b"profile: try\nlisten:\n\tport: 1", "line 3: not YAML; indent with spaces, not tabs"),
    "empty": (b"", "empty; it must hold one document"),
    "only comments": (b"# nothing yet\n", "empty; it must hold one document"),
    "two documents": (b"a: 1\n---\nb: 1", "several documents; it must hold one"),
    "a list": (b"- a", "must be a mapping, not a list"),
    "text": (b"hello", "must be a mapping, not text"),
    "a duplicate key": (b"profile: try\nprofile: full", "line 2: the key 'profile' is there twice; keep one"),
    "deep": (b"a: " + b"[" * 60, "line 1: nested deeper than 20 levels; write it flatter"),
    "an alias bomb": (
        b"a: &a [x]\nb: *a",
        "line 1: anchors (&) and aliases (*) are not accepted; write the value out, or quote it",
    ),
    "an object": (b"!!python/name:os.system", "line 1: tags (!) are not accepted; write plain text, numbers, lists and mappings"),
    "huge": (b"#" * (LIMIT + 1), f"larger than {LIMIT} bytes; split it or remove what is not needed"),
    "a control character": (b"a: \x01", "a control character is in it; remove it"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_file_that_is_not_ours_to_read_says_why(case):
    raw, words = MALFORMED[case]
    assert refusal(raw) == f"{SITE}: {words}"


def test_a_secret_in_the_wrong_place_is_not_repeated():
    assert "hunter2" not in refusal(EXAMPLE.replace("  local:", "  hosts: {g.example: {token: hunter2}}\n  local:").encode())


def test_a_file_that_is_missing_closed_or_no_file_says_so(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in {
        tmp_path / "none.yaml": "cannot be read: No such file or directory; name your site.yaml, or look at its rights",
        tmp_path: "is not a file; name your site.yaml",
        tmp_path / "pipe": "is not a file; name your site.yaml",
    }.items():
        with pytest.raises(ConfigError) as refused:
            read_site(path)
        assert str(refused.value) == f"{path} {words}"


def test_a_site_is_read_from_its_file(tmp_path):
    (tmp_path / "site.yaml").write_text(EXAMPLE)
    assert read_site(tmp_path / "site.yaml").state_dir == tmp_path / "state"


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_no_bytes_make_it_crash(raw):
    with pytest.raises(ConfigError):
        parse_site(raw, SITE)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab:/\x00", max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(sorted(Site.model_fields)), VALUES))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_no_values_make_it_crash(values):
    with pytest.raises(ConfigError):
        parse_site(json.dumps(values).encode(), SITE)
