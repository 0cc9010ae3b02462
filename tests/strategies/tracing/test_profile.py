"""Profiles of TensorFlow, as operations; a GPU's from a file made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from strategies.tracing import profile
from strategies.tracing.events import Operation
from tests.processes import Programs, python


def test_a_function_with_a_call_and_a_dataset(tmp_path: Path) -> None:
    # A call is recorded when the thread that has begun it continues. If it is the only thread, that is before the step
    # ends, and with it the profile.
    command = python(str(Path(__file__).with_name("profiled_calls.py")), str(tmp_path / "profile"))
    with Programs(tmp_path, [command], [{"TF_NUM_INTEROP_THREADS": "1"}]) as programs:
        assert programs.wait(250) == [0], programs.output()


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
