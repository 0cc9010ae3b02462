"""The plan of a model that is split, or cut into stages, equals the report of the model once made."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Mapping
from typing import Any

import keras
import pytest

import keras_ext
import strategies
from strategies.engine.strategy import Sharded

# From Keras, about layers without `quantize`.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

WIDTH, LENGTH = 64, 16


def transformer(width: int = WIDTH, num_blocks: int = 2) -> keras.Model:
    x = ids = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(512, width)(x)
    for _ in range(num_blocks):
        y = keras.layers.LayerNormalization()(x)
        x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)])
        y = keras.layers.Dense(4 * width, "gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(width)(y)])
    return keras.Model(ids, keras.layers.Dense(512)(x))


def adapted(model: keras.Model) -> keras.Model:
    """Freezes all but the adapters of kernels."""
    for layer in model._flatten_layers(include_self=False):
        layer.trainable = False
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)):
            layer.trainable = True
            layer.enable_lora(4)
            if layer.bias is not None:
                layer.bias.trainable = False
    return model


def quantized(model: keras.Model) -> keras.Model:
    model.quantize("int8")
    return model


MODELS: dict[str, Callable[[], keras.Model]] = {
    "full": transformer,
    "LoRA": lambda: adapted(transformer()),
    "QLoRA": lambda: adapted(quantized(transformer())),
}


def compiled(model: keras.Model) -> keras.Model:
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def report_of(
    make: Callable[[], keras.Model], mesh: Mapping[str, int], shard: Sharded = None, **arguments: Any
) -> keras_ext.MemoryReport:
    devices = [f"CPU:{i}" for i in range(math.prod(mesh.values()))]
    # Under the strategy, the weights of the whole model would share units with those of the first device.
    model = make()
    with strategies.MirroredStrategy(devices, mesh=mesh, shard=shard).scope():
        if mesh.get("tensor", 1) > 1:
            model = keras_ext.parallelize(model)
        if mesh.get("pipe", 1) > 1:
            model = keras_ext.PipelineModel(model, partition="parameters", **arguments)
        model = compiled(model)
        model.optimizer.build(model.trainable_variables)
    return keras_ext.memory_report(model)


CASES: list[tuple[str, dict[str, int], Sharded]] = [
    ("full", {"data": 2, "tensor": 2}, "weights"),
    ("LoRA", {"data": 2, "pipe": 2}, "optimizer"),
    ("QLoRA", {"data": 2, "pipe": 2}, "weights"),
]
OTHERS: list[tuple[str, dict[str, int], Sharded]] = [
    ("full", {"tensor": 2}, None),
    ("full", {"pipe": 2}, None),
    ("full", {"data": 2, "pipe": 2}, "weights"),
    ("full", {"data": 2, "pipe": 2, "tensor": 2}, "optimizer"),
    ("LoRA", {"data": 2, "tensor": 2}, "weights"),
    ("QLoRA", {"data": 2, "tensor": 2}, None),
]


@pytest.mark.parametrize(
    ("name", "mesh", "shard"),
    [*CASES, *(pytest.param(*each, marks=pytest.mark.parity_all) for each in OTHERS)],
    ids=str,
)
def test_a_plan_is_what_is_reported(name: str, mesh: dict[str, int], shard: Sharded) -> None:
    plan = keras_ext.memory_plan(lambda: compiled(MODELS[name]()), batch_size=8, mesh=mesh, shard=shard)
    report = report_of(MODELS[name], mesh, shard)
    fullest = max(report.together, key=lambda device: report.together[device])
    found = [kind.get(fullest, 0) for kind in (report.weights, report.gradients, report.slots, report.gathered)]
    assert [plan.weights, plan.gradients, plan.optimizer, plan.gathered] == pytest.approx(found, rel=0.01)


def small(*sizes: int) -> keras.Model:
    layers = [keras.layers.Dense(size, "relu") for size in sizes]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("sgd", "mse")
    return model


def test_the_table_names_the_mesh() -> None:
    plan = keras_ext.memory_plan(lambda: small(16, 8), batch_size=8, mesh={"data": -1, "tensor": 2}, num_devices=4)
    assert list(plan.rows) == [
        "one device",
        "data=2, tensor=2",
        'data=2, tensor=2, shard="optimizer"',
        'data=2, tensor=2, shard="weights"',
    ]
    # Half of the kernels and of the first bias; the second is whole, since its layer is split by its inputs.
    assert plan.asked == "data=2, tensor=2"
    assert plan.weights == 4 * (8 * 8 + 8 + 8 * 8 + 8)
    assert plan.rows["one device"][0].weights == 2 * 4 * (8 * 8 + 8 + 8 * 8) + 4 * 8


def test_a_model_may_be_split_by_the_program() -> None:
    def make() -> keras.Model:
        split = keras_ext.parallelize(small(16, 8), {"dense": "column"})
        pipeline = keras_ext.PipelineModel(split, num_microbatches=2, partition="uniform")
        pipeline.compile("sgd", "mse")
        return pipeline

    mesh = {"pipe": 2, "tensor": 2}
    plan = keras_ext.memory_plan(make, batch_size=8, mesh=mesh)
    # The first stage: half of its layer.
    assert plan.weights == 4 * (8 * 8 + 8)
    with pytest.raises(ValueError, match=r"num_microbatches is that of the pipeline .*Received: 4, <"):
        keras_ext.memory_plan(make, batch_size=8, mesh=mesh, num_microbatches=4)


def test_activations_in_pieces_and_in_stages() -> None:
    plan = keras_ext.memory_plan(lambda: small(16, 8), batch_size=10, mesh={"tensor": 2})
    # A piece of the first layer's output, and all of the second's.
    assert plan.activations == 4 * 10 * (8 + 8)
    plan = keras_ext.memory_plan(lambda: small(16, 4), batch_size=8, mesh={"pipe": 2}, num_microbatches=2)
    # The first stage holds both micro-batches.
    assert plan.activations == 4 * 4 * 2 * 16
    plan = keras_ext.memory_plan(lambda: small(4, 64), batch_size=8, mesh={"pipe": 2}, num_microbatches=2)
    # The second stage holds one, with the tensor that it receives.
    assert plan.activations == 4 * 4 * (4 + 64)


def test_inputs_of_any_length() -> None:
    def make() -> keras.Model:
        ids = keras.Input((None,), dtype="int32")
        model = keras.Model(ids, keras.layers.Embedding(7, 4)(ids))
        model.compile("sgd", "mse")
        return model

    assert keras_ext.memory_plan(make, batch_size=2, num_devices=1, sequence_length=5).activations == 4 * 2 * 5 * 4


def test_a_large_quantized_model_takes_no_memory() -> None:
    def make() -> keras.Model:
        layers = [keras.layers.Dense(2**16, use_bias=False) for _ in range(4)]
        model = keras.Sequential([keras.Input((2**16,)), *layers])
        model.quantize("int8")
        for layer in layers:
            layer.enable_lora(1)
        model.compile("adam", "mse")
        return model

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = keras_ext.memory_plan(make, batch_size=1, num_devices=1)
    # In KiB: a single kernel has 4 GiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    # Kernels, their scales, and two adapters.
    assert plan.weights == 4 * (2**32 + 4 * 2**16 + 2 * 4 * 2**16)
    assert plan.gradients == 4 * 2 * 4 * 2**16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"product of the sizes of the mesh\. Received: num_devices=None, mesh=None\."),
        ({"mesh": {"data": -1}}, r"Received: num_devices=None, mesh=\{'data': -1\}\."),
        ({"mesh": {"tensor": 3}, "num_devices": 4}, r"Received: 4\. Nearest sizes that fit"),
        (
            {"mesh": {"data": 2, "expert": 2}, "shard": "optimizer", "shard_size": 2},
            r"leave shard_size out\. Received: shard_size=2, mesh with expert=2\.",
        ),
        ({"mesh": {"data": 2}, "num_microbatches": 2}, r"num_microbatches is that of the pipeline"),
        ({"mesh": {"tensor": 2}, "sequence_length": 0}, r"sequence_length is .*Received: sequence_length=0\."),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        keras_ext.memory_plan(lambda: small(16, 8), batch_size=8, **arguments)
