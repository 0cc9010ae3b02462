"""Models made in unusual ways train in stages as they do in one piece, or are refused when they are made."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from tests.keras_ext.pipeline.test_model import normalizing, pipelined, skipping
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS, features, labels, vectors

L = keras.layers


def compiled(model: Any, split: bool, **arguments: Any) -> Any:
    if split:
        model = keras_ext.PipelineModel(model, **dict[str, Any](num_microbatches=3, partition="uniform") | arguments)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize("remat", [None, "all"])
def test_penalties_of_a_layer_that_is_called_in_two_stages_and_twice_in_one(remat: Any) -> None:
    def make(split: bool) -> Any:
        x = keras.Input((6,))
        shared = L.Dense(6, "tanh", kernel_regularizer="l2", activity_regularizer="l2")
        h = shared(shared(shared(x)))
        return compiled(keras.Model(x, L.Dense(3, "softmax")(h)), split, remat=remat)

    assert_parity(make, vectors(), labels(), {"data": 2, "pipe": 2}, predict=True)


class Spectrum(keras.layers.Layer):
    """The Fourier transform of each row: complex, and with a gradient."""

    def call(self, x: Any) -> Any:
        return tf.signal.fft(tf.cast(x, tf.complex64))

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, "complex64")


class LowPass(keras.layers.Layer):
    """Returns the row of a spectrum without its higher frequencies."""

    def call(self, x: Any) -> Any:
        kept = tf.constant([1, 0.5, 0.1, 0, 0.1, 0.5], tf.complex64)
        return tf.math.real(tf.signal.ifft(x * kept))

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, "float32")


@pytest.mark.parametrize("remat", [None, "all"])
def test_complex_tensors_between_stages(remat: Any) -> None:
    def make(split: bool) -> Any:
        layers = [keras.Input((6,)), L.Dense(6, "tanh"), Spectrum(autocast=False)]
        layers += [LowPass(autocast=False), L.Dense(3, "softmax")]
        return compiled(keras.Sequential(layers), split, remat=remat)

    assert_parity(make, vectors(), labels(), {"pipe": 2}, predict=True)


def test_what_was_learnt_of_data_beforehand() -> None:
    def make(split: bool) -> Any:
        first = L.Normalization()
        first.adapt(10 * vectors() + 3)
        layers = [keras.Input((6,)), first, L.Dense(8, "tanh"), L.Dense(3, "softmax")]
        if split:
            layers[1:] = [keras_ext.PipelineStage(layers[1:3], 0), keras_ext.PipelineStage(layers[3:], 1)]
        return compiled(keras.Sequential(layers), split)

    assert_parity(make, 10 * vectors() + 3, labels(), {"pipe": 2}, predict=True)


def test_a_vocabulary_that_was_learnt() -> None:
    lookup = L.StringLookup(output_mode="int")
    lookup.adapt(["a", "b", "c"])
    x = keras.Input((), dtype="string")
    plain = keras.Model(x, L.Dense(2)(L.Embedding(4, 5)(lookup(x))))
    split = keras_ext.PipelineModel(plain, 2, partition="parameters")
    words = keras.ops.convert_to_tensor(["b", "c", "z"])
    np.testing.assert_allclose(split(words), plain(words), rtol=0, atol=1e-6)


def test_a_compiled_model_and_functions_of_ones_own() -> None:
    def make(split: bool) -> Any:
        x = keras.Input((6,))
        h = L.Lambda(lambda x: 2 * x, name="twice")(L.Dense(8, "tanh")(x))
        model = keras.Model(x, L.Dense(3, "softmax")(h))
        # A loss that cannot be restored from its config; the pipeline does not need that.
        model.compile("adam", lambda y, y_pred: keras.ops.mean(y_pred))
        return compiled(model, split)

    assert_parity(make, vectors(), labels(), {"pipe": 2})


@pytest.mark.parametrize("number", [2, 13], ids=["in line", "functions"])
def test_an_optional_input(number: int) -> None:
    def make(split: bool) -> Any:
        x, z = keras.Input((6,), name="x"), keras.Input((6,), name="z", optional=True)
        h = Either(name="either")(L.Dense(6, "tanh")(x), z)
        return compiled(keras.Model({"x": x, "z": z}, L.Dense(3, "softmax")(h)), split, num_microbatches=number)

    for z in (None, features(NUM_ROWS, 6, seed=4)):
        results = []
        for split in (False, True):
            keras.utils.set_random_seed(1)
            with mesh_strategy({"pipe": 2 if split else 1}).scope():
                model = make(split)
            results.append([model.train_on_batch({"x": vectors(), "z": z}, labels()) for _ in range(3)])
        np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-6)


@keras.saving.register_keras_serializable("tests")
class Either(keras.Layer):
    def call(self, x: Any, z: Any = None) -> Any:
        return x if z is None else x + z


@pytest.mark.filterwarnings("ignore:The pipeline .*synchronized:strategies.DifferenceWarning")
def test_batch_statistics_of_all_replicas_in_functions() -> None:
    """All micro-batches have the same rows, so that their statistics are those of the batch."""
    x, y = np.repeat(vectors()[:2], 14, 0).reshape(2, 14, 6).swapaxes(0, 1).reshape(28, 6), np.tile([0, 1], 14)
    results = []
    for split in (False, True):
        keras.utils.set_random_seed(1)
        with mesh_strategy({"data": 2, "pipe": 2} if split else {"data": 2}).scope():
            layers = [
                L.Dense(8, "tanh", dtype="float64"),
                L.BatchNormalization(synchronized=True, momentum=0.0, dtype="float64"),
                L.Dense(3, "softmax", dtype="float64"),
            ]
            model = keras.Sequential([keras.Input((6,), dtype="float64"), *layers])
            if split:
                model = keras_ext.PipelineModel(model, num_microbatches=7, partition=[layers[2].name])
            model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        for _ in range(3):
            model.train_on_batch(x, y)
        results.append(model.get_weights())
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def test_an_output_with_other_rows_than_the_batch() -> None:
    x = keras.Input((6,))
    plain = keras.Model(x, keras.ops.reshape(L.Dense(4, "tanh")(L.Dense(6)(x)), (-1, 2)))
    split = keras_ext.PipelineModel(plain, 2, num_microbatches=3, partition="uniform")
    for rows in (45, 2):
        wanted = plain.predict(vectors()[:rows], verbose=0)
        assert len(wanted) == 2 * rows
        if rows >= 3:
            np.testing.assert_allclose(split.predict(vectors()[:rows], verbose=0), wanted, rtol=0, atol=1e-6)


def test_made_again_of_its_config() -> None:
    model = keras_ext.PipelineModel(
        skipping(), 2, num_microbatches=4, schedule="gpipe", partition=["shared"], remat="all_but_last", name="staged"
    )
    again = keras_ext.PipelineModel.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert [stage[0].name for stage in again.partition.stages] == ["first", "shared"]
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(vectors()), model(vectors()))


def test_accumulators_that_do_not_begin_with_zeros_are_put_back() -> None:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((vectors(), labels())).batch(8)
    results = []
    for measured in (True, False):
        keras.utils.set_random_seed(1)
        model = pipelined(normalizing, True, num_stages=2, num_microbatches=2, partition="uniform")
        inner = keras.optimizers.Adagrad(0.1)
        model.compile(keras.optimizers.LossScaleOptimizer(inner), "sparse_categorical_crossentropy")
        if measured:
            model.pipeline_timeline(dataset)
        model.fit(dataset, shuffle=False, verbose=0)
        results.append([np.asarray(variable) for variable in (*model.variables, *model.optimizer.variables)])
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return {}


def sequential(*layers: Any, **given: Any) -> Any:
    return keras.Sequential([keras.Input(given.pop("shape", (6,)), **given), *layers, L.Dense(2)])


def own_step() -> Any:
    x = keras.Input((6,))
    return OwnStep(x, L.Dense(2)(L.Dense(2)(x)))


class OwnWeight(keras.Sequential):
    def build(self, shape: Any = None) -> None:
        super().build(shape)
        self.count = self.add_weight(shape=(), trainable=False, name="count")


def synchronized() -> Any:
    return sequential(L.Dense(2), L.BatchNormalization(synchronized=True))


REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "sparse and ragged ones": (lambda: sequential(L.Dense(2), sparse=True), {}),
    "stateful=True": (lambda: sequential(L.LSTM(2, stateful=True), batch_size=4, shape=(3, 2)), {}),
    "OwnStep, which has train_step": (own_step, {}),
    r"would lose weights .* \['own_weight/count'\]": (
        lambda: OwnWeight([keras.Input((6,)), L.Dense(2), L.Dense(2)]),
        {},
    ),
    "runs a collective over replicas": (synchronized, {"remat": "all"}),
    "num_microbatches=True": (skipping, {"num_microbatches": True}),
    "num_stages=0": (skipping, {"num_stages": 0}),
    "num_stages='2'": (skipping, {"num_stages": "2"}),
    r"each of 2 stages. Received: \[1000": (skipping, {"partition": keras_ext.PartitionByTime(max_stage_bytes=[1000])}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    make, arguments = REFUSED[message]
    with pytest.raises(ValueError, match=message):
        keras_ext.PipelineModel(make(), **dict[str, Any](num_stages=2, partition="uniform") | arguments)


class LooksAtValues(keras.layers.Layer):
    """Cannot be called on symbolic tensors, but knows its output shapes."""

    def call(self, x: Any) -> Any:
        return x * float(np.abs(x.numpy()).max() >= 0)

    def compute_output_spec(self, x: Any, **_: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


def test_a_layer_that_looks_at_values() -> None:
    results = []
    for split in (False, True):
        keras.utils.set_random_seed(1)
        with mesh_strategy({"pipe": 2}).scope() if split else contextlib.nullcontext():
            model: Any = keras.Sequential([keras.Input((6,)), L.Dense(4), LooksAtValues(), L.Dense(1)])
            if split:
                model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
            model.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
        logs = model.fit(vectors()[:8], vectors()[:8, :1], batch_size=8, shuffle=False, verbose=0).history
        results.append([*logs.values(), *model.get_weights()])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
