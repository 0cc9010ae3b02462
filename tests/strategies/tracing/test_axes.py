"""The mesh axis of some ranks."""

import pytest

from strategies.topology.mesh import DeviceMesh
from strategies.tracing.axes import axis_between


@pytest.mark.parametrize(
    ("members", "expected"),
    [((0, 4), "data"), ((0, 1, 2, 3), "pipe"), ((2, 1), "pipe"), ((0, 5), ""), (range(8), ""), ((1, 1), "")],
)
def test_axis_of_ranks(members: tuple[int, ...], expected: str) -> None:
    mesh = DeviceMesh.from_processes(8, {"data": 2, "pipe": 4})
    assert axis_between(mesh, members) == expected
