"""The replicas of a job as one process sees them, and the properties of a step."""

from __future__ import annotations

import types
from typing import Any, cast

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.steps.context import TrainerCall, called_by_trainer, trainer_call
from strategies.steps.layout import DataParallelGroup, ReplicaLayout, local_values

CPUS = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def layout(rank: int = 0, num_processes: int = 1) -> ReplicaLayout:
    """Returns two local replicas of two parts: parts 0 on CPU:0 and CPU:2, parts 1 on CPU:1 and CPU:3."""
    others: Any = types.SimpleNamespace(rank=rank, num_processes=num_processes)
    return ReplicaLayout(tuple(DataParallelGroup((CPUS[k], CPUS[k + 2]), others) for k in range(2)))


def on(device: str) -> tf.Tensor:
    with tf.device(device):
        return tf.constant(1.0) + 0.0


def test_counts_replicas_of_all_processes() -> None:
    alone, second = layout(), layout(rank=1, num_processes=3)
    assert (alone.num_local, alone.num_processes, alone.num_replicas, alone.first_replica) == (2, 1, 2, 0)
    assert (second.num_local, second.num_processes, second.num_replicas, second.first_replica) == (2, 3, 6, 2)
    assert alone.devices == (CPUS[0], CPUS[2])


def test_finds_the_group_of_a_value_by_its_devices() -> None:
    for part in range(2):
        assert layout().group_of(PerReplica((on(CPUS[part]), on(CPUS[part + 2])))) == part
    assert layout().group_of(PerReplica((on(CPUS[3]), on(CPUS[0])))) == 0


def test_copies_a_sum_to_all_devices_of_a_group() -> None:
    copied = layout().copied_to(1, on(CPUS[0]))
    assert [value.device for value in copied.values] == [CPUS[1], CPUS[3]]
    alone = ReplicaLayout((DataParallelGroup((CPUS[0],)),))
    assert float(alone.copied_to(0, on(CPUS[0]))) == 1.0


def test_marks_the_plain_values_of_one_replica_of_several() -> None:
    joined = cast(Any, types.SimpleNamespace(rank=0, num_processes=2))
    value = on(CPUS[0])
    [marked, nothing] = ReplicaLayout((DataParallelGroup((CPUS[0],), joined),)).per_replica([value, None])
    assert local_values(marked) == (value,)
    assert isinstance(marked, PerReplica)
    assert nothing is None
    assert layout().per_replica([value]) == [value]


def test_the_trainer_marks_its_steps_only() -> None:
    assert trainer_call() == TrainerCall(None, draws_batches=False)
    with called_by_trainer(TrainerCall("mean", draws_batches=True)):
        with called_by_trainer(TrainerCall("concat")):
            assert trainer_call().combination == "concat"
        assert trainer_call().draws_batches
    assert trainer_call().combination is None
