"""Records of two processes, over both engines: `recorded.py` in both at once."""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf

from strategies.tracing.alignment import aligned
from strategies.tracing.collective_runs import collective_runs, count_last
from strategies.tracing.events import COLLECTIVES, INPUT, STEPS, RankRecord, Slice
from strategies.tracing.job_trace import JobTrace
from strategies.tracing.recording import recorder_of
from tests.processes import Programs, horovodrun, launcher
from tests.strategies.tracing.checks import check_collectives, names_on, read_valid

LIMIT_SECONDS = 300
PROGRAM = str(Path(__file__).with_name("recorded.py"))
NAMES = ("hosts", "pipe", "weights")
LATE = 10**8


@pytest.fixture(scope="module", params=["MultiWorkerMirroredStrategy", "HorovodStrategy"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the ranks have written."""
    made = tmp_path_factory.mktemp(request.param)
    program = [PROGRAM, request.param, str(made)]
    command = horovodrun(2, program) if request.param == "HorovodStrategy" else launcher(2, program)
    # The strategies are made one after the other in the same processes.
    with Programs(made, [command], [{"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}]) as programs:
        assert programs.wait(LIMIT_SECONDS) == [0], programs.output()
    return made


def trace_of(folder: Path, name: str) -> JobTrace:
    return JobTrace(tuple(map(RankRecord.from_text, (folder / f"{name}.records").read_text().splitlines())))


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize("name", NAMES)
def test_recording_changes_nothing(folder: Path, name: str) -> None:
    plain, recorded = (json.loads((folder / f"{name}_{kind}.json").read_text()) for kind in ("plain", "recorded"))
    assert plain == recorded
    assert plain["steps"] == 8
    values = [_weights(folder / f"{name}_{kind}.weights.h5") for kind in ("plain", "recorded")]
    # Those of the optimizer, too.
    assert len(values[0]) == 3 * 6
    for one, other in zip(*values, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_valid(folder: Path, name: str) -> None:
    read_valid(folder / f"{name}.json", num_ranks=2)
    trace = trace_of(folder, name)
    check_collectives(trace)
    for rank in range(2):
        assert names_on(trace, STEPS, rank) == ["step 3", "step 4", "step 5"]
        assert names_on(trace, INPUT, rank)
        shares = trace.records[rank].shares
        assert min(shares.computing, shares.collectives, shares.other) > 0
        assert [each.details["epoch"] for each in trace.records[rank].slices if each.track == STEPS] == [0, 1, 1]
    assert not any(record.notes or record.num_dropped for record in trace.records)


def test_a_slow_rank_came_last(folder: Path) -> None:
    """The times of rank 1 are moved, not measured: a busy machine may hold up either rank."""
    records = trace_of(folder, "hosts").records
    latest = max(each.end for record in records for each in record.slices if each.key)
    trace = JobTrace(tuple(_with_late_collectives(record, latest) for record in records))
    times, waited, num_counted = count_last(collective_runs(trace.records))
    assert num_counted >= 3
    assert times == {1: num_counted}
    # Rank 0 waits for it in each step.
    assert waited[1] >= num_counted * LATE
    assert f"Rank 1 came last to {num_counted} of {num_counted} collectives" in trace.summary()


def test_collectives_of_gradients(folder: Path) -> None:
    trace = trace_of(folder, "hosts")
    own = [each for each in trace.records[0].slices if each.track == COLLECTIVES and "gradients" in each.name]
    assert len(own) == 3
    assert all(each.details["axis"] == "data" and each.members == (0, 1) for each in own)
    num_weights = 8 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2
    assert {int(each.details["bytes"]) // 4 - num_weights for each in own} <= set(range(8))


def test_passes_of_stages(folder: Path) -> None:
    trace = trace_of(folder, "pipe")
    for rank in range(2):
        expected = {f"{rank}{kind}{i}" for kind in "FB" for i in range(2)}
        names = names_on(trace, f"stage {rank}", rank)
        assert sorted(names) == sorted([*expected] * 3)
    assert {"send", "receive"} <= {name.partition(" ")[0] for name in names_on(trace, COLLECTIVES)}


def test_weights_in_shards_are_gathered(folder: Path) -> None:
    names = names_on(trace_of(folder, "weights"), COLLECTIVES)
    assert any(name.startswith("all_gather of weights") for name in names)


def test_clocks_of_two_hosts(folder: Path) -> None:
    """By barriers, and by what was recorded alone; the true offset is 0, since both are on this host."""
    trace = trace_of(folder, "hosts")
    first, second = trace.records
    assert second.measured is not None
    assert first.clock != second.clock
    assert abs(second.offset) <= second.clock_error
    slices = tuple(each.shifted(-second.offset + 10**9) for each in second.slices)
    alone = dataclasses.replace(second, slices=slices, measured=None, clock_error=0)
    found = aligned([first, alone])[1]
    assert abs(found.offset + 10**9) <= found.clock_error
    assert "by the clock of rank 0, to within" in trace.summary()


def test_strategies_of_others_are_refused() -> None:
    names = [device.name for device in tf.config.list_logical_devices("CPU")[:2]]
    with pytest.raises(ValueError, match="Received: tensorflow"):
        recorder_of(types.SimpleNamespace(distribute_strategy=tf.distribute.MirroredStrategy(names)))


def _with_late_collectives(record: RankRecord, latest: int) -> RankRecord:
    """Returns a record with exact times in which rank 1 comes to each collective long after rank 0, which waits."""

    def moved(each: Slice) -> Slice:
        if not each.key:
            return each
        begin, end = latest + record.rank * LATE, latest + 2 * LATE
        return dataclasses.replace(each, begin=begin, end=end, idle=end - begin)

    return dataclasses.replace(record, slices=tuple(map(moved, record.slices)), clock_error=0)


def _weights(path: Path) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    with h5py.File(path) as file:
        file.visititems(lambda _, item: found.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    return [each for each in found if each.ndim]
