"""The groups of a process along each axis; sums over them are tested in processes by `spanning_optimizers`."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from strategies.collectives.process_groups import ProcessGroups, join
from strategies.topology.mesh import DeviceMesh
from strategies.topology.placement import mesh_over_processes


class Group:
    """A group of two members with equal values."""

    def __init__(self, mesh: DeviceMesh, axis: str, part: int) -> None:
        self.name = f"{axis} of {mesh.axes}, part {part}"
        self.num_sums = 0

    def sum(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        self.num_sums += 1
        return [2 * value for value in values]


def joined(num_processes: int, axes: dict[str, int], num_local: int = 1) -> Any:
    mesh = mesh_over_processes(num_processes, axes, [f"CPU:{i}" for i in range(num_local)])
    made: Any = join(mesh, lambda each: each, Group)  # type: ignore[arg-type, return-value]
    return made


@pytest.mark.parametrize(
    ("num_processes", "axes", "num_local", "num_data", "model"),
    [
        (2, {"data": 2}, 1, 1, []),
        (2, {"data": 2, "tensor": 2}, 2, 2, []),
        (2, {"pipe": 2}, 1, 0, ["pipe"]),
        (4, {"data": 2, "tensor": 2}, 1, 1, ["tensor"]),
        (4, {"pipe": 2, "tensor": 2}, 1, 0, ["pipe", "tensor"]),
        (2, {"pipe": 2, "tensor": 2}, 2, 0, ["pipe"]),
    ],
)
def test_axes_that_cross_have_groups(
    num_processes: int, axes: dict[str, int], num_local: int, num_data: int, model: list[str]
) -> None:
    groups = joined(num_processes, axes, num_local)
    assert (len(groups.data), list(groups.model)) == (num_data, model)
    assert groups.spans_processes == bool(model)
    assert groups.job.name.startswith("data of {'data': " + str(num_processes))
    assert (groups.data_of_first is None) == (num_data == 0)


@pytest.mark.parametrize("axes", [{"pipe": 2}, {"pipe": 2, "tensor": 2}, {"data": 2, "tensor": 2}])
def test_one_message_sums_over_a_replica(axes: dict[str, int]) -> None:
    groups = joined(2 * len(axes), axes)
    assert int(groups.sum_over_replica(tf.constant(1))) == 2
    assert sum(group.num_sums for group in {groups.job, *groups.model.values()}) == 1


def test_two_axes_of_several_replicas_take_two() -> None:
    groups = joined(8, {"data": 2, "pipe": 2, "tensor": 2})
    assert int(groups.sum_over_replica(tf.constant(1))) == 4
    assert int(ProcessGroups().sum_over_replica(tf.constant(1))) == 1
