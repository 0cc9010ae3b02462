"""The plan of a model that is split, or cut into stages, equals the report of the model once made."""

from __future__ import annotations

import math
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
            for each in (layer.bias,):
                if each is not None:
                    each.trainable = False
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


CASES = [
    ("full", {"tensor": 2}, None),
    ("full", {"data": 2, "tensor": 2}, "weights"),
    ("full", {"pipe": 2}, None),
    ("full", {"data": 2, "pipe": 2}, "weights"),
    ("full", {"data": 2, "pipe": 2, "tensor": 2}, "optimizer"),
    ("LoRA", {"data": 2, "tensor": 2}, "weights"),
    ("LoRA", {"data": 2, "pipe": 2}, "optimizer"),
    ("QLoRA", {"data": 2, "tensor": 2}, None),
    ("QLoRA", {"data": 2, "pipe": 2}, "weights"),
]


@pytest.mark.parametrize(("name", "mesh", "shard"), CASES, ids=str)
def test_a_plan_is_what_is_reported(name: str, mesh: dict[str, int], shard: Sharded) -> None:
    plan = keras_ext.memory_plan(lambda: compiled(MODELS[name]()), batch_size=8, mesh=mesh, shard=shard)
    report = report_of(MODELS[name], mesh, shard)
    fullest = max(report.together, key=lambda device: report.together[device])
    found = [kind.get(fullest, 0) for kind in (report.weights, report.gradients, report.slots, report.gathered)]
    print(plan)
    print(report)
    assert [plan.weights, plan.gradients, plan.optimizer, plan.gathered] == pytest.approx(found, rel=0.01)
