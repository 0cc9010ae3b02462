"""Processes that would share a GPU: all of them are refused when the strategy is made, over both engines."""

from pathlib import Path

import pytest

from tests.processes import Programs, cluster_environments, horovodrun, python

LIMIT_SECONDS = 400
PROGRAM = str(Path(__file__).with_name("sharing.py"))


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize("strategy", ["MultiWorkerMirroredStrategy", "HorovodStrategy"])
def test_all_are_refused(strategy: str, tmp_path: Path) -> None:
    if strategy == "HorovodStrategy":
        programs = Programs(tmp_path, [horovodrun(2, [PROGRAM, strategy])])
    else:
        programs = Programs(tmp_path, [python(PROGRAM, strategy)] * 2, cluster_environments(2))
    with programs:
        codes = programs.wait(LIMIT_SECONDS)
        output = programs.output(limit=20000)
    assert set(codes) == {0}, output
    assert output.count("refused: Each process needs GPUs of its own: ranks 0, 1 on ") == 4, output
    assert output.count("again refused: ") == 2, output
    assert output.count("use GPU-the-only-one. Start at most as many") == 4
    assert output.count("made with 2 replicas") == (2 if strategy == "HorovodStrategy" else 0)
