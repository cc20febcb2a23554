"""The pages that are made from the code say what the code says."""

import subprocess
import sys
from pathlib import Path

import pytest

from breakglass.core.codes import Code
from breakglass.core.meaning import MEANING
from tests.docs.generate import DOCS, PAGES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_that_is_older_than_its_code_is_noticed(path: Path):
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    assert written == _made(path), f"{path.name} is out of date: run uv run python tests/docs/generate.py"


def _made(path: Path) -> str:
    """The page as a fresh process makes it: what other tests did to this one's modules is not in it."""
    program = "import sys, pathlib, tests.docs.generate as g; sys.stdout.write(g.PAGES[pathlib.Path(sys.argv[1])]())"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, encoding="utf-8", check=True, cwd=ROOT)
    return done.stdout


def test_no_code_is_given_to_people_without_a_meaning():
    assert set(MEANING) == set(Code)


def test_every_meaning_and_every_remedy_is_a_sentence():
    for code, meaning in MEANING.items():
        for text in meaning:
            assert text.endswith("."), (code, text)
            assert text[0].isupper() or text.startswith("cicd.yaml"), (code, text)
