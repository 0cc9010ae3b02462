"""Meshes over processes: the parts of a replica that a process owns, and processes with whole replicas."""

import itertools

import pytest

from strategies.topology.placement import (
    has_model_axes,
    local_grid,
    mesh_over_processes,
    owned_parts,
    process_mesh,
    replica_mesh,
    spans_processes,
)

NAMES = [f"CPU:{i}" for i in range(8)]


def test_a_replica_in_each_process() -> None:
    mesh = mesh_over_processes(2, {"data": 2, "pipe": 2, "tensor": 2}, NAMES[:4])
    assert mesh.ranks == (0, 0, 0, 0, 1, 1, 1, 1)
    assert local_grid(mesh, 0) == local_grid(mesh, 1) == (("CPU:0", "CPU:1", "CPU:2", "CPU:3"),)
    assert owned_parts(mesh, 1) == (0, 1, 2, 3)
    assert not spans_processes(mesh)


def test_several_replicas_in_each_process() -> None:
    mesh = mesh_over_processes(2, {"data": -1, "tensor": 2}, NAMES[:4])
    assert mesh.num_replicas == 4
    assert local_grid(mesh, 1) == (("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))
    assert local_grid(mesh_over_processes(3, None, NAMES[:2]), 2) == (("CPU:0",), ("CPU:1",))


def test_one_part_in_each_process() -> None:
    mesh = mesh_over_processes(4, {"pipe": 2, "tensor": 2}, NAMES[:1])
    assert spans_processes(mesh)
    assert [owned_parts(mesh, rank) for rank in range(4)] == [(0,), (1,), (2,), (3,)]
    assert local_grid(mesh, 3) == (("CPU:0",),)
    assert process_mesh(mesh, "CPU:0").axes == {"pipe": 2, "tensor": 2}
    assert replica_mesh(mesh, 3).ranks == (0, 1, 2, 3)


def test_boxes_of_shards_and_of_stages() -> None:
    shards = mesh_over_processes(4, {"data": 2, "pipe": 2, "tensor": 2}, NAMES[:2])
    assert [owned_parts(shards, rank) for rank in range(4)] == [(0, 1), (2, 3), (0, 1), (2, 3)]
    assert process_mesh(shards, "CPU:0").axes == {"data": 2, "pipe": 2, "tensor": 1}
    assert replica_mesh(shards, 2).ranks == (2, 2, 3, 3)
    stages = mesh_over_processes(2, {"data": 1, "pipe": 4}, NAMES[:2])
    assert [owned_parts(stages, rank) for rank in range(2)] == [(0, 1), (2, 3)]
    half_a_group = mesh_over_processes(2, {"tensor": 4}, NAMES[:2])
    assert [owned_parts(half_a_group, rank) for rank in range(2)] == [(0, 1), (2, 3)]


def test_axes_across_processes_are_in_one_order() -> None:
    mesh = mesh_over_processes(4, {"tensor": 2, "data": 2}, NAMES[:1])
    assert mesh.axes == {"data": 2, "tensor": 2}
    assert mesh == mesh_over_processes(4, {"data": 2, "tensor": -1}, NAMES[:1])


def test_one_process_takes_any_order_of_axes() -> None:
    mesh = mesh_over_processes(1, {"tensor": 2, "data": 2}, NAMES[:4])
    assert local_grid(mesh, 0) == (("CPU:0", "CPU:2"), ("CPU:1", "CPU:3"))


def test_axes_of_one_position_are_none() -> None:
    assert not has_model_axes(None)
    assert not has_model_axes({"data": 4, "pipe": 1})
    assert has_model_axes({"data": 2, "pipe": -1})
    mesh = mesh_over_processes(2, {"pipe": 1, "data": 2, "tensor": 2}, NAMES[:2])
    assert local_grid(mesh, 1) == (("CPU:0", "CPU:1"),)


@pytest.mark.parametrize(
    ("num_processes", "axes", "num_local", "words"),
    [
        (2, {"data": 3, "pipe": 2}, 2, "Nearest sizes that fit"),
        (2, {"data": 2, "rows": 2}, 2, "Unknown mesh axis"),
        (2, {"data": 2, "pipe": 0}, 2, "must be a positive integer"),
        (2, {"pipe": 3, "tensor": 2}, 3, "own no box of the mesh"),
    ],
)
def test_what_does_not_fit_is_refused(num_processes: int, axes: dict[str, int], num_local: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mesh_over_processes(num_processes, axes, NAMES[:num_local])


def test_each_part_of_each_replica_has_one_owner() -> None:
    """Every mesh is either refused, or its coordinates are divided equally among all processes."""
    for num_processes, num_local in itertools.product([1, 2, 4], [1, 2, 4]):
        total = num_processes * num_local
        for sizes in itertools.product([1, 2, 4, 8], repeat=3):
            if sizes[0] * sizes[1] * sizes[2] != total:
                continue
            mesh = mesh_over_processes(
                num_processes, dict(zip(("data", "pipe", "tensor"), sizes, strict=True)), NAMES[:num_local]
            )
            seen = []
            for rank in range(num_processes):
                grid, parts = local_grid(mesh, rank), owned_parts(mesh, rank)
                assert len(grid) * len(parts) == num_local
                # A process with several replicas has whole replicas.
                assert len(grid) == 1 or len(parts) == sizes[1] * sizes[2]
                first = mesh.position(mesh.local_indices(rank)[0], "data")
                seen += [(first + replica, part) for replica in range(len(grid)) for part in parts]
            assert sorted(seen) == list(itertools.product(range(sizes[0]), range(sizes[1] * sizes[2])))
            assert spans_processes(mesh) == (num_local < sizes[1] * sizes[2])
            assert process_mesh(mesh, "CPU:0").ranks == tuple(range(num_processes))
