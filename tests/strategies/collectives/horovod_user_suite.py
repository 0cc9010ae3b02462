"""A Horovod that the user's program has started, with three processes: run by `test_horovod`, never collected."""

import os

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives.horovod import HorovodCollectives, start
from strategies.topology.mesh import DeviceMesh

LINE = DeviceMesh.from_processes(3)
STAGES = DeviceMesh.from_processes(3, {"pipe": 3})


def test_it_must_run() -> None:
    with pytest.raises(ValueError, match=r"call strategies\.collectives\.horovod\.start"):
        HorovodCollectives(LINE, 0)


def test_it_serves_as_far_as_its_process_sets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.init(process_sets="dynamic")
    hvd.add_process_set([0, 1])
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS")
    assert start(LINE) == hvd.rank()
    [total] = HorovodCollectives(LINE, hvd.rank()).all_reduce([tf.ones(1)], "data")
    np.testing.assert_array_equal(total, [3])
    with pytest.raises(ValueError, match=r"sets \[\[1, 2\], \[0, 2\]\]. Do not call hvd\.init\(\) yourself"):
        start(STAGES)
    collectives = HorovodCollectives(STAGES, hvd.rank())
    with pytest.raises(ValueError, match=r"sets \[\[0, 2\]\]. Do not call hvd\.init\(\) yourself"):
        tf.function(lambda: bool(collectives.channel("pipe", 2, 0)), autograph=False)()


def test_dynamic_process_sets_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    assert start(STAGES) == hvd.rank()
    collectives = HorovodCollectives(STAGES, hvd.rank())

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        channel = collectives.channel("pipe", 2, 0)
        channel.send([tf.constant([7.0])] * (hvd.rank() == 2))
        return channel.recv([[1]] * (hvd.rank() == 0), tf.float32)

    np.testing.assert_array_equal(step(), [[7]] if hvd.rank() == 0 else [])


def test_a_second_mesh_needs_no_second_start() -> None:
    assert os.environ["HOROVOD_SIZE"] == "3"
    assert start(LINE, STAGES) == hvd.rank()
