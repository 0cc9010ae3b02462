"""A rank that lives but stays out of a step: all ranks end in time, with an error that says so."""

import re
from pathlib import Path

import pytest

from tests.processes import Programs, cluster_environments, horovodrun, python

LIMIT_SECONDS = 400
PROGRAM = str(Path(__file__).with_name("absent.py"))


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    "strategy",
    [
        "MultiWorkerMirroredStrategy",
        # Ends as the others do that wait in Horovod: tests/strategies/faults.
        pytest.param("HorovodStrategy", marks=pytest.mark.parity_all),
    ],
)
def test_nobody_waits_for_ever(strategy: str, tmp_path: Path) -> None:
    if strategy == "HorovodStrategy":
        programs = Programs(tmp_path, [horovodrun(2, [PROGRAM, strategy])])
    else:
        programs = Programs(tmp_path, [python(PROGRAM, strategy)] * 2, cluster_environments(2))
    with programs:
        codes = programs.wait(LIMIT_SECONDS)
        output = programs.output(limit=20000)
    assert None not in codes, output
    # Rank 1 stays out, and rank 0's error says at which line.
    said = (
        r"Rank 0 has waited 15 s for the all_gather of descriptions .*; rank 1 is after fit, .*, at absent\.py:\d+ in "
    )
    assert re.search(said, output), output
    waited = {int(rank): int(seconds) for rank, seconds in re.findall(r"rank (\d) failed after (\d+) s", output)}
    assert waited[0] >= 15, output
    # The absent rank does not have to wait: its peer has ended.
    assert waited[1] <= waited[0], output
