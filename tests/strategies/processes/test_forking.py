"""Forked children: their end does not end the job, and data that they read train as on one device."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import Programs, cluster_environments, horovodrun, python

LIMIT_SECONDS = 400
PROGRAM = str(Path(__file__).with_name("forking.py"))


def trained(folder: Path, strategy: str, keeper: str) -> np.ndarray:
    folder.mkdir()
    arguments = [PROGRAM, strategy, str(folder), keeper]
    if strategy == "HorovodStrategy":
        programs = Programs(folder, [horovodrun(2, arguments)])
    elif strategy == "MultiWorkerMirroredStrategy":
        programs = Programs(folder, [[sys.executable, *arguments]] * 2, cluster_environments(2))
    else:
        # Plain Keras is only compared with.
        programs = Programs(folder, [python(*arguments) if strategy == "none" else [sys.executable, *arguments]])
    with programs:
        codes = programs.wait(LIMIT_SECONDS)
        assert not any(code != 0 for code in codes), programs.output()
        assert "was ended by" not in programs.output()
    numbers: np.ndarray = np.load(folder / "numbers.npy")
    return numbers


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return trained(tmp_path_factory.mktemp("plain") / "one", "none", "none")


@pytest.mark.timeout(2 * LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    "strategy",
    [
        "MirroredStrategy",
        pytest.param("MultiWorkerMirroredStrategy", marks=pytest.mark.parity_all),
        "HorovodStrategy",
    ],
)
def test_workers_that_are_forked(strategy: str, on_one_device: np.ndarray, tmp_path: Path) -> None:
    """Trains with checkpoints, for which the process handles SIGTERM, also in a single process."""
    np.testing.assert_allclose(trained(tmp_path / "job", strategy, "checkpoints"), on_one_device, rtol=1e-6, atol=1e-6)


@pytest.mark.timeout(2 * LIMIT_SECONDS + 30)
@pytest.mark.parity_all
def test_without_checkpoints(on_one_device: np.ndarray, tmp_path: Path) -> None:
    found = trained(tmp_path / "job", "MultiWorkerMirroredStrategy", "none")
    np.testing.assert_allclose(found, on_one_device, rtol=1e-6, atol=1e-6)
