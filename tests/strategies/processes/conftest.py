"""Selection of the worlds that run without `--parity-all`: one of two processes takes half a minute on two cores."""

import pytest

from tests.selecting import leave_to_parity_all

# Replicas that span processes are trained by `test_spanning`, which meets every kind of crossing; what each can do is
# tried in suites of its own. Replicas of several devices in each of two processes are trained by the ImageNet example's
# tests. Data are dealt out, and files written, alike under both strategies.
LEFT_OUT = (
    "[programs-MultiWorkerMirroredStrategy]",
    "[data-HorovodStrategy]",
    "[files-HorovodStrategy]",
    "[readers-MultiWorkerMirroredStrategy]",
    "[spanning-MultiWorkerMirroredStrategy]",
    "[spanning-HorovodStrategy]",
    "[spanning-refusals-MultiWorkerMirroredStrategy]",
    "[spanning-refusals-HorovodStrategy]",
    "[spanning-files-MultiWorkerMirroredStrategy]",
    "[spanning-files-HorovodStrategy]",
    "[meshes-2-MultiWorkerMirroredStrategy]",
    "[meshes-2-HorovodStrategy]",
    "[meshes-4-MultiWorkerMirroredStrategy]",
    "[meshes-4-HorovodStrategy]",
    "test_pipelines_over_two_processes[MultiWorkerMirroredStrategy-1]",
    "test_pipelines_over_two_processes[HorovodStrategy-1]",
    "test_pipelines_over_two_processes[HorovodStrategy-2]",
    "test_pipelines_over_two_processes[MultiWorkerMirroredStrategy-2]",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out, without the flag, the others."""
    leave_to_parity_all(
        config, items, lambda item: item.nodeid.endswith(LEFT_OUT) or "test_whole_matrix" in item.nodeid
    )
