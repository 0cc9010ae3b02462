"""The program of `parallel_layer.md` with its shards in two processes: each prints the same lines."""

from __future__ import annotations

import os
from pathlib import Path

from tests.docs.pages import ROOT, blocks, text_of
from tests.processes import Programs, launcher

[BLOCK] = [block for block in blocks(text_of("docs/guides/parallel_layer.md")) if block.language == "python"]


def test_the_layer_trains_over_two_processes(tmp_path: Path) -> None:
    one, several = 'MirroredStrategy(mesh={"data": 2, "tensor": 2})', 'MultiWorkerMirroredStrategy(mesh={"tensor": -1})'
    assert one in BLOCK.code
    program = tmp_path / "program.py"
    # A folder of its own for each rank would not do: rank 0 writes the file that both read.
    program.write_text(BLOCK.code.replace(one, several).replace('"split.w', f'"{tmp_path}/split.w'))
    environment = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with Programs(tmp_path, [launcher(2, [str(program)])], [os.environ | environment]) as programs:
        assert programs.wait(240) == [0], programs.output()
        lines = [line.rpartition("]: ")[2].rpartition("> ")[2] for line in programs.output().splitlines()]
    for line in BLOCK.printed.splitlines():
        assert sum(found.endswith(line) for found in lines) == 2, lines
