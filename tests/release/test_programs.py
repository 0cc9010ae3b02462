"""The program of docs/index.md is the one that `make release` runs with the wheel alone, and it runs here, too."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

from tests.docs.pages import blocks, text_of
from tests.processes import ROOT, python

PROGRAM = Path(__file__).with_name("train.py")


def test_the_page_has_the_program() -> None:
    [shown] = [block.code for block in blocks(text_of("docs/index.md")) if block.marker]
    code = PROGRAM.read_text()
    assert code.endswith("\n\n" + shown)
    assert ast.get_docstring(ast.parse(code)), "the page leaves out the docstring only"
    assert len(ast.parse(code).body) == len(ast.parse(shown).body) + 1


def test_the_program_trains_on_two_devices(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        python(str(PROGRAM)), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    match = re.fullmatch(r"replicas: 2, last loss: (\S+)", last)
    assert match, last
    assert float(match[1]) < 0.2
    assert (tmp_path / "model.keras").is_file()
