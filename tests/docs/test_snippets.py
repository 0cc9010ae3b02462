"""Every block of Python of every page is a program: it runs in its own process, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks, pages, text_of
from tests.processes import python

PROGRAMS = {
    f"{page} {number}": block
    for page in pages()
    for number, block in enumerate(each for each in blocks(text_of(page)) if each.language == "python")
    if not block.marker
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_runs_and_prints_what_it_says(program: Block, tmp_path: Path) -> None:
    if "keras_hub" in program.code:
        pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        python("-c", program.code), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    if program.printed:
        assert _without_megabytes(done.stdout) == _without_megabytes(program.printed)


def _without_megabytes(printed: str) -> str:
    """Removes the line about memory: it depends on TensorFlow's build and the machine, and exists only on Linux."""
    return re.sub(r"^Resident memory of .*\n", "", printed, flags=re.MULTILINE)
