"""Ranks are where a job places them."""

from __future__ import annotations

import pytest

from strategies.planning.dry_run.placement import Placement
from strategies.topology.placement import mesh_over_processes


def test_hosts_devices_and_coordinates() -> None:
    placement = Placement.create({"tensor": 2, "data": 2, "pipe": 2}, host_size=4)
    mesh = mesh_over_processes(8, {"data": 2, "pipe": 2, "tensor": 2}, [""])
    for rank in range(8):
        assert (placement.host(rank), placement.device(rank)) == (rank // 4, f"GPU:{rank % 4}")
        for axis in mesh.axis_names:
            assert placement.position(rank, axis) == mesh.position(rank, axis)
            assert placement.group(rank, axis) == mesh.group(rank, axis)
    assert placement.groups("data") == mesh.groups("data") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert placement.hosts == [0] * 4 + [1] * 4
    assert placement.num_ranks == 8


@pytest.mark.parametrize(("axes", "host_size"), [({"data": 0}, 4), ({"data": 2}, 0), ({"rows": 2}, 4)])
def test_wrong_sizes_are_refused(axes: dict[str, int], host_size: int) -> None:
    with pytest.raises(ValueError, match="Received"):
        Placement.create(axes, host_size)
