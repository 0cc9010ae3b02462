"""Pictures of the concepts are those that the code draws; the pages on the code and the numbers name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.concept_pictures import FOLDER, PICTURES
from tests.docs.pages import ROOT


@pytest.mark.parametrize("file", sorted(PICTURES))
def test_a_picture_is_the_one_that_is_drawn(file: str) -> None:
    assert (FOLDER / file).read_text() == str(PICTURES[file]()), "run python -m tests.docs.concept_pictures"


def test_every_picture_is_on_a_page() -> None:
    text = "\n".join(
        page.read_text() for page in [*(ROOT / "docs/concepts").glob("*.md"), ROOT / "docs/how_it_works.md"]
    )
    assert all(f"pictures/{file})" in text for file in PICTURES)


def test_how_it_works_names_what_exists() -> None:
    text = (ROOT / "docs/how_it_works.md").read_text()
    paths = re.findall(r"`((?:strategies|keras_ext|tests)/[\w/.]+)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_numbers_list_every_table_and_every_benchmark() -> None:
    index = ROOT / "docs/numbers/index.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", index.read_text())}
    pages: list[Path] = [*index.parent.glob("*.md"), *ROOT.glob("benchmarks/*/README.md")]
    assert [page for page in pages if page != index and page not in linked] == []
