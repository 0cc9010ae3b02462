"""The mesh, as literal tables and as properties over all small grids."""

import itertools

import numpy as np
import pytest

from strategies.topology.mesh import DeviceMesh

NAMES = [f"CPU:{i}" for i in range(8)]


def test_row_major_table() -> None:
    mesh = DeviceMesh.from_devices(NAMES, {"data": 2, "pipe": 2, "tensor": -1})
    assert mesh.axis_sizes == (2, 2, 2)
    assert mesh.coordinates(5) == {"data": 1, "pipe": 0, "tensor": 1}
    assert mesh.groups("data") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert mesh.groups("pipe") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert mesh.groups("tensor") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.grid() == (("CPU:0", "CPU:1", "CPU:2", "CPU:3"), ("CPU:4", "CPU:5", "CPU:6", "CPU:7"))
    assert mesh.replica(1) == ("CPU:4", "CPU:5", "CPU:6", "CPU:7")
    assert mesh.num_replicas == 2
    assert mesh.index_of("CPU:6") == 6


def test_axis_order_is_the_order_asked_for() -> None:
    mesh = DeviceMesh.from_devices(NAMES[:4], {"tensor": 2, "data": 2})
    assert mesh.groups("data") == ((0, 1), (2, 3))
    assert mesh.grid() == (("CPU:0", "CPU:2"), ("CPU:1", "CPU:3"))


def test_replicas_are_along_the_expert_axis_too() -> None:
    mesh = DeviceMesh.from_devices(NAMES, {"data": 2, "expert": 2, "tensor": 2})
    assert mesh.grid() == tuple((f"CPU:{i}", f"CPU:{i + 1}") for i in (0, 2, 4, 6))
    assert mesh.replica(2) == ("CPU:4", "CPU:5")
    assert DeviceMesh.from_devices(NAMES[:4], {"tensor": 2, "expert": 2}).replica(1) == ("CPU:1", "CPU:3")


def test_no_axes_means_data() -> None:
    assert DeviceMesh.from_devices(NAMES).axes == {"data": 8}
    assert DeviceMesh.from_devices(["one"], {}).axes == {"data": 1}


def test_experts_are_a_part_of_data() -> None:
    mesh = DeviceMesh.from_devices(NAMES, {"data": 2, "expert": 2, "tensor": 2})
    assert mesh.num_replicas == 4
    merged = mesh.with_experts_as_data()
    assert merged.axes == {"data": 4, "tensor": 2}
    assert merged.devices == mesh.devices
    # Replicas that share experts are next to each other.
    assert [merged.position(i, "data") for i in mesh.group(0, "expert")] == [0, 1]
    assert DeviceMesh.from_devices(NAMES, {"expert": 8}).with_experts_as_data().axes == {"data": 8}
    assert merged.with_experts_as_data() is merged
    with pytest.raises(ValueError, match=r"name it directly after 'data'.*Received: \{'expert': 2, 'data': 4\}"):
        DeviceMesh.from_devices(NAMES, {"expert": 2, "data": 4}).with_experts_as_data()


def test_axes_in_words() -> None:
    assert DeviceMesh.axes_of("data=-1, pipe=2,tensor=4") == {"data": -1, "pipe": 2, "tensor": 4}
    with pytest.raises(ValueError, match=r"expected axes of .* received 'rows=2'"):
        DeviceMesh.axes_of("rows=2")


def test_neighbours() -> None:
    mesh = DeviceMesh.from_devices(NAMES[:6], {"data": 2, "pipe": 3})
    assert [mesh.neighbour(i, "pipe") for i in range(6)] == [1, 2, None, 4, 5, None]
    assert [mesh.neighbour(i, "pipe", -1) for i in range(6)] == [None, 0, 1, None, 3, 4]
    assert [mesh.neighbour(i, "pipe", 1, ring=True) for i in range(6)] == [1, 2, 0, 4, 5, 3]
    assert [mesh.neighbour(i, "pipe", -1, ring=True) for i in range(6)] == [2, 0, 1, 5, 3, 4]
    assert mesh.neighbour(0, "tensor") is None
    assert mesh.neighbour(0, "tensor", ring=True) == 0


def test_processes_own_boxes() -> None:
    mesh = DeviceMesh.from_processes(2, {"data": 2, "tensor": 4}, local_devices=NAMES[:4])
    assert mesh.num_processes == 2
    assert mesh.ranks == (0, 0, 0, 0, 1, 1, 1, 1)
    assert mesh.local_indices(1) == (4, 5, 6, 7)
    assert mesh.box(1) == {"data": range(1, 2), "tensor": range(4)}
    across = DeviceMesh.from_processes(4, {"pipe": 2, "tensor": 4}, local_devices=NAMES[:2])
    assert across.box(1) == {"pipe": range(1), "tensor": range(2, 4)}
    assert across.index_of("CPU:1", rank=3) == 7
    assert DeviceMesh.from_processes(3).local_indices(2) == (2,)


def test_properties_of_all_small_grids() -> None:
    for sizes in itertools.product([1, 2, 3], repeat=3):
        count = int(np.prod(sizes))
        for order in itertools.permutations(["data", "pipe", "tensor"]):
            mesh = DeviceMesh.from_devices([str(i) for i in range(count)], dict(zip(order, sizes, strict=True)))
            assert [mesh.index(mesh.coordinates(i)) for i in range(count)] == list(range(count))
            for axis in order:
                groups = mesh.groups(axis)
                assert sorted(i for group in groups for i in group) == list(range(count))
                assert [g[0] for g in groups] == sorted(g[0] for g in groups)
                for group in groups:
                    assert [mesh.position(i, axis) for i in group] == list(range(mesh.axis_size(axis)))
                    assert all(mesh.group(i, axis) == group for i in group)
            assert sorted(d for row in mesh.grid() for d in row) == sorted(mesh.devices)


def test_every_process_owns_a_box_or_is_refused() -> None:
    for sizes in itertools.product([1, 2, 3, 4], repeat=2):
        count = sizes[0] * sizes[1]
        for num_local in (n for n in range(1, count + 1) if count % n == 0):
            axes = {"data": sizes[0], "tensor": sizes[1]}
            fits = num_local % sizes[1] == 0 or sizes[1] % num_local == 0
            if not fits:
                with pytest.raises(ValueError, match="box"):
                    DeviceMesh.from_processes(
                        count // num_local, axes, local_devices=[str(i) for i in range(num_local)]
                    )
                continue
            mesh = DeviceMesh.from_processes(count // num_local, axes, local_devices=[str(i) for i in range(num_local)])
            for rank in range(mesh.num_processes):
                box = mesh.box(rank)
                inside = [
                    mesh.index({"data": d, "tensor": t}) for d, t in itertools.product(box["data"], box["tensor"])
                ]
                assert tuple(sorted(inside)) == mesh.local_indices(rank)


def test_mesh_is_a_value() -> None:
    one, other = (DeviceMesh.from_devices(NAMES[:4], {"data": -1, "pipe": 2}) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


def test_refused_devices_and_coordinates() -> None:
    with pytest.raises(ValueError, match="Received: no devices"):
        DeviceMesh.from_devices([])
    with pytest.raises(ValueError, match="Received: the string"):
        DeviceMesh.from_devices("CPU:0")
    with pytest.raises(ValueError, match="'a' of process 0 is named 2 times"):
        DeviceMesh.from_devices(["a", "b", "a"])
    with pytest.raises(ValueError, match="num_processes=0"):
        DeviceMesh.from_processes(0)
    mesh = DeviceMesh.from_devices(NAMES[:4], {"data": 2, "pipe": 2})
    with pytest.raises(ValueError, match=r"flat indices 0 to 3\. Received: 4"):
        mesh.coordinates(4)
    with pytest.raises(ValueError, match="Position 2 is outside axis 'data' of size 2"):
        mesh.index({"data": 2, "pipe": 0})
    with pytest.raises(ValueError, match=r"Add a position on \['pipe'\]"):
        mesh.index({"data": 1})
    with pytest.raises(ValueError, match="not in the mesh"):
        mesh.index_of("GPU:0")
    with pytest.raises(ValueError, match=r"replicas 0 to 1\. Received: 2"):
        mesh.replica(2)
    with pytest.raises(ValueError, match="Process 1 owns no coordinate"):
        mesh.local_indices(1)
    with pytest.raises(ValueError, match="Unknown mesh axis"):
        mesh.groups("row")
    with pytest.raises(ValueError, match="each axis once"):
        DeviceMesh(("data", "data"), (2, 1), (0, 0), ("a", "b"))
    with pytest.raises(ValueError, match="needs a rank and a device"):
        DeviceMesh(("data",), (2,), (0,), ("a",))
