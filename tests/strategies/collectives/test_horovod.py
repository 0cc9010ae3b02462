"""Runs the contract, and more, in processes joined by Horovod, and tests the parts that need no Horovod."""

import re
import sys
from pathlib import Path

import pytest

from strategies.collectives.horovod.process_sets import (
    channel_sets,
    check_agreement,
    check_promised_world,
    process_sets,
)
from strategies.topology.mesh import DeviceMesh
from tests.processes import python
from tests.strategies.collectives.reference import CUBE, SQUARE
from tests.strategies.test_horovod_smoke import HOROVODRUN, run_to_the_end

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMIT_SECONDS = 600


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    ("num_processes", "suites"),
    [
        pytest.param(4, ["horovod_suite.py", "horovod_details.py"], id="contract"),
        pytest.param(3, ["horovod_user_suite.py"], id="started_by_user"),
    ],
)
def test_between_processes(
    num_processes: int, suites: list[str], pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not HOROVODRUN.exists():
        pytest.fail(f"There is no {HOROVODRUN}. Install Horovod: python -m strategies.install_horovod")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    flags = ["--parity-all"] if pytestconfig.getoption("--parity-all") else []
    worker = python(str(HERE / "horovod_worker.py"), *(str(HERE / suite) for suite in suites), *flags)
    job = ["-np", str(num_processes), "--disable-cache", "--network-interfaces", "lo"]

    status, output = run_to_the_end(python(str(HOROVODRUN), *job, *worker), LIMIT_SECONDS)

    assert status == 0, f"ended with {status} (None: after {LIMIT_SECONDS} s). Its output:\n{output[-30000:]}"
    # A summary that begins with the passed tests has none that failed or was skipped.
    assert len(re.findall(r":\d+ passed(?:, \d+ deselected)? in ", output)) == num_processes, output[-30000:]


def test_without_horovod_the_module_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    for name in [name for name in sys.modules if name.startswith("strategies.collectives.horovod")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"python -m strategies\.install_horovod"):
        __import__("strategies.collectives.horovod")


def test_process_sets_are_the_groups_that_are_neither_one_process_nor_all() -> None:
    line, square, cube = (DeviceMesh.from_processes(n, axes) for n, axes in ((4, None), (4, SQUARE), (8, CUBE)))
    assert process_sets([line]) == []
    assert process_sets([line, square, square]) == [(0, 2), (1, 3), (0, 1), (2, 3)]
    # Stages of a cube are groups of two: the process sets of their pairs exist already.
    assert process_sets([cube]) == process_sets([cube], channel_axes=())
    assert len(process_sets([cube])) == 12


def test_process_sets_of_pairs() -> None:
    stages = DeviceMesh.from_processes(4, {"pipe": 4})
    assert process_sets([stages], channel_axes=()) == []
    assert process_sets([stages]) == [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert process_sets([stages], all_pairs=True) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    with pytest.raises(ValueError, match=r"Unknown mesh axis.*'stage'"):
        process_sets([stages], channel_axes=("stage",))
    turned = DeviceMesh(("pipe", "data"), (3, 2), (5, 4, 3, 2, 1, 0), ("",) * 6)
    assert process_sets([turned], channel_axes=("pipe",)) == [
        *[(4, 5), (2, 3), (0, 1)],
        *[(1, 3, 5), (0, 2, 4)],
        *[(3, 5), (1, 3), (1, 5), (2, 4), (0, 2), (0, 4)],
    ]


def test_process_sets_of_channels() -> None:
    stages = DeviceMesh(("pipe", "data"), (3, 2), (5, 4, 3, 2, 1, 0), ("",) * 6)
    assert channel_sets(stages, "pipe", 0, 2) == [(1, 5), (0, 4)]
    # The two processes are the whole world.
    assert channel_sets(DeviceMesh.from_processes(2, {"pipe": 2}), "pipe", 0, 1) == []


def test_a_world_of_another_size_is_refused_before_horovod_starts() -> None:
    mesh = DeviceMesh.from_processes(4)
    for environment in ({}, {"HOROVOD_SIZE": "4"}, {"HOROVOD_SIZE": "2", "HOROVOD_ELASTIC": "1"}):
        check_promised_world([mesh], environment)
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        with pytest.raises(ValueError, match="needs 4 processes, but Horovod runs 2"):
            check_promised_world([mesh], {name: "2"})


def test_processes_that_disagree_are_named() -> None:
    line, square = DeviceMesh.from_processes(2), DeviceMesh.from_processes(2, {"tensor": 2})
    check_agreement([line, line], [0, 1])
    with pytest.raises(ValueError, match=r"rank 0 and .*'data'.* in process 1; rank 0 and .* in process 0"):
        check_agreement([line, line], [0, 0])
    with pytest.raises(ValueError, match=r"rank 1 and .*'tensor'.* in process 1; rank 0 and .*'data'"):
        check_agreement([line, square], [0, 1])
