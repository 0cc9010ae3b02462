"""The notebooks run, are stored without outputs, and link to what exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.examples.run_notebook import code_cells
from tests.processes import ENVIRONMENT, ROOT, python

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PROGRAM = Path(__file__).with_name("run_notebook.py")


def _contents(notebook: Path) -> dict[str, Any]:
    return json.loads(notebook.read_text(encoding="utf-8"))


def _prose(notebook: Path) -> str:
    return "\n\n".join("".join(cell["source"]) for cell in _contents(notebook)["cells"] if cell["cell_type"] != "code")


def test_there_are_three() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["1_data_parallelism", "2_tensor_and_pipeline", "3_fine_tuning"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_cells_run_and_what_they_assert_holds(notebook: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the extra 'examples' is not installed")
    # The notebooks write to temporary folders.
    environment = os.environ | ENVIRONMENT | {"TMPDIR": str(tmp_path)}
    command = python(str(PROGRAM), str(notebook))
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count(f"[{code_cells(notebook)[-1][0]}:") == 1


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_stored_without_outputs_in_a_form_that_jupyter_reads(notebook: Path) -> None:
    contents = _contents(notebook)
    assert (contents["nbformat"], contents["nbformat_minor"]) == (4, 5)
    assert set(contents["metadata"]) == {"kernelspec", "language_info"}
    ids = [cell["id"] for cell in contents["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in contents["cells"]:
        expected: dict[str, Any] = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {}}
        if cell["cell_type"] == "code":
            expected |= {"execution_count": None, "outputs": []}
        assert cell == {**expected, "source": cell["source"]}
        # Lines as Jupyter writes them: a change of one line is one line in a diff.
        assert cell["source"] == "".join(cell["source"]).splitlines(keepends=True)
    assert notebook.read_text(encoding="utf-8") == json.dumps(contents, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_prose_has_exercises_with_answers_and_links_that_lead_somewhere(notebook: Path) -> None:
    prose = _prose(notebook)
    assert prose.startswith("# ")
    exercises, _, answers = prose.partition("## Exercises")[2].partition("### Answers")
    numbers = [re.findall(r"^(\d)\. ", part, flags=re.MULTILINE) for part in (exercises, answers)]
    assert numbers[0] == numbers[1] == ["1", "2", "3"]
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        assert link.startswith("https://") or (FOLDER / link).exists(), link
