"""What an editor, a careless commit or a malicious one can do to a catalog file, and what Tower then says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakglass.adapters.catalog_file import LIMIT, CatalogFile
from breakglass.core.model import EntityRef
from breakglass.ports import PortError, Trouble

ANA = EntityRef("user:default/ana")
TEAM = EntityRef("group:default/team")


def entity(kind: str, name: str, spec: str = "{}", metadata: str = "") -> str:
    return f"---\napiVersion: backstage.io/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}{metadata}}}\nspec: {spec}\n"


def written(tmp_path: Path, *texts: str) -> CatalogFile:
    (tmp_path / "catalog-info.yaml").write_text("".join(texts))
    return CatalogFile(tmp_path / "catalog-info.yaml")


def annotated(*annotations: str) -> str:
    return f", annotations: {{{', '.join(annotations)}}}"


# --- relations --------------------------------------------------------------------------------------------------------


async def test_membership_counts_from_both_ends_and_only_for_people_who_exist(tmp_path):
    catalog = written(
        tmp_path,
        entity("User", "ana", "{memberOf: [team]}"),
        entity("User", "ben"),
        entity("Group", "team", "{members: [ben, 'user:default/ghost']}"),
    )
    assert [one.ref for one in await catalog.members(TEAM)] == ["user:default/ana", "user:default/ben"]


async def test_a_member_of_a_child_group_is_not_a_member_of_its_parent(tmp_path):
    catalog = written(
        tmp_path,
        entity("Group", "division", "{children: [team]}"),
        entity("Group", "team", "{parent: division}"),
        entity("User", "ana", "{memberOf: [team]}"),
    )
    assert (await catalog.person(ANA)).groups == {TEAM}
    assert list(await catalog.members(EntityRef("group:default/division"))) == []


async def test_short_references_are_completed_with_the_entitys_own_namespace_and_case_is_folded(tmp_path):
    catalog = written(
        tmp_path,
        entity("Component", "Pay", "{owner: Team}", ", namespace: Shop"),
        entity("User", "Ana", "{memberOf: ['default/TEAM', team]}", ", namespace: shop"),
    )
    assert (await catalog.app(EntityRef("component:shop/pay"))).owners == {"group:shop/team"}
    assert (await catalog.person(EntityRef("user:shop/ana"))).groups == {"group:default/team", "group:shop/team"}


async def test_a_user_may_own_an_app(tmp_path):
    catalog = written(tmp_path, entity("Component", "pay", "{owner: 'user:ana'}"))
    assert (await catalog.app(EntityRef("component:default/pay"))).owners == {ANA}


async def test_two_entities_that_share_a_name_through_a_third_are_one_human_with_all_names(tmp_path):
    catalog = written(
        tmp_path,
        entity("User", "ana", "{profile: {email: A@x.test}, memberOf: [team]}"),
        entity("User", "ana-admin", "{memberOf: [team]}", annotated("'tower.hangar/aliases': 'b@x.test, a@X.test'")),
        entity("User", "root-ana", "{profile: {email: b@x.test}}"),
        entity("User", "ben", "{profile: {email: ben@x.test}, memberOf: [team]}"),
    )
    first, third = await catalog.person(ANA), await catalog.person(EntityRef("user:default/root-ana"))
    assert first.person.same(third.person)
    assert first.person.names == third.person.names
    assert first.groups == {TEAM}
    assert third.groups == frozenset()
    assert [one.ref for one in await catalog.members(TEAM)] == [ANA, "user:default/ben"]


async def test_a_lock_on_one_name_locks_the_human_under_every_name(tmp_path):
    catalog = written(
        tmp_path,
        entity("User", "ana", "{profile: {email: a@x.test}}", annotated("'tower.hangar/locked': 'true'")),
        entity("User", "ana-admin", "{profile: {email: a@x.test}}", annotated("'tower.hangar/locked': 'false'")),
        entity("User", "ben"),
    )
    assert [(await catalog.person(EntityRef(f"user:default/{name}"))).locked for name in ("ana", "ana-admin", "ben")] == [
        True,
        True,
        False,
    ]


async def test_where_the_delivery_file_is_comes_from_the_annotation(tmp_path):
    catalog = written(
        tmp_path,
        entity("Component", "pay", "{owner: team}", annotated("'tower.hangar/cicd': 'https://git.example.test/pay.git'")),
    )
    assert (await catalog.app(EntityRef("component:default/pay"))).cicd == "https://git.example.test/pay.git"


async def test_entities_of_other_kinds_may_look_as_they_like(tmp_path):
    catalog = written(
        tmp_path, entity("System", "shop", "[1, 2]"), "---\nkind: X-Y\nmetadata: {name: z}\n", entity("User", "ana")
    )
    assert (await catalog.person(ANA)).person.ref == ANA


# --- now --------------------------------------------------------------------------------------------------------------


async def test_a_change_of_the_same_size_within_the_same_time_stamp_is_seen_at_once(tmp_path):
    catalog = written(tmp_path, entity("User", "ana", "{memberOf: [team]}"))
    assert (await catalog.person(ANA)).groups == {TEAM}
    before = (tmp_path / "catalog-info.yaml").stat()
    written(tmp_path, entity("User", "ana", "{memberOf: [maet]}"))
    os.utime(tmp_path / "catalog-info.yaml", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (await catalog.person(ANA)).groups == {"group:default/maet"}


async def test_a_file_replaced_by_rename_is_seen_even_with_an_old_time_stamp(tmp_path):
    catalog = written(tmp_path, entity("User", "ana", "{memberOf: [team]}"))
    os.utime(tmp_path / "catalog-info.yaml", (1, 1))
    assert (await catalog.person(ANA)).groups == {TEAM}
    (tmp_path / "new").write_text(entity("User", "ana", "{memberOf: [maet]}"))
    os.utime(tmp_path / "new", (1, 1))
    (tmp_path / "new").rename(tmp_path / "catalog-info.yaml")
    assert (await catalog.person(ANA)).groups == {"group:default/maet"}


async def test_a_file_that_goes_away_is_no_catalog_and_not_an_old_one(tmp_path):
    catalog = written(tmp_path, entity("User", "ana"))
    await catalog.person(ANA)
    (tmp_path / "catalog-info.yaml").unlink()
    with pytest.raises(PortError) as refused:
        await catalog.person(ANA)
    assert refused.value.trouble is Trouble.TRANSIENT
    words = "cannot be read: No such file or directory; look at its path and rights"
    assert str(refused.value) == f"the catalog {tmp_path / 'catalog-info.yaml'} {words}"


async def test_a_file_that_becomes_malformed_is_no_catalog_until_it_is_mended(tmp_path):
    catalog = written(tmp_path, entity("User", "ana"))
    await catalog.person(ANA)
    for _ in range(2):
        written(tmp_path, entity("User", "ana"), "---\n[")
        with pytest.raises(PortError):
            await catalog.person(ANA)
    written(tmp_path, entity("User", "ana"))
    assert await catalog.person(ANA) is not None


async def test_a_pipe_or_folder_in_the_files_place_neither_hangs_nor_crashes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(PortError, match="cannot be read") as refused:
            await CatalogFile(path).apps()
        assert refused.value.trouble is Trouble.TRANSIENT


# --- malformed --------------------------------------------------------------------------------------------------------

USER = entity("User", "ana")
MALFORMED = {
    "not UTF-8": (b"a: 1\nb: \xff\n", "line 2: not UTF-8; save it as UTF-8"),
    "a tab": (b"a:\n\t- b\n", "line 2: not YAML; indent with spaces, not tabs"),
    "an open bracket": (b"a: [", "line 1: not YAML; check indentation, quotes and brackets there"),
    "a control character": (b"a: \x07", "a control character is in it; remove it"),
    "a duplicate key": (b"kind: User\nkind: Group\n", "line 2: the key 'kind' is there twice; keep one"),
    "deep nesting": (b"a: " + b"[" * 100, "line 1: nested deeper than 20 levels; write it flatter"),
    "an alias bomb": (
        b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
        "line 1: anchors (&) and aliases (*) are not accepted; write the value out, or quote it",
    ),
    "a python object": (
        b"a: !!python/object/apply:os.system [id]",
        "line 1: tags (!) are not accepted; write plain text, numbers, lists and mappings",
    ),
    "a number as key": (b"1: x", "line 1: a key must be text; write it in quotes"),
    "huge": (b"#" * (LIMIT + 1), f"larger than {LIMIT} bytes; split it or remove what is not needed"),
    "a list": (b"- a", "document 1 (line 1): must be a mapping with kind, metadata and spec, not a list"),
    "no kind": (b"metadata: {name: a}", "document 1 (line 1): kind: must be text, as in Component, Group or User"),
    "no metadata": (b"kind: User", "document 1 (line 1): metadata: must be a mapping with a name, not nothing"),
    "no name": (b"kind: User\nmetadata: {}", "document 1 (line 1): metadata: name and namespace must be text without : and /"),
    "a name that is a reference": (
        b"kind: User\nmetadata: {name: 'user:default/ana'}",
        "document 1 (line 1): metadata: name and namespace must be text without : and /",
    ),
    "a name of other letters": (
        entity("User", "'a b'").encode(),
        "document 1 (line 1): metadata.name: 1 to 63 of a-z, 0-9, -, _ and . name an entity",
    ),
    "another version": (
        b"apiVersion: v1\nkind: User\nmetadata: {name: a}",
        "document 1 (user:default/a): apiVersion: must be backstage.io/v1alpha1 or backstage.io/v1beta1",
    ),
    "a twin": (
        (USER + entity("user", "ANA")).encode(),
        "document 2 (user:default/ana): metadata.name: document 1 is user:default/ana too; keep one of them",
    ),
    "no owner": (
        (USER + entity("Component", "pay")).encode(),
        "document 2 (component:default/pay): spec.owner: must name a group or user, as in group:default/name",
    ),
    "an owner of another kind": (
        entity("Component", "pay", "{owner: 'system:default/shop'}").encode(),
        "document 1 (component:default/pay): spec.owner: must name a group or user, as in group:default/name",
    ),
    "several owners": (
        entity("Component", "pay", "{owner: [a, b]}").encode(),
        "document 1 (component:default/pay): spec.owner: must name a group or user, as in group:default/name",
    ),
    "members in text": (
        entity("Group", "team", "{members: 'ana, ben'}").encode(),
        "document 1 (group:default/team): spec.members: must be a list of user names, not text",
    ),
    "a group as member": (
        entity("Group", "team", "{members: [ana, 'group:x']}").encode(),
        "document 1 (group:default/team): spec.members[1]: must name a user, as in user:default/name",
    ),
    "a user as group": (
        entity("User", "ana", "{memberOf: ['user:ben']}").encode(),
        "document 1 (user:default/ana): spec.memberOf[0]: must name a group, as in group:default/name",
    ),
    "an empty member": (
        entity("Group", "team", "{members: [null]}").encode(),
        "document 1 (group:default/team): spec.members[0]: must name a user, as in user:default/name",
    ),
    "a profile in text": (
        entity("User", "ana", "{profile: x}").encode(),
        "document 1 (user:default/ana): spec.profile: must be a mapping, not text",
    ),
    "a number as address": (
        entity("User", "ana", "{profile: {email: 12}}").encode(),
        "document 1 (user:default/ana): spec.profile.email: must be text of 1 to 500 printable characters",
    ),
    "a lock without quotes": (
        entity("User", "ana", "{}", annotated("'tower.hangar/locked': true")).encode(),
        'document 1 (user:default/ana): metadata.annotations.tower.hangar/locked: must be "true" or "false", in quotes',
    ),
    "a lock nobody can read": (
        entity("User", "ana", "{}", annotated("'tower.hangar/locked': 'yes'")).encode(),
        'document 1 (user:default/ana): metadata.annotations.tower.hangar/locked: must be "true" or "false", in quotes',
    ),
    "annotations in a list": (
        entity("User", "ana", "{}", ", annotations: [a]").encode(),
        "document 1 (user:default/ana): metadata.annotations: must be a mapping, not a list",
    ),
    "a spec in text": (entity("User", "ana", "x").encode(), "document 1 (user:default/ana): spec: must be a mapping, not text"),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_catalog_is_refused_with_its_place_and_what_to_write(tmp_path, case):
    raw, words = MALFORMED[case]
    path = tmp_path / "catalog-info.yaml"
    path.write_bytes(raw)
    for _ in range(2):
        with pytest.raises(PortError) as refused:
            await CatalogFile(path).person(ANA)
        assert refused.value.trouble is Trouble.INVALID
        assert str(refused.value) == f"the catalog {path}: {words}"
