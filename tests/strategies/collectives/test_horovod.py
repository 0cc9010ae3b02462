"""Starts the contract, and more, in processes joined by Horovod; what needs no Horovod is tested here."""

import sys
from pathlib import Path

import pytest

from strategies.collectives._horovod_sets import process_sets
from strategies.mesh import DeviceMesh
from tests.strategies.collectives.reference import CUBE, SQUARE
from tests.strategies.test_horovod_smoke import HOROVODRUN, run_to_the_end

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMIT_SECONDS = 240


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    ("num_processes", "suites"),
    [
        pytest.param(4, ["horovod_suite.py", "horovod_details.py"], id="contract"),
        pytest.param(3, ["horovod_user_suite.py"], id="started_by_user"),
    ],
)
def test_between_processes(num_processes: int, suites: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not HOROVODRUN.exists():
        pytest.fail(f"There is no {HOROVODRUN}. Install Horovod: python -m strategies.install_horovod")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    worker = [sys.executable, str(HERE / "horovod_worker.py"), *(str(HERE / suite) for suite in suites)]
    job = ["-np", str(num_processes), "--disable-cache", "--network-interfaces", "lo"]

    status, output = run_to_the_end([str(HOROVODRUN), *job, *worker], LIMIT_SECONDS)

    assert status == 0, f"ended with {status} (None: after {LIMIT_SECONDS} s). Its output:\n{output[-30000:]}"
    assert output.count(" passed in ") == num_processes, output[-30000:]
    assert not any(word in output for word in (" failed", " skipped", " error")), output[-30000:]


def test_without_horovod_the_module_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    monkeypatch.delitem(sys.modules, "strategies.collectives.horovod", raising=False)
    with pytest.raises(ImportError, match=r"python -m strategies\.install_horovod"):
        __import__("strategies.collectives.horovod")


def test_process_sets_are_the_groups_that_are_neither_one_process_nor_all() -> None:
    line, square, cube = (DeviceMesh.from_processes(n, axes) for n, axes in ((4, None), (4, SQUARE), (8, CUBE)))
    assert process_sets([line]) == []
    assert process_sets([line, square, square]) == [(0, 2), (1, 3), (0, 1), (2, 3)]
    # Stages of a cube are groups of two: their pairs are there already.
    assert process_sets([cube]) == process_sets([cube], channel_axes=())
    assert len(process_sets([cube])) == 12


def test_process_sets_of_pairs() -> None:
    stages = DeviceMesh.from_processes(4, {"pipe": 4})
    assert process_sets([stages], channel_axes=()) == []
    assert process_sets([stages]) == [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert process_sets([stages], all_pairs=True) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    turned = DeviceMesh(("pipe", "data"), (3, 2), (5, 4, 3, 2, 1, 0), ("",) * 6)
    assert process_sets([turned], channel_axes=("pipe",)) == [
        *[(4, 5), (2, 3), (0, 1)],
        *[(1, 3, 5), (0, 2, 4)],
        *[(3, 5), (1, 3), (1, 5), (2, 4), (0, 2), (0, 4)],
    ]
