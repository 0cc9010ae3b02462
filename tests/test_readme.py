"""The pages run: every Python snippet in its own process; every `make` target and every link exists."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

from tests.processes import python

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part == "node_modules" for part in page.relative_to(ROOT).parts)
)
#: Pages whose snippets are complete programs.
WITH_PROGRAMS = (
    "README.md",
    "docs/central_storage.md",
    "docs/check_a_model.md",
    "docs/checkpoints.md",
    "docs/custom_training_steps.md",
    "docs/does_it_fit.md",
    "docs/fine_tuning.md",
    "docs/sharded_optimizer.md",
    "docs/timeline.md",
    "keras_ext/expert/README.md",
    "keras_ext/tensor/README.md",
    "keras_ext/pipeline/README.md",
)
SNIPPETS = {
    f"{name} {number}": snippet
    for name in WITH_PROGRAMS
    for number, snippet in enumerate(
        re.findall(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", (ROOT / name).read_text(), flags=re.DOTALL)
    )
}


@pytest.mark.parametrize("snippet", SNIPPETS.values(), ids=SNIPPETS)
def test_snippet_runs_and_prints_what_it_says(snippet: tuple[str, str], tmp_path: pathlib.Path) -> None:
    code, printed = snippet
    if "keras_hub" in code:
        pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        python("-c", code), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    if printed:
        assert _without_megabytes(done.stdout) == _without_megabytes(printed)


def _without_megabytes(printed: str) -> str:
    """Removes the line about memory: it depends on TensorFlow's build and the machine, and exists only on Linux."""
    return re.sub(r"^Resident memory of .*\n", "", printed, flags=re.MULTILINE)


def test_the_example_is_short() -> None:
    assert len([line for line in SNIPPETS["README.md 0"][0].splitlines() if line.strip()]) <= 12


def test_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"^make ([a-z-]+)", page.read_text(), flags=re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{page.name}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link
