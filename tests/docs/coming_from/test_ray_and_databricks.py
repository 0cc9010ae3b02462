"""docs/coming_from/ray_and_databricks.md: its programs in workers with the environment that the platforms set."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.coming_from import platform_worker
from tests.docs.coming_from.programs import LIMIT_SECONDS, PROGRAMS, interpreter_with, output, outputs, same
from tests.processes import cluster_environments, python

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 30)


@pytest.mark.parametrize("platform", ["ray", pytest.param("spark", marks=pytest.mark.parity_all)])
def test_two_workers_print_the_losses_of_one_device(platform: str, tmp_path: Path) -> None:
    # Both set TF_CONFIG alone: a list of workers, and this one's number.
    command = python(str(platform_worker.__file__), str(PROGRAMS / f"{platform}_after.py"), platform)
    printed = outputs(tmp_path, [command] * 2, cluster_environments(2))
    assert same(printed)
    # Ray's report waits for all workers: all must call it.
    assert printed.count("reported ['loss']") == (6 if platform == "ray" else 0)


@pytest.mark.parity_all
def test_ray_itself(tmp_path: Path) -> None:
    interpreter = interpreter_with("ray", "tensorflow")
    assert same(output(tmp_path, [interpreter, str(PROGRAMS / "ray_after.py")]))


@pytest.mark.parity_all
def test_spark_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = interpreter_with("pyspark", "spark_tensorflow_distributor", "tensorflow")
    monkeypatch.setenv("PYSPARK_PYTHON", interpreter)
    assert same(output(tmp_path, [interpreter, str(PROGRAMS / "spark_after.py")]))
