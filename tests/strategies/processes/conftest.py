"""Selects the worlds that run without `--parity-all`: a world of two processes takes half a minute on two cores."""

import pytest

from tests.selecting import leave_to_parity_all

# Replicas that span processes are trained by `test_spanning`, which covers every kind of crossing; their optimizers,
# files and refusals have suites of their own, which run with one engine. Replicas of several devices in each of two
# processes are trained by the tests of the ImageNet example. Sharding of data and writing of files are the same under
# both strategies. Checkpoints and comparisons use sums and gathers that other suites run over Horovod.
LEFT_OUT = (
    "[programs-MultiWorkerMirroredStrategy]",
    "[data-HorovodStrategy]",
    "[files-HorovodStrategy]",
    "[readers-MultiWorkerMirroredStrategy]",
    "[spanning-HorovodStrategy]",
    "[spanning-refusals-HorovodStrategy]",
    "[spanning-files-HorovodStrategy]",
    "[spanning-generation-HorovodStrategy]",
    "[sharded-checkpoints-HorovodStrategy]",
    "[comparisons-HorovodStrategy]",
    "[meshes-2-MultiWorkerMirroredStrategy]",
    "[meshes-2-HorovodStrategy]",
    "[meshes-4-MultiWorkerMirroredStrategy]",
    "[meshes-4-HorovodStrategy]",
    "test_pipelines_over_two_processes[MultiWorkerMirroredStrategy-1]",
    "test_pipelines_over_two_processes[HorovodStrategy-1]",
    "test_pipelines_over_two_processes[HorovodStrategy-2]",
    "test_pipelines_over_two_processes[MultiWorkerMirroredStrategy-2]",
)


@pytest.fixture
def flags(pytestconfig: pytest.Config) -> list[str]:
    """Returns the flags that the ranks get, too, so that they select the tests of their suites."""
    return ["--parity-all"] if pytestconfig.getoption("--parity-all") else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out all other worlds without the flag."""
    leave_to_parity_all(
        config, items, lambda item: item.nodeid.endswith(LEFT_OUT) or "test_whole_matrix" in item.nodeid
    )
