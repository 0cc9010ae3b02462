"""Timelines of executed steps."""

from __future__ import annotations

import itertools
import json
import pathlib
import xml.etree.ElementTree
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from tests.keras_ext.pipeline.test_graph_partition import chain
from tests.keras_ext.pipeline.test_model import normalizing, pipelined
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.strategies.parity.harness import labels, vectors


def batches(num_rows: int = 40, size: int = 8) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((vectors()[:num_rows], labels()[:num_rows])).batch(size)


def made(axes: Any, **arguments: Any) -> Any:
    keras.utils.set_random_seed(1)
    with mesh_strategy(axes).scope():
        return pipelined(normalizing, True, partition="uniform", **arguments)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b", "zb_h1", "zb_v"])
def test_a_measured_step(schedule: str, tmp_path: pathlib.Path) -> None:
    model = made({"data": 2, "pipe": 2}, num_microbatches=4, schedule=schedule)
    path = tmp_path / "a folder" / "a timeline.svg"
    timeline = model.pipeline_timeline(batches(), path)
    assert timeline.measured
    assert timeline.device_names == ("CPU:0", "CPU:1")
    assert 0 <= timeline.bubble < 1
    order = {action: start for action, (start, _) in timeline.times.items()}
    for actions in model.schedule().devices:
        assert sorted(actions, key=order.__getitem__) == list(actions)
        for one, other in itertools.pairwise(actions):
            assert timeline.times[one][1] <= timeline.times[other][0]
    boxes = [e for e in xml.etree.ElementTree.parse(path).iter() if e.get("class") == "box"]
    events = json.loads(path.with_suffix(".json").read_text())["traceEvents"]
    assert len(boxes) == sum(event["ph"] == "X" for event in events) == len(timeline.times)


def test_everything_is_as_before() -> None:
    one, other = (made({"pipe": 2}, num_microbatches=4) for _ in range(2))
    one.pipeline_timeline(batches())
    assert one.optimizer.iterations.numpy() == 0
    for model in (one, other):
        model.fit(vectors(), labels(), shuffle=False, verbose=0)
    one.pipeline_timeline(batches())
    assert one.history.epoch == [0]
    logs = [model.fit(vectors(), labels(), shuffle=False, verbose=0).history for model in (one, other)]
    assert logs[0] == logs[1]
    for mine, theirs in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(np.array(mine), np.array(theirs))


def test_of_batches_with_fewer_rows_than_micro_batches_the_others_are_drawn() -> None:
    model = made({"pipe": 2}, num_microbatches=8)
    assert model.pipeline_timeline(batches(19, 8)).schedule.num_microbatches == 8


def test_sleeping_stages_show_their_time() -> None:
    with mesh_strategy({"pipe": 2}).scope():
        model = keras_ext.PipelineModel(
            keras.Sequential([*chain(0.02, 0.02)._layers, keras.layers.Dense(1)]),
            num_microbatches=2,
            partition=["slow_1"],
        )
        model.compile("sgd", "mse")
    timeline = model.pipeline_timeline(tf.data.Dataset.from_tensors((np.zeros((4, 4)), np.zeros((4, 1)))).repeat(4))
    forward = [end - start for action, (start, end) in timeline.times.items() if action.kind.value == "F"]
    assert len(forward) == 4
    assert min(forward) >= 0.02


def test_the_schedule_alone(tmp_path: pathlib.Path) -> None:
    model = keras_ext.PipelineModel(normalizing(), 3, num_microbatches=4, partition="uniform")
    timeline = model.pipeline_timeline(path=tmp_path / "plan.svg")
    assert not timeline.measured
    assert timeline.bubble == pytest.approx(2 / 6)
    assert (tmp_path / "plan.svg").exists()


def test_refuses() -> None:
    model = keras_ext.PipelineModel(normalizing(), 2, partition="uniform")
    with pytest.raises(ValueError, match="compile the model first"):
        model.pipeline_timeline(batches())
    with pytest.raises(ValueError, match=r"ends? in \.svg"):
        model.pipeline_timeline(path="picture.gif")
