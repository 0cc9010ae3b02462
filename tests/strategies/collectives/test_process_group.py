"""Groups of processes along an axis. Real exchanges are tested in `contract.py` and by every parity case."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from strategies.collectives import process_group
from strategies.collectives.process_group import ProcessGroup
from strategies.topology.mesh import DeviceMesh


def collectives(index: int | tuple[int, ...], calls: list[Any]) -> Any:
    """Returns fake collectives of four processes, two pipelines of two stages; sums are recorded and doubled."""

    def all_reduce_many(values: Sequence[Sequence[tf.Tensor]], axis: str) -> list[list[tf.Tensor]]:
        calls.append((axis, *(len(own) for own in values)))
        return [[2 * sum(those) for those in zip(*values, strict=True)] for _ in values]

    mesh = DeviceMesh.from_processes(4, {"data": 2, "pipe": 2})
    indices = index if isinstance(index, tuple) else (index,)
    return types.SimpleNamespace(mesh=mesh, local_indices=indices, all_reduce_many=all_reduce_many)


def test_counts_and_sums_along_its_axis_only() -> None:
    calls: list[Any] = []
    for axis, rank in (("data", 1), ("pipe", 0)):
        group = ProcessGroup(collectives(2, calls), axis=axis)
        assert (group.rank, group.num_processes) == (rank, 2)
        assert [float(total) for total in group.sum([tf.constant(1.0), tf.constant(2.0)])] == [2.0, 4.0]
    assert calls == [("data", 2), ("pipe", 2)]


def test_large_values_travel_apart() -> None:
    calls: list[Any] = []
    ProcessGroup(collectives(0, calls), bucket_bytes=8).sum([tf.ones([2]), tf.ones([]), tf.ones([2], tf.int32)])
    assert sorted(count for _, count in calls) == [1, 1, 1]


def test_a_value_is_broadcast_in_messages_of_a_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def broadcast(values: Sequence[tf.Tensor], axis: str, root: int, differentiable: bool) -> list[tf.Tensor]:
        assert (axis, root, differentiable) == ("data", 1, False)
        sizes.append(values[0].shape.num_elements())
        return [2 * each for each in values]

    members = collectives(0, [])
    members.broadcast = broadcast
    monkeypatch.setattr(process_group, "MAX_MESSAGE_BYTES", 16)
    received = ProcessGroup(members).broadcast(tf.reshape(tf.range(10), [5, 2]), 1)
    assert received.numpy().tolist() == [[0, 2], [4, 6], [8, 10], [12, 14], [16, 18]]
    assert sizes == [4, 4, 2]
    ProcessGroup(members).broadcast(tf.constant(3.0), 1)
    assert sizes[3:] == [1]


def test_maxima_travel_together_by_dtype() -> None:
    sent: list[Any] = []

    def all_reduce(values: Sequence[tf.Tensor], axis: str, op: str, differentiable: bool) -> list[tf.Tensor]:
        assert (axis, op, differentiable) == ("data", "max", False)
        sent.append(values[0].shape.num_elements())
        return [each + 1 for each in values]

    members = collectives(0, [])
    members.all_reduce = all_reduce
    given = [tf.zeros([2, 3]), tf.zeros([], tf.float16), tf.constant(4.0)]
    found = ProcessGroup(members).maximum(given)
    assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in given]
    assert [float(tf.reduce_max(each)) for each in found] == [1.0, 1.0, 5.0]
    assert sent == [7, 1]
    assert ProcessGroup(members).maximum([]) == []


def test_fused_reductions_join_the_last_values() -> None:
    calls: list[Any] = []
    group = ProcessGroup(collectives(0, calls), bucket_bytes=8)
    fused = [tf.constant(3.0), tf.constant([4, 5])]
    first, second, *fused_sums = group.sum([tf.ones([2]), tf.ones([2])], fused)
    assert (first.numpy().tolist(), second.numpy().tolist()) == ([2.0, 2.0], [2.0, 2.0])
    assert [total.numpy().tolist() for total in fused_sums] == [6.0, [8, 10]]
    # The second value; the first value fused with the small reduction of its dtype; the other small reduction.
    assert [count for _, count in calls] == [1, 2, 1]
    assert [float(total) for total in group.sum_gradients([], fused=fused[:1])] == [6.0]


def test_fused_reductions_are_not_compressed() -> None:
    calls: list[Any] = []
    members = collectives(0, calls)
    plain = members.all_reduce_many

    def all_reduce_many(values: Any, axis: str, **options: Any) -> list[list[tf.Tensor]]:
        calls.append(options)
        return list(plain(values, axis))

    members.all_reduce_many = all_reduce_many
    group = ProcessGroup(members, compression="fp16")
    calls.clear()
    assert [float(total) for total in group.sum_gradients([tf.constant(1.0)], fused=[tf.constant(2.0)])] == [2.0, 4.0]
    assert calls == [{"compression": "fp16"}, ("data", 1), {}, ("data", 1)]


def test_terms_of_devices_are_added_between_them() -> None:
    """Two processes with two devices each."""
    calls: list[Any] = []
    members = collectives((0, 1), calls)
    members.mesh = DeviceMesh.from_processes(2, local_devices=["CPU:0", "CPU:1"])
    group = ProcessGroup(collectives(0, []), bucket_bytes=8, between_devices=members)
    assert group.joins_devices
    assert group.devices == ("CPU:0", "CPU:1")
    terms = [[tf.fill([2], 1.0), tf.fill([2], 2.0)], [tf.constant(3.0), tf.constant(4.0)]]
    fused = [[tf.constant(5), tf.constant(6)], [tf.constant(7.0), tf.constant(8.0)]]
    sums = group.sum_of_devices(terms, fused)
    assert [[total.numpy().tolist() for total in each] for each in sums] == [[[6, 6]] * 2, [14] * 2, [22] * 2, [30] * 2]
    # The second value; the first value fused with the small reduction of its dtype; the other small reduction.
    assert calls == [("data", 1, 1), ("data", 2, 2), ("data", 1, 1)]
    alone = ProcessGroup(collectives(0, []))
    assert not alone.joins_devices
    assert alone.devices == ()


def test_refuses_a_process_with_several_coordinates() -> None:
    with pytest.raises(
        ValueError, match=r"one coordinate each. Received: 2 local coordinates, in the mesh \{'data': 2"
    ):
        ProcessGroup(collectives((0, 1), []))
