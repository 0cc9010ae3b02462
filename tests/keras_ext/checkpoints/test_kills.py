"""A process that is killed while it saves leaves a complete checkpoint: the last one, or the one that it was saving."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from tests.processes import Programs, python

_LIMIT_SECONDS = 600


@pytest.mark.timeout(_LIMIT_SECONDS + 30)
@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.parity_all)])
def test_a_complete_checkpoint_after_each_kill(kills: int, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    arguments = ("-m", "tests.keras_ext.checkpoints.killed", str(tmp_path / "with spaces"), str(kills), str(seed))
    with Programs(tmp_path, [python(*arguments)]) as programs:
        assert programs.wait(_LIMIT_SECONDS) == [0], programs.output()
        output = programs.output(100_000)
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [result["form"] for result in results] == ["whole", "sharded", "background"]
    for result in results:
        epochs = result["epochs"]
        assert len(epochs) == kills
        # None was lost: a later process goes on from what was complete.
        assert all(0 <= first <= last for first, last in itertools.pairwise(epochs)), result
        assert epochs[-1] > 0, result
