"""A fault of one rank ends the job on all of them, within a stated time, with a reason that names the rank.

``FAULT_TABLE=docs/fault_table.md make test ARGS="tests/strategies/faults --parity-all"`` writes what was seen.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import Programs, cluster_environments, horovodrun
from tests.strategies.faults.job import SHORT_SECONDS

JOB = str(Path(__file__).with_name("job.py"))
ENGINES = ("MultiWorkerMirroredStrategy", "HorovodStrategy")
LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Case:
    """A fault and how it has to end.

    Attributes:
        fault: its name in `job`.
        says: a pattern of the last words of the rank that did nothing wrong.
        within_seconds: from the fault to its end, on a machine that is busy.
        ends_well: True if the job is to go on.
        is_default: True if it runs without `--parity-all`.
    """

    fault: str
    says: str
    within_seconds: float = 25.0
    ends_well: bool = False
    is_default: bool = False


_WAITS = r"waits? for the \w+ of "
CASES = (
    Case("absent", r"Rank 1 of 2 did not come within 8 s", SHORT_SECONDS + 30),
    Case("late", "", ends_well=True),
    Case("width", r"different programs: .*the initial value of kernel \(8, 1[26]\)"),
    Case("layers", r"different programs: .*the initial value of kernel \(16, [14]\)"),
    Case("kill", r"Rank 1 was killed, or its host is gone.*rank 0, in fit, epoch 2, after step 2"),
    Case("terminate", r"Rank 1 was ended by SIGTERM in fit, epoch 2, after step 2", is_default=True),
    Case("stop", r"Rank 0 has waited 8 s for .* gradients of .*; rank 1 does not answer", SHORT_SECONDS + 30),
    Case("leave", r"Rank 1 called sys\.exit\(0\) in fit, epoch 2, after step 2"),
    Case("leave at once", r"Rank 1 was killed, or its host is gone"),
    Case("raise", r"Rank 1 failed with RuntimeError: an error of the user's own in fit, epoch 2, after step 2"),
    Case("sleep", r"rank 1 is in fit, epoch 2, after step 2, at job\.py:\d+ in ", SHORT_SECONDS + 30),
    Case(
        "evaluate",
        rf"different programs: rank 0 {_WAITS}gradients of .*, in fit, epoch 2, after step 2; rank 1 {_WAITS}.*eval",
        is_default=True,
    ),
    Case("stop training", "", ends_well=True),
)


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Rows of the table; written if the environment says where."""
    rows: list[str] = []
    yield rows
    if path := os.environ.get("FAULT_TABLE"):
        head = [
            "# Faults of one rank of two",
            "",
            "Written by `tests/strategies/faults`; seconds on two shared cores.",
            "",
        ]
        head += [
            "| fault of rank 1 | engine | seconds to the end | exit code | the other rank's last words |",
            "|---|---|---|---|---|",
        ]
        Path(path).write_text("\n".join([*head, *rows]) + "\n")


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault)
def test_it_ends_on_all_ranks(case: Case, engine: str, tmp_path: Path, table: list[str]) -> None:
    arguments = [JOB, engine, case.fault]
    is_horovod = engine == "HorovodStrategy"
    if is_horovod:
        programs = Programs(tmp_path, [horovodrun(2, arguments)])
    else:
        programs = Programs(tmp_path, [[sys.executable, *arguments]] * 2, cluster_environments(2))
    begin = time.time()
    with programs:
        codes = programs.wait(LIMIT_SECONDS)
        if not is_horovod and not case.ends_well:
            # Of two programs without a launcher: the one that has to end.
            while programs.wait(1.0)[0] is None and time.time() - begin < LIMIT_SECONDS:
                pass
            codes = programs.wait(0.1)
        end = time.time()
        output = programs.output(limit=60000)
    if case.ends_well:
        assert not any(codes), output
        weights = re.findall(r"weights (\S+ \d+)", output)
        assert len(weights) == 2, output
        assert weights[0] == weights[1], output
        table.append(f"| {case.fault} | {engine} | goes on | 0 | |")
        return
    assert codes[0] not in (None, 0), output
    hurt = [float(moment) for moment in re.findall(r"hurt ([\d.]+)", output)]
    seconds = end - max(hurt, default=begin)
    errors = re.findall(r"(?:DistributedError|JoinError): (.*)", output)
    assert any(re.search(case.says, error) for error in errors), output
    assert seconds < case.within_seconds, f"{seconds} s\n{output}"
    words = next(error for error in errors if re.search(case.says, error))
    table.append(f"| {case.fault} | {engine} | {seconds:.1f} | {codes[0]} | {words} |")
