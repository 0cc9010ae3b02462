"""Profiles of TensorFlow, as operations; a GPU's from a file made by hand."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from strategies.tracing import profile
from strategies.tracing.events import INPUT, Operation


def test_a_function_with_a_call_and_a_dataset(tmp_path: Path) -> None:
    @tf.function(experimental_attributes={"_noinline": True})
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, x, name="inner_product")

    @tf.function
    def outer(iterator: tf.data.Iterator) -> tf.Tensor:
        with tf.name_scope("outer_scope"):
            return tf.reduce_sum(inner(next(iterator)), name="total")

    iterator = iter(tf.data.Dataset.from_tensors(tf.ones([64, 64])).repeat())
    outer(iterator)
    began = time.time_ns()
    tf.profiler.experimental.start(str(tmp_path))
    for _ in range(10):
        outer(iterator)
    tf.profiler.experimental.stop()
    ended = time.time_ns()
    found = profile.read(tmp_path)
    assert all(began <= each.begin <= each.end <= ended for each in found)
    products = [each for each in found if each.name == "inner_product"]
    totals = [each for each in found if each.name == "outer_scope/total"]
    assert [len(products), len(totals)] == [10, 10]
    assert {(each.kind, each.is_call) for each in totals} == {("Sum", False)}
    calls = sorted((each for each in found if each.kind == "PartitionedCall"), key=lambda each: each.begin)
    # TensorFlow records a call when the thread that has begun it continues: on a busy machine, that may be after the
    # end of the last step, and of the profile.
    assert len(calls) in (9, 10)
    for call in calls:
        assert call.is_call
        assert call.name.startswith("outer_scope/")
        product = min((each for each in products if each.begin >= call.begin), key=lambda each: each.begin)
        assert product.end <= call.end
    assert [each.kind for each in found if "IteratorGetNextOp" in each.name] == [INPUT] * 10


def test_a_call_whose_end_is_not_recorded(tmp_path: Path) -> None:
    """It ends at the latest with the profile."""
    space = xplane_pb2.XSpace()
    environment = space.planes.add(name="Task Environment")
    environment.stat_metadata[1].name = "profile_start_time"
    environment.stats.add(metadata_id=1, uint64_value=1000)
    plane = space.planes.add(name="/host:CPU")
    for number, name in enumerate(("name", "kernel_type", "step_id"), start=1):
        plane.stat_metadata[number].name = name
    plane.event_metadata[1].name = "ExecutorState::ProcessAsync::Start"
    plane.event_metadata[2].name = "ExecutorState::ProcessAsync::Done"
    plane.event_metadata[3].name = "x:MatMul"
    line = plane.lines.add(timestamp_ns=0)
    for kind, step, at in ((1, 7, 10), (1, 8, 40), (2, 7, 30)):
        event = line.events.add(metadata_id=kind, offset_ps=1000 * at)
        event.stats.add(metadata_id=1, str_value="f/PartitionedCall")
        event.stats.add(metadata_id=2, str_value="PartitionedCall")
        event.stats.add(metadata_id=3, int64_value=step)
    line.events.add(metadata_id=3, offset_ps=50_000, duration_ps=5000)
    calls = [each for each in profile.read(_written(space, tmp_path)) if each.is_call]
    assert sorted((each.begin, each.end) for each in calls) == [(1010, 1030), (1040, 1055)]


def test_a_dropped_profile_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dropped = profile.Profile()
    assert list(tmp_path.glob("strategies_trace_*"))
    with pytest.raises(tf.errors.AlreadyExistsError):
        profile.Profile()
    del dropped
    assert not list(tmp_path.glob("strategies_trace_*"))
    own = profile.Profile()
    tf.function(lambda: tf.sqrt(tf.random.uniform([]), name="root"))()
    assert "root" in {each.name for each in own.operations()}
    assert not list(tmp_path.glob("strategies_trace_*"))


def test_kernels_of_a_gpu(tmp_path: Path) -> None:
    """The layout is that of TensorFlow's sources; no GPU has written one for this test."""
    space = xplane_pb2.XSpace()
    environment = space.planes.add(name="Task Environment")
    environment.stat_metadata[1].name = "profile_start_time"
    environment.stats.add(metadata_id=1, uint64_value=1000)
    plane = space.planes.add(name="/device:GPU:1")
    plane.stat_metadata[1].name, plane.stat_metadata[2].name = "tf_op", "dense/MatMul:MatMul"
    plane.event_metadata[1].name = "sgemm_128"
    line = plane.lines.add(timestamp_ns=50)
    line.events.add(metadata_id=1, offset_ps=2000, duration_ps=3000).stats.add(metadata_id=1, ref_value=2)
    line.events.add(metadata_id=1, offset_ps=9000, duration_ps=3000)
    assert profile.read(_written(space, tmp_path)) == [Operation("dense/MatMul", "MatMul", 1052, 1055, device="GPU:1")]


def _written(space: Any, path: Path) -> Path:
    """Writes a profile as TensorFlow does; returns the folder that it was given."""
    folder = path / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(space.SerializeToString())
    return path
