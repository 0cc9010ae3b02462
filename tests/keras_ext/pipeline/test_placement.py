"""A stage's variables and ops, forward and backward, are on its device: in the graph, and in a profile."""

from __future__ import annotations

import collections
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from keras_ext.pipeline.executor import MOST_CALLS_IN_LINE
from strategies._tf_internals import tf_convert
from tests.keras_ext.pipeline.ops_of_steps import CALLS, Node, nodes_of
from tests.keras_ext.pipeline.test_model import normalizing
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.processes import Programs, python
from tests.strategies.parity.harness import features, labels, vectors

L = keras.layers

#: The activation of each layer; each has its own op for its gradient.
ACTIVATIONS = ("tanh", "elu", "softsign", "selu")
KINDS = ("Tanh", "Elu", "Softsign", "Selu")

#: The mesh, and the number of micro-batches: few, or enough that stages become functions in the graph.
CASES: Mapping[str, tuple[Mapping[str, int], int]] = {
    "pipe=4": ({"pipe": 4}, 3),
    "pipe=4, functions": ({"pipe": 4}, 8),
    "data=2,pipe=2,tensor=2": ({"data": 2, "pipe": 2, "tensor": 2}, 2),
    "data=2,pipe=2,tensor=2, functions": ({"data": 2, "pipe": 2, "tensor": 2}, 13),
}


def unlike(axes: Mapping[str, int], num_microbatches: int) -> Any:
    """Returns a model in which no two layers compute the same."""
    layers = [L.Dense(8, activation, name=f"unlike_{k}") for k, activation in enumerate(ACTIVATIONS)]
    model: Any = keras.Sequential([keras.Input((6,)), *layers])
    with mesh_strategy(axes).scope():
        if "tensor" in axes:
            model = keras_ext.parallelize(model, {f"unlike_{k}": "row" if k % 2 else "column" for k in range(4)})
        model = keras_ext.PipelineModel(model, num_microbatches=num_microbatches, partition="uniform")
        model.compile("adam", "mse")
    return model


def devices_of(stage: int, axes: Mapping[str, int], replica: int | None = None) -> set[str]:
    """Returns the devices of a stage, in one replica or in all."""
    replicas = range(axes.get("data", 1)) if replica is None else [replica]
    shards = axes.get("tensor", 1)
    first = [(one * axes["pipe"] + stage) * shards for one in replicas]
    return {f"CPU:{start + shard}" for start in first for shard in range(shards)}


def expected_of(node: Node, axes: Mapping[str, int]) -> set[str]:
    """Returns the devices on which a node of a layer may be."""
    [layer] = set(re.findall(r"unlike_(\d)", node.name))
    names = node.name if node.call is None else node.call.name
    return devices_of(int(layer) * axes["pipe"] // 4, axes, int("replica_1" in names))


def is_of_layer(node: Node) -> bool:
    # The names are unique among all tests: a worker may still run the graphs of an earlier test.
    return has_layer(node.name) and node.op not in ("NoOp", "Const")


def has_layer(name: str) -> bool:
    return re.search(r"unlike_\d", name) is not None


@pytest.mark.parametrize("num_microbatches", [2, 9], ids=["in line", "functions"])
def test_variables_slots_and_ops_are_on_the_device_of_their_stage(num_microbatches: int) -> None:
    assert (3 * num_microbatches > MOST_CALLS_IN_LINE) == (num_microbatches == 9)
    strategy = mesh_strategy({"pipe": 3})
    with strategy.scope():
        model = keras_ext.PipelineModel(normalizing(), num_microbatches=num_microbatches, partition=["second", "third"])
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(vectors(), labels(), verbose=0)
    place = {v.path: v.value.device[-5:] for v in model.variables}
    names = [f"CPU:{k}" for k in range(3)]
    for layer, device in zip(model.layers[1:], [0, 0, 1, 1, 1, 2], strict=True):
        assert {place[v.path] for v in layer.variables} <= {names[device]}, layer.name
    for slots in (model.optimizer._momentums, model.optimizer._velocities):
        for slot, variable in zip(slots, model.trainable_variables, strict=True):
            assert slot.value.device == variable.value.device

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.run(model.train_step, args=((x, y),))

    nodes = nodes_of(step.get_concrete_function(tf.constant(vectors()[:18]), tf.constant(labels()[:18])))
    # One forward and two backward per dense layer and micro-batch; nobody uses the gradient of the first one's inputs.
    products = collections.Counter(node.device for node in nodes if node.op == "MatMul")
    assert products == dict.fromkeys(names, 3 * num_microbatches)
    if num_microbatches == 9:
        assert {node.call is None for node in nodes if node.op == "MatMul"} == {False}
        calls = collections.Counter(node.device for node in nodes if node.op in CALLS)
        assert calls == dict.fromkeys(names, 2 * num_microbatches)
        assert [node for node in nodes if node.call is not None and node.device != node.call.device] == []


@pytest.mark.parametrize(("axes", "num_microbatches"), CASES.values(), ids=CASES)
def test_variables_slots_and_ops_are_in_their_replica_and_stage(axes: Any, num_microbatches: int) -> None:
    model = unlike(axes, num_microbatches)
    strategy = model.distribute_strategy
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    for variable in [*model.trainable_variables, *model.optimizer._momentums, *model.optimizer._velocities]:
        [layer] = re.findall(r"unlike_(\d)", variable.path)
        held = {each.device[-5:] for each in strategy.experimental_local_results(variable.value)}
        assert held <= devices_of(int(layer) * axes["pipe"] // 4, axes), variable.path
        assert len(held) == axes.get("data", 1)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.run(model.train_step, args=((x, y),))

    x, y = (tf.constant(features(2 * num_microbatches, width)) for width in (6, 8))
    nodes = nodes_of(step.get_concrete_function(x, y))
    of_layers = [node for node in nodes if is_of_layer(node) and node.device]
    assert [node for node in of_layers if node.device not in expected_of(node, axes)] == []
    products = [node for node in of_layers if node.op == "MatMul"]
    assert {node.call is None for node in products} == {axes["pipe"] * num_microbatches <= MOST_CALLS_IN_LINE}
    # For each layer's shard in the stage and each micro-batch, one forward and two backward.
    count = collections.Counter(node.device for node in products)
    num_devices = int(np.prod(list(axes.values())))
    assert count == {f"CPU:{i}": 3 * num_microbatches * 4 // axes["pipe"] for i in range(num_devices)}


def test_autograph_converts_the_function_of_the_program_only(monkeypatch: pytest.MonkeyPatch) -> None:
    autograph: Any = sys.modules[tf_convert.__module__]
    convert, converted = autograph._convert_actual, []

    def noted(entity: Any, context: Any) -> Any:
        converted.append(f"{entity.__module__}.{entity.__qualname__}")
        return convert(entity, context)

    monkeypatch.setattr(autograph, "_convert_actual", noted)
    model = unlike({"pipe": 2}, 2)

    @tf.function
    def steps(*batch: Any) -> Any:
        run = model.distribute_strategy.run
        return [run(method, args=(batch,)) for method in (model.train_step, model.test_step, model.predict_step)]

    steps.get_concrete_function(tf.constant(features(4, 6)), tf.constant(features(4, 8)))
    assert {name.partition(".")[0] for name in converted} == {"tests"}


# Nodes of functions have the same names in all replicas: a profile does not distinguish them.
PROFILED = [name for name in CASES if not ("functions" in name and "data" in name)]


@pytest.mark.parametrize("case", PROFILED)
def test_by_a_profile_each_op_ran_on_the_device_of_its_stage(case: str, tmp_path: pathlib.Path) -> None:
    # In a process of its own: a profile contains each program that XLA has compiled since the process started.
    program = pathlib.Path(__file__).with_name("placement_by_profile.py")
    with Programs(tmp_path, [python(str(program), case, str(tmp_path / "profile"))]) as programs:
        assert programs.wait(250) == [0], programs.output()
