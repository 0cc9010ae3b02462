"""A fault of one rank ends the job on all of them, within a stated time, with a reason that names the rank.

``FAULT_TABLE=docs/numbers/fault_table.md make test ARGS="tests/strategies/faults --parity-all -n0"`` writes the
observed table.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from strategies.testing import faults
from tests.processes import Programs, horovodrun, launcher, marked_after
from tests.strategies.faults.job import SHORT_SECONDS, STEP
from tests.strategies.faults.table import Row, written

JOB = str(Path(__file__).with_name("job.py"))
ENGINES = ("MultiWorkerMirroredStrategy", "HorovodStrategy")
LIMIT_SECONDS = 120
MARK = "KERAS_STRATEGIES_FAULTS_TEST"


@dataclass(frozen=True)
class Case:
    """A fault and its expected outcome.

    Attributes:
        fault: its name in `job`, or the kind of an injected one.
        says: a pattern of the last message of the rank without the fault.
        at: the moment of an injected fault; a fault in a save hits rank 0, which writes, any other hits rank 1.
        within_seconds: from the fault to its end, on a machine that is busy.
        code: the exit code of the launcher; None for any but 0.
        ends_well: True if the job is to go on.
        saves: True if checkpoints are saved.
        byte: for a fault in a save, the size beyond which the kernel lets no file grow.
        is_default: True if it runs without `--parity-all`.
    """

    fault: str
    says: str
    at: faults.Moment | None = None
    within_seconds: float = 25.0
    code: int | None = None
    ends_well: bool = False
    saves: bool = False
    byte: int | None = None
    is_default: bool = False

    @property
    def rank(self) -> int:
        """The rank with the fault."""
        return 0 if self.at == "save" else 1

    @property
    def name(self) -> str:
        """The fault and its moment."""
        saves = ", saves" if self.saves and self.at != "save" else ""
        byte = f", byte {self.byte}" if self.byte else ""
        return f"{self.fault} at {self.at}{saves}{byte}" if self.at else self.fault

    def injected(self, record: Path) -> faults.Faults:
        """Returns the faults for the injector."""
        if self.at is None:
            return faults.Faults()
        # The fault comes in the second epoch, except that a process starts and traces only once.
        step = 0 if self.at in ("start", "tracing") else STEP
        hurt = faults.fail_at(kind=self.fault, step=step, rank=self.rank, at=self.at, byte=self.byte)  # type: ignore[arg-type]
        return hurt.recorded_in(record)


IN_TIME = SHORT_SECONDS + 30
_WAITS = r"waits? for the \w+ of "
#: Kinds of injected faults: the other rank's message about rank {rank}, the launcher's exit code, and the limit.
_KINDS: dict[faults.Kind, tuple[str, int | None, float]] = {
    "kill": (
        r"Rank {rank} (was killed, or its host is gone|\(pid \d+\) failed with signal SIGKILL)"
        r"|Process {rank} exit with status code 137",
        137,
        25.0,
    ),
    "terminate": (r"Rank {rank} was ended by SIGTERM|Process {rank} exit with status code 143", 143, 25.0),
    "stop": (r"rank {rank} does not answer", None, IN_TIME),
    "leave": (r"Rank {rank} called sys\.exit\(0\)", None, 25.0),
    "raise": (r"Rank {rank} failed with RuntimeError: A fault that was asked for", None, 25.0),
}
#: The difference between both ranks, as the error shows it.
REFUSED = {
    "clipnorm": r"optimizer Adam\(clipnorm=None\) \| rank 1: optimizer Adam\(clipnorm=1\.0\)",
    "batch size": r"fit\(batch_size=16\) \| rank 1: fit\(batch_size=8\)",
    "dtype policy": r"none of these \| rank 1: layer dense\(dtype=mixed_bfloat16\)",
}
_MOMENTS: tuple[faults.Moment, ...] = ("start", "tracing", "step", "epoch_end", "save")


def _injected(kind: faults.Kind, at: faults.Moment) -> Case:
    says, code, seconds = _KINDS[kind]
    saves = at == "save"
    if saves and kind == "terminate":
        # Both ranks finish the step, and save.
        return Case(kind, "", at, code=75, saves=True)
    rank = 0 if saves else 1
    is_default = (kind, at) in (("terminate", "step"),)
    return Case(kind, says.format(rank=rank), at, seconds, code, saves=saves, is_default=is_default)


CASES = (
    Case("absent", r"Rank 1 of 2 did not join within 8 s", within_seconds=IN_TIME),
    Case("late", "", ends_well=True),
    Case("width", r"different programs: .*the initial value of kernel \(8, 1[26]\)"),
    Case("layers", r"different programs: .*the initial value of kernel \(16, [14]\)"),
    *(Case(name, rf"where they differ: rank 0: {shown}") for name, shown in REFUSED.items()),
    Case("leave at once", r"Rank 1 was killed, or its host is gone"),
    Case("sleep", r"rank 1 is in fit, epoch 2, after step 2, at job\.py:\d+ in ", within_seconds=IN_TIME),
    Case(
        "evaluate",
        rf"different programs: rank 0 {_WAITS}gradients of .*, in fit, epoch 2, after step 2; rank 1 {_WAITS}.*eval",
        is_default=True,
    ),
    Case("stop training", "", ends_well=True),
    *itertools.starmap(_injected, itertools.product(_KINDS, _MOMENTS)),
    Case("terminate", "", "step", code=75, saves=True),
    Case("full_disk", r"Rank 0 failed with OSError: .*No space left on device", "save", saves=True),
    # A part of the weights' file is written.
    Case("full_disk", r"Rank 0 failed with OSError: .*File too large: '.*\.h5'", "save", saves=True, byte=3000),
)


@pytest.fixture(scope="module")
def table() -> Iterator[list[Row]]:
    """Yields the rows of the table; writes it if the environment names a file."""
    rows: list[Row] = []
    yield rows
    if path := os.environ.get("FAULT_TABLE"):
        Path(path).write_text(written(rows))


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_ends_on_all_ranks(case: Case, engine: str, tmp_path: Path, table: list[Row]) -> None:
    arguments = [JOB, engine, case.fault, *([str(tmp_path / "checkpoints")] if case.saves else [])]
    is_horovod = engine == "HorovodStrategy"
    hurt = case.injected(tmp_path / "record")
    begin = time.time()
    with Programs(tmp_path, [_command(engine, arguments)], [hurt.environment() | {MARK: str(tmp_path)}]) as programs:
        (code,) = programs.wait(LIMIT_SECONDS)
        end = time.time()
        output = programs.output(limit=60000)
        orphans = marked_after(MARK, str(tmp_path), 10.0) if code is not None else []
    assert not orphans, f"{orphans}\n{output}"
    assert code is not None, output
    if case.saves:
        # The checkpoint is complete: of the save before the fault, or of the save that the fault caused.
        marks = sorted((tmp_path / "checkpoints").glob("step-*.json"))
        assert marks, output
        assert all(mark.with_suffix(".weights.h5").exists() for mark in marks), output
    if case.ends_well:
        assert code == 0, output
        weights = re.findall(r"weights (\S+ \d+)", output)
        assert len(weights) == 2, output
        assert weights[0] == weights[1], output
        table.append(Row(case.fault, case.at, engine, None, 0, "goes on, with equal weights"))
        return
    happened = [*map(float, re.findall(r"hurt ([\d.]+)", output)), *hurt.happened().values()]
    assert happened or case.fault == "absent", output
    seconds = end - max(happened, default=begin)
    # horovodrun has an exit code of its own.
    assert code == case.code or (code != 0 and (is_horovod or case.code is None)), output
    says = case.says or r"Preempted: saved after (step|epoch)"
    words = next((line for line in _reasons(output) if re.search(says, line, re.IGNORECASE)), "")
    assert words, output
    if not case.says:
        assert "DistributedError" not in output, output
    assert seconds < case.within_seconds, f"{seconds} s\n{output}"
    reason = words.replace(str(tmp_path), "run")
    table.append(Row(case.fault, case.at, engine, seconds, code, reason, case.saves, case.byte))


@pytest.mark.timeout(3 * LIMIT_SECONDS)
@pytest.mark.parametrize(
    ("engine", "shard", "form"),
    [
        ("MultiWorkerMirroredStrategy", "weights", "whole"),
        ("MultiWorkerMirroredStrategy", "weights", "background"),
        pytest.param("MultiWorkerMirroredStrategy", "optimizer", "whole", marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", "weights", "whole", marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", "weights", "background", marks=pytest.mark.parity_all),
    ],
)
def test_killed_in_a_save_of_shards_it_goes_on(engine: str, shard: str, form: str, tmp_path: Path) -> None:
    """A job is killed while a rank writes what is sharded, and restarted: its weights are those without a fault."""
    byte = {"whole": 3000, "background": 1000}[form]
    kill = faults.fail_at(kind="kill", step=STEP, rank=0, at="save", byte=byte).recorded_in(tmp_path / "record")
    none, ends = faults.Faults(), []
    for folder, hurt in (("checkpoints", kill), ("checkpoints", none), ("checkpoints 2", none)):
        arguments = [JOB, engine, "none", str(tmp_path / folder), shard, form]
        start = horovodrun if engine == "HorovodStrategy" else launcher
        with Programs(tmp_path, [start(2, arguments)], [hurt.environment()]) as programs:
            (code,) = programs.wait(LIMIT_SECONDS)
            output = programs.output(limit=60000)
        if hurt is kill:
            assert hurt.happened(), output
            assert code, output
            assert list((tmp_path / folder).glob("step-*.json")), output
            continue
        assert code == 0, output
        ends.append(set(re.findall(r"weights (\S+ \d+)", output)))
    assert ends[0] == ends[1]
    assert len(ends[0]) == 1


def _command(engine: str, arguments: list[str]) -> list[str]:
    """Returns the command that starts two ranks with the launcher of an engine, which are looked for afterwards."""
    if engine == "HorovodStrategy":
        return horovodrun(2, arguments, in_one_family=True)
    return [sys.executable, "-m", "strategies.launch", "--nproc-per-node", "2", *arguments]


def _reasons(output: str) -> list[str]:
    """Returns the lines with the reason: the launcher's last ones, or for `horovodrun`, which has none, the ranks'."""
    reasons = [line for line in output.splitlines() if line.startswith("strategies.launch: ")][-2:]
    reasons = [line.removeprefix("strategies.launch: ").removeprefix("the reason: ") for line in reversed(reasons)]
    reasons += re.findall(r"(Preempted: .*)", output)
    reasons = reasons or re.findall(
        r"(?:DistributedError: |JoinError: |ValueError: |strategies: (?=rank \d was ended))(.*)", output
    )
    # horovodrun may end the other ranks before they can print a reason, as while they trace.
    return reasons or re.findall(r"(Process \d exit with status code \d+)", output)
