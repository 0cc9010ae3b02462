"""docs/coming_from: what the pages show is what the programs are."""

from __future__ import annotations

import difflib
import re

import pytest

from tests.docs.coming_from.programs import PAGES, PROGRAMS, expected, losses
from tests.docs.pages import blocks

NAMES = sorted(page.name for page in PAGES.glob("*.md"))
TEXTS = {name: (PAGES / name).read_text() for name in NAMES}
#: Pages with a diff, and the pairs of programs that it may belong to.
DIFFS = {"tf_distribute.md": "tf_distribute_fit", "ray_and_databricks.md": "tf_distribute_workers"}


@pytest.mark.parametrize("name", NAMES)
def test_each_block_of_python_is_a_program(name: str) -> None:
    programs = {path.read_text() for path in PROGRAMS.glob("*.py")}
    shown = (block for block in blocks(TEXTS[name]) if block.language == "python")
    assert {block.code for block in shown if not block.marker.startswith("compared")} <= programs


@pytest.mark.parametrize("program", sorted(path.name for path in PROGRAMS.glob("*.py")))
def test_each_program_is_on_a_page(program: str) -> None:
    text = (PROGRAMS / program).read_text()
    assert any(text in page or f"(programs/{program})" in page for page in TEXTS.values())
    assert program in text.splitlines()[0] or "one_device" in program, "its first line is how to start it"


@pytest.mark.parametrize("name", DIFFS)
def test_a_diff_is_that_of_the_programs(name: str) -> None:
    before, after = (
        (PROGRAMS / f"{DIFFS[name]}_{which}.py").read_text().splitlines()[1:] for which in ("before", "after")
    )
    changed = [line for line in difflib.unified_diff(before, after, n=0) if not line.startswith(("---", "+++", "@@"))]
    shown = re.findall(r"```diff\n(.*?)```", TEXTS[name], flags=re.DOTALL)
    for block in shown:
        assert set(block.splitlines()) <= set(changed)


def test_fragments_are_of_the_programs() -> None:
    for page, program in (("tf_distribute.md", "tf_distribute_loop_after"), ("horovod.md", "horovod_loop_after")):
        shown = (block for block in blocks(TEXTS[page]) if block.language == "python")
        [fragment] = [block.code for block in shown if block.marker.startswith("compared")]
        assert fragment in (PROGRAMS / f"{program}.py").read_text()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"accelerate_and_deepspeed.md"}))
def test_all_pages_show_the_same_losses(name: str) -> None:
    assert losses(TEXTS[name]) == expected()


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_short(name: str) -> None:
    assert TEXTS[name].count("\n") <= 150
