"""The pages that are made from the code say what the code says."""

from pathlib import Path

import pytest

from breakglass.core.codes import Code
from breakglass.core.meaning import MEANING
from tests.docs.generate import DOCS, PAGES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_that_is_older_than_its_code_is_noticed(path: Path):
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    assert written == PAGES[path](), f"{path.name} is out of date: run uv run python tests/docs/generate.py"


def test_no_code_is_given_to_people_without_a_meaning():
    assert set(MEANING) == set(Code)


def test_every_meaning_and_every_remedy_is_a_sentence():
    for code, meaning in MEANING.items():
        for text in meaning:
            assert text.endswith("."), (code, text)
            assert text[0].isupper() or text.startswith("cicd.yaml"), (code, text)
