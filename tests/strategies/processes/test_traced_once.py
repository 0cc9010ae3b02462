"""Two processes of two devices: each traces one replica for both; if that fails late, both trace each replica again."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.processes import Programs, cluster_environments, python
from tests.strategies.processes.traced_once import trained

LIMIT_SECONDS = 400


@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_replicas_of_two_processes(tmp_path: Path) -> None:
    program = python(str(Path(__file__).with_name("traced_once.py")))
    with Programs(tmp_path, [program] * 2, cluster_environments(2)) as programs:
        codes = programs.wait(LIMIT_SECONDS)
        output = programs.output(limit=200000)
    assert set(codes) == {0}, output
    expected = trained(asks=False)
    lines = output.splitlines()
    for asks in (False, True):
        found = [line.partition(": ")[2] for line in lines if line.startswith(f"asks={asks}: ")]
        assert len(found) == 2, output
        for line in found:
            for own, other in zip(json.loads(line), expected, strict=True):
                np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-6)
    # On both ranks, once for training and once for prediction.
    assert output.count("asks=False, traced") == 4, output
    # Training and prediction of the model that asks, on both ranks.
    assert output.count("each replica is traced, as its program asks for the number of the replica") == 4, output
