"""PipelineModel: the numbers of the plain model, for every schedule and mesh."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from keras_ext.pipeline import executor
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS, features, labels, vectors

L = keras.layers


def skipping() -> keras.Model:
    """Returns a model with a tensor that crosses every cut, weight and activity penalties, and a layer used twice."""
    x = keras.Input((6,))
    shared = L.Dense(8, activation="tanh", name="shared")
    first = L.Dense(8, activation="relu", kernel_regularizer="l2", name="first")(x)
    h = shared(first)
    h = L.Dense(8, activation="gelu", activity_regularizer="l2", name="middle")(h)
    h = L.Add(name="add")([shared(h), first])
    return keras.Model(x, L.Dense(3, activation="softmax", name="out")(h))


def convolutional() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(4, 3, activation="relu"),
            L.MaxPooling2D(),
            L.Conv2D(6, 3, activation="relu"),
            L.GlobalAveragePooling2D(),
            L.Dense(3, activation="softmax"),
        ]
    )


def recurrent() -> keras.Model:
    """Returns a model with masks, which cross the cuts."""
    ids = keras.Input((7,), dtype="int32")
    h = L.Embedding(11, 8, mask_zero=True, name="embedding")(ids)
    h = L.LSTM(8, return_sequences=True, name="lower")(h)
    return keras.Model(ids, L.Dense(3, activation="softmax", name="out")(L.GRU(8, name="upper")(h)))


def pipelined(make: Callable[[], Any], split: bool, clip: float | None = 0.5, **arguments: Any) -> Any:
    model = make()
    if split:
        model = keras_ext.PipelineModel(model, **arguments)
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=clip)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def sentences() -> np.ndarray:
    ids = np.random.default_rng(3).integers(1, 11, (NUM_ROWS, 7)).astype("int32")
    ids[:, 5:] = 0
    return ids


INPUTS: Mapping[Any, Callable[[], Any]] = {
    skipping: vectors,
    convolutional: lambda: features(NUM_ROWS, 8, 8, 3),
    recurrent: sentences,
}
# Batches of 14 rows, and a last one of 3: fewer rows than micro-batches.
CASES = {
    "2 stages, 1f1b": (skipping, {"pipe": 2}, {"num_microbatches": 4}),
    "4 stages, gpipe": (skipping, {"pipe": 4}, {"num_microbatches": 3, "schedule": "gpipe"}),
    "4 stages, zb_h1": (skipping, {"data": 2, "pipe": 4}, {"num_microbatches": 5, "schedule": "zb_h1"}),
    "zb_h1, loops and masks": (
        recurrent,
        {"pipe": 2},
        {"num_microbatches": 3, "partition": ["upper"], "schedule": "zb_h1", "remat": [0]},
    ),
    "6 stages, zb_v": (
        skipping,
        {"data": 2, "pipe": 3},
        {"num_microbatches": 5, "schedule": "zb_v", "partition": "uniform"},
    ),
    "v_half, loops and masks": (
        recurrent,
        {"pipe": 2},
        {"num_microbatches": 3, "schedule": "v_half", "remat": [1], "partition": "uniform"},
    ),
    "4 stages on 2 devices": (skipping, {"pipe": 2}, {"num_microbatches": 5, "schedule": "interleaved_1f1b"}),
    "replicas": (skipping, {"data": 2, "pipe": 2}, {"num_microbatches": 4}),
    "more micro-batches than rows": (skipping, {"pipe": 2}, {"num_microbatches": 16}),
    "convolutions": (convolutional, {"pipe": 2}, {"num_microbatches": 3, "partition": "uniform"}),
    "stages that are functions": (recurrent, {"data": 2, "pipe": 4}, {"num_microbatches": 7, "partition": "uniform"}),
    "masks": (recurrent, {"pipe": 2}, {"num_microbatches": 3, "partition": ["upper"]}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_parity_with_whole_batches(case: Any) -> None:
    make, axes, arguments = case
    compiled = functools.partial(pipelined, make, **arguments)
    assert_parity(compiled, INPUTS[make](), labels(), axes, predict=True)


def test_steps_per_execution_and_weights_of_rows() -> None:
    def make(split: bool) -> Any:
        model = pipelined(skipping, split, **({"num_microbatches": 4} if split else {}))
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5, use_ema=True),
            "sparse_categorical_crossentropy",
            weighted_metrics=["accuracy"],
            steps_per_execution=2,
        )
        return model

    weights = np.random.default_rng(0).uniform(0.5, 2, NUM_ROWS).astype("float32")
    assert_parity(make, vectors(), labels(), {"pipe": 2}, sample_weight=weights)


def test_several_inputs_and_outputs_by_name() -> None:
    def make(split: bool) -> Any:
        x, z = keras.Input((6,), name="x"), keras.Input((2,), name="z")
        h = L.Dense(8, activation="relu")(L.Concatenate()([L.Dense(6, activation="relu")(x), z]))
        outputs = {"class": L.Dense(3, activation="softmax", name="class")(h), "size": L.Dense(1, name="size")(h + 1.0)}
        model = keras.Model({"x": x, "z": z}, outputs)
        if split:
            model = keras_ext.PipelineModel(model, num_microbatches=3)
        losses = {"class": "sparse_categorical_crossentropy", "size": "mse"}
        model.compile(keras.optimizers.Adam(0.01), losses, loss_weights={"class": 1.0, "size": 0.5})
        return model

    x = {"x": vectors(), "z": features(NUM_ROWS, 2, seed=4)}
    y = {"class": labels(), "size": features(NUM_ROWS, 1, seed=5)}
    assert_parity(make, x, y, {"pipe": 2})


def accumulate(model: Any, x: Any, y: Any, number: int, steps: int) -> None:
    """Trains a plain model with each batch in `number` equal micro-batches, as one would write it by hand."""
    size = len(x) // number
    # The batch size is not known statically, as in `fit`: TensorFlow divides by a known size with other roundings.
    signature = [tf.TensorSpec((None, *x.shape[1:]), x.dtype), tf.TensorSpec((None,), y.dtype)]

    @tf.function(autograph=False, input_signature=signature)
    def step(x: Any, y: Any) -> None:
        total: list[Any] = []
        for start in range(0, size * number, size):
            own_x, own_y = (value[start : start + tf.shape(x)[0] // number] for value in (x, y))
            with tf.GradientTape() as tape:
                loss = model.compute_loss(y=own_y, y_pred=model(own_x, training=True)) * (1 / number)
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            total = [a + b for a, b in zip(total, gradients, strict=True)] if total else gradients
        model.optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))

    for _ in range(steps):
        step(x, y)


def normalizing() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(16, activation="relu"),
            L.BatchNormalization(),
            L.Dense(16, activation="relu", name="second"),
            L.Dropout(0.3, seed=3),
            L.BatchNormalization(),
            L.Dense(3, activation="softmax", name="third"),
        ]
    )


SCHEDULES = {"1": ("1f1b", 1), "2, 1f1b": ("1f1b", 2), "4, gpipe": ("gpipe", 4), "2 x 2": ("interleaved_1f1b", 2)}
SCHEDULES |= {"4, zb_h1": ("zb_h1", 4), "2 x 2, zb_v": ("zb_v", 2)}


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize("in_line", [True, False], ids=["in line", "functions"])
@pytest.mark.parametrize(("schedule", "devices"), SCHEDULES.values(), ids=SCHEDULES)
def test_to_the_bit_the_micro_batches_accumulated(
    schedule: str, devices: int, in_line: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = vectors()[:12], labels()[:12]
    keras.utils.set_random_seed(1)
    # Without clipping: on several devices, TensorFlow sums the squares of a global norm in another order.
    plain = pipelined(normalizing, False, clip=None)
    with mesh_strategy({"pipe": devices}).scope():
        split = keras_ext.PipelineModel(plain, num_microbatches=4, schedule=schedule)
        split.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    monkeypatch.setattr(executor, "MOST_CALLS_IN_LINE", 10**9 if in_line else 0)
    accumulate(plain, x, y, 4, steps=2)
    split.fit(np.concatenate([x, x]), np.concatenate([y, y]), batch_size=12, shuffle=False, verbose=0)
    for mine, theirs in zip(split.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_opens_as_the_plain_model(tmp_path: pathlib.Path) -> None:
    keras.utils.set_random_seed(1)
    with mesh_strategy({"pipe": 2}).scope():
        model = pipelined(skipping, True, num_microbatches=4)
    model.fit(vectors(), labels(), verbose=0)
    model.save(tmp_path / "a name.keras")
    plain = keras.models.load_model(tmp_path / "a name.keras")
    assert type(plain).__name__ == "Functional"
    assert [type(layer) for layer in plain.layers] == [type(layer) for layer in skipping().layers]
    # Not to the bit: some CPUs multiply matrices of other heights in another order.
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    found = model.predict(vectors(), verbose=0)
    np.testing.assert_allclose(found, plain.predict(vectors(), verbose=0), rtol=0, atol=1e-6)
    plain.fit(vectors(), labels(), shuffle=False, verbose=0)
    model.fit(vectors(), labels(), shuffle=False, verbose=0)
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def test_prints_stages_and_schedule() -> None:
    model = keras_ext.PipelineModel(skipping(), 2, num_microbatches=2, partition=["middle"])
    assert str(model.partition).splitlines()[1].split()[:4] == ["0", "2", "first", "shared"]
    assert str(model.schedule()).splitlines()[0] == "1f1b: 2 stages, 2 micro-batches"


REFUSED: dict[str, dict[str, Any]] = {
    "schedule='zigzag'": {"schedule": "zigzag"},
    "num_microbatches=0": {"num_microbatches": 0},
    "num_stages=3": {"num_stages": 3},
    "partition='time of day'": {"partition": "time of day"},
    r"partition=\['nowhere', 'out'\]": {"partition": ["nowhere", "out"]},
    r"Received: \['nowhere'\]": {"partition": ["nowhere"]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    with mesh_strategy({"pipe": 2}).scope(), pytest.raises(ValueError, match=message):
        keras_ext.PipelineModel(skipping(), **REFUSED[message])


def test_refuses_what_has_no_graph() -> None:
    with pytest.raises(ValueError, match=r"begin with a keras\.Input"):
        keras_ext.PipelineModel(keras.Sequential([L.Dense(2)]), 1)
    with pytest.raises(ValueError, match="num_stages=9"):
        keras_ext.PipelineModel(skipping(), 9)


@keras.saving.register_keras_serializable("tests")
class Holder(keras.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = L.Dense(8)

    def call(self, x: Any) -> Any:
        return self.inner(x)


class Sharing(keras.Layer):
    """Computes with a layer that another layer made."""

    def __init__(self, inner: Any) -> None:
        super().__init__(name="sharing")
        self.inner = inner

    def call(self, x: Any) -> Any:
        return self.inner(x)


def holding(split: bool) -> Any:
    model = keras.Sequential([keras.Input((6,)), Holder(name="holder"), L.Dense(3, activation="softmax")])
    if split:
        model = keras_ext.PipelineModel(keras_ext.parallelize(model), num_microbatches=2)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def test_a_custom_layer_whose_layers_are_split() -> None:
    assert_parity(holding, vectors(), labels(), {"pipe": 2, "tensor": 2}, predict=True)


def sharing(split: bool) -> Any:
    holder = Holder(name="holder")
    layers = [holder, L.Dense(3), L.Dense(6), Sharing(holder.inner), L.Dense(3, activation="softmax")]
    model = keras.Sequential([keras.Input((6,)), *layers])
    if split:
        model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def test_a_layer_that_layers_of_two_stages_hold() -> None:
    assert_parity(sharing, vectors(), labels(), {"pipe": 2}, predict=True)


def test_refuses_a_layer_that_two_stages_hold_if_one_is_made_from_its_config() -> None:
    inner = L.Dense(6, name="inner")
    layers = [L.TimeDistributed(inner, name="outer"), L.Dense(6), L.Dense(6), inner]
    plain = keras.Sequential([keras.Input((4, 6)), *layers])
    message = r"'outer' and 'inner' hold the same layer 'inner'.* stages \[0\] and \[1\]"
    with mesh_strategy({"pipe": 2}).scope(), pytest.raises(ValueError, match=message):
        keras_ext.PipelineModel(plain, partition="uniform")


def between_pieces(split: bool, partition: Any = "time") -> Any:
    x = keras.Input((6,))
    h = L.Dropout(0.0)(L.Dense(8, activation="relu", name="up")(x))
    model = keras.Model(x, L.Dense(3, activation="softmax")(L.Dense(4, name="down")(h)))
    if split:
        model = keras_ext.PipelineModel(keras_ext.parallelize(model), num_microbatches=2, partition=partition)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize("partition", [["down"], "time"], ids=str)
def test_cuts_where_a_tensor_is_in_pieces(partition: Any) -> None:
    make = functools.partial(between_pieces, partition=partition)
    assert_parity(make, vectors(), labels(), {"pipe": 2, "tensor": 2}, predict=True)
