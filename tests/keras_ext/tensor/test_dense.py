"""ColumnParallelDense and RowParallelDense: the results of keras.layers.Dense, from shards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy
from tests.strategies.parity.harness import labels, vectors

Optimizer = Callable[[], keras.Optimizer]


def pair(split: bool, *, gather: bool = False, column: Any = None, row: Any = None) -> list[keras.Layer]:
    if not split:
        plain = keras.layers.Dense
        return [plain(8, activation="relu", **(column or {})), plain(4, activation="tanh", **(row or {}))]
    return [
        keras_ext.ColumnParallelDense(8, activation="relu", gather_output=gather, **(column or {})),
        keras_ext.RowParallelDense(4, activation="tanh", **(row or {})),
    ]


def classifier(split: bool, optimizer: Optimizer | None = None, **kwargs: Any) -> keras.Model:
    last = keras_ext.ColumnParallelDense if split else keras.layers.Dense
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(6),
            *pair(split, **kwargs),
            keras.layers.Dropout(0.0),
            last(4, activation="softmax"),
        ]
    )
    made = keras.optimizers.Adam(0.01, global_clipnorm=0.5) if optimizer is None else optimizer()
    model.compile(made, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
class TestParity:
    def test_with_adam_and_global_clipnorm(self, axes: Mapping[str, int]) -> None:
        assert_parity(classifier, vectors(), labels(), axes, predict=True)

    def test_gathered_between(self, axes: Mapping[str, int]) -> None:
        assert_parity(lambda split: classifier(split, gather=True), vectors(), labels(), axes)

    def test_higher_rank(self, axes: Mapping[str, int]) -> None:
        def make(split: bool) -> keras.Model:
            model = keras.Sequential([keras.Input((3, 2)), *pair(split), keras.layers.Flatten(), keras.layers.Dense(1)])
            model.compile("adam", "mse")
            return model

        assert_parity(make, vectors().reshape(-1, 3, 2), vectors()[:, :1], axes)


def test_sparse_inputs() -> None:
    """Sparse inputs are texts as word counts: each shard gets them as one dense tensor."""
    counts, targets = np.maximum(vectors() - 0.5, 0), vectors()[:, :4]
    batches = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(counts), targets)).batch(14)
    results = []
    for axes in (None, {"data": 2, "tensor": 2}):
        keras.utils.set_random_seed(1)
        with contextlib.nullcontext() if axes is None else mesh_strategy(axes).scope():
            inputs = keras.Input((6,), sparse=True)
            up, down = pair(axes is not None)
            model = keras.Model(inputs, down(up(inputs)))
            model.compile("adagrad", "mse")
        logs = model.fit(batches, epochs=2, shuffle=False, verbose=0).history["loss"]
        results.append([logs, *model.get_weights(), model.predict(batches, verbose=0)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


class Normalized(keras.optimizers.Optimizer):
    """Divides each gradient by its largest element."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        largest = keras.ops.max(keras.ops.abs(gradient)) + 1e-3
        self.assign_sub(variable, gradient / largest * keras.ops.cast(learning_rate, variable.dtype))


OPTIMIZERS: Mapping[str, Optimizer] = {
    "SGD, momentum, weight decay, clipvalue": lambda: keras.optimizers.SGD(
        0.05, momentum=0.9, nesterov=True, weight_decay=0.01, clipvalue=0.02
    ),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.1),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "average, overwritten": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3),
    "RMSprop, centered": lambda: keras.optimizers.RMSprop(0.01, centered=True),
    "LAMB": lambda: keras.optimizers.Lamb(0.05),
    "LAMB, clipnorm, weight decay": lambda: keras.optimizers.Lamb(0.05, clipnorm=0.2, weight_decay=0.01),
    "LAMB, average, accumulation": lambda: keras.optimizers.Lamb(0.05, use_ema=True, gradient_accumulation_steps=2),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "LAMB, loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Lamb(0.05), initial_scale=8.0),
    "own class": lambda: Normalized(0.05),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=8.0),
}


#: Optimizers that use single elements, whole weights, norms, and gradients of earlier steps.
FEW = ("clipnorm", "average, overwritten", "LAMB, average, accumulation", "own class")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.parity_all) for name in OPTIMIZERS]
)
def test_optimizers(name: str) -> None:
    # Replicas sum a gradient before the optimizer uses it, unless they accumulate.
    axes = {"data": 2, "tensor": 2} if "accumulation" in name else {"tensor": 2}
    assert_parity(lambda split: classifier(split, OPTIMIZERS[name]), vectors(), labels(), axes)


def halved(weight: Any) -> Any:
    """Scales a weight by its largest element, which needs the whole weight."""
    return weight / (1 + keras.ops.max(keras.ops.abs(weight)))


ARGUMENTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no bias": ({"use_bias": False}, {"use_bias": False}),
    "initializers": (
        {"kernel_initializer": keras.initializers.RandomNormal(seed=3), "bias_initializer": "ones"},
        {"kernel_initializer": keras.initializers.Orthogonal(seed=4), "bias_initializer": "ones"},
    ),
    "regularizers": (
        {"kernel_regularizer": "l2", "bias_regularizer": "l1"},
        {"kernel_regularizer": keras.regularizers.OrthogonalRegularizer(0.01), "bias_regularizer": "l2"},
    ),
    "constraints by norm": (
        {"kernel_constraint": keras.constraints.MaxNorm(0.9), "bias_constraint": "non_neg"},
        {"kernel_constraint": keras.constraints.MinMaxNorm(0.3, 0.8, axis=0)},
    ),
    "constraints by norms of others": (
        {"kernel_constraint": keras.constraints.UnitNorm(axis=[0, 1])},
        {"kernel_constraint": keras.constraints.UnitNorm(axis=1)},
    ),
    "constraint of a whole": ({"kernel_constraint": halved}, {"kernel_constraint": halved}),
    "activity": ({"activity_regularizer": "l2"}, {"activity_regularizer": "l2"}),
}


@pytest.mark.parametrize(("column", "row"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_the_plain_layer(column: dict[str, Any], row: dict[str, Any]) -> None:
    def make(split: bool) -> keras.Model:
        return classifier(split, lambda: keras.optimizers.SGD(0.1), column=column, row=row)

    assert_parity(make, vectors(), labels(), {"data": 2, "tensor": 2})


def test_mixed_precision() -> None:
    # Shards round partial sums to 8 bits of mantissa before adding them, where one device rounds the sum.
    assert_parity(classifier, vectors(), labels(), {"tensor": 2}, dtype_policy="mixed_bfloat16", tolerance=3e-2)


def test_gradients_are_those_of_dense_and_where_the_shards_are() -> None:
    x = vectors()

    def gradients(layers: list[keras.Layer], x: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x
            for layer in layers:
                y = layer(y)
            loss = keras.ops.mean(y * y)
        variables = [v for layer in layers for v in layer.trainable_variables]
        return tape.gradient(loss, x), tape.gradient(loss, [v.value for v in variables])

    keras.utils.set_random_seed(5)
    plain = pair(False)
    of_x, of_weights = gradients(plain, tf.constant(x))
    keras.utils.set_random_seed(5)
    strategy = mesh_strategy({"tensor": 2})
    with strategy.scope():
        split = pair(True)
        for layer, size in zip(split, (6, 8), strict=True):
            layer.build((None, size))
    found_of_x, found = strategy.run(lambda: gradients(split, tf.constant(x)))
    np.testing.assert_allclose(found_of_x, of_x, atol=1e-6)
    np.testing.assert_allclose(np.concatenate(found[:2], 1), of_weights[0], atol=1e-6)
    np.testing.assert_allclose(np.concatenate(found[2:4], 0), of_weights[1], atol=1e-6)
    np.testing.assert_allclose(np.concatenate(found[4:6], 0), of_weights[2], atol=1e-6)
    np.testing.assert_allclose(found[6], of_weights[3], atol=1e-6)
    assert [g.device[-5:] for g in found] == ["CPU:0", "CPU:1"] * 3 + ["CPU:0"]


class TestPieces:
    def test_a_pair_passes_pieces_on(self) -> None:
        with mesh_strategy({"tensor": 4}).scope():
            layer = keras_ext.ColumnParallelDense(8, gather_output=False)
            y = layer(vectors())
        assert isinstance(y, SplitTensor)
        assert (y.shape, y.ndim, y.dtype) == ((45, 8), 2, tf.float32)
        assert [piece.shape[-1] for piece in y.pieces] == [2] * 4

    def test_a_plain_layer_gets_the_whole_tensor(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            model = keras.Sequential(
                [keras.Input((6,)), keras_ext.ColumnParallelDense(8, gather_output=False), keras.layers.Softmax()]
            )
            np.testing.assert_allclose(np.sum(model(vectors()), axis=-1), 1, atol=1e-6)

    def test_refuses_what_it_was_not_promised(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            with pytest.raises(ValueError, match="gather_output=False"):
                keras_ext.RowParallelDense(4, input_is_parallel=True)(vectors())
            pieces = keras_ext.ColumnParallelDense(8, gather_output=False)(vectors())
            with pytest.raises(ValueError, match="gather_output=True"):
                keras_ext.RowParallelDense(4, input_is_parallel=False)(pieces)


class TestRefusals:
    def test_sizes_that_do_not_divide(self) -> None:
        with mesh_strategy({"tensor": 4}).scope():
            with pytest.raises(ValueError, match=r"kernel of .*8 or 12.* Received: 10"):
                keras_ext.ColumnParallelDense(10)(vectors())
            with pytest.raises(ValueError, match="Received: 6"):
                keras_ext.RowParallelDense(4)(vectors())

    def test_activations_that_need_all_units(self) -> None:
        with pytest.raises(ValueError, match="softmax"):
            keras_ext.ColumnParallelDense(8, activation="softmax", gather_output=False)

    @pytest.mark.parametrize("layer", [keras_ext.ColumnParallelDense, keras_ext.RowParallelDense])
    def test_quantization(self, layer: Any) -> None:
        with pytest.raises(ValueError, match="quantization"):
            layer(8, dtype="int8_from_float32")
        made = layer(8)
        made.build((None, 6))
        with pytest.raises(ValueError, match="int8"):
            made.quantize("int8")


class TestWithoutAMesh:
    def test_is_a_dense(self) -> None:
        keras.utils.set_random_seed(1)
        plain = keras.layers.Dense(8, activation="relu")(vectors())
        keras.utils.set_random_seed(1)
        np.testing.assert_array_equal(keras_ext.ColumnParallelDense(8, activation="relu")(vectors()), plain)

    def test_knows_its_own_arguments(self) -> None:
        layer = keras_ext.ColumnParallelDense(8, activation="relu", gather_output=False, name="a name")
        again = keras_ext.ColumnParallelDense.from_config(layer.get_config())
        assert (again.name, again.units, again.gather_output) == ("a name", 8, False)
        assert keras_ext.RowParallelDense.from_config(
            keras_ext.RowParallelDense(4, input_is_parallel=True).get_config()
        ).input_is_parallel


def test_a_model_of_ones_own_class_is_built_by_fit() -> None:
    class Own(keras.Model):
        def __init__(self, split: bool) -> None:
            super().__init__()
            self.up, self.down = pair(split)
            self.last = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.last(self.down(self.up(x)))

    def make(split: bool) -> keras.Model:
        model = Own(split)
        model.compile("adam", "mse")
        return model

    assert_parity(make, vectors(), vectors()[:, :1], {"data": 2, "tensor": 2})


def test_an_output_in_pieces_is_whole_outside() -> None:
    def make(split: bool) -> keras.Model:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6), pair(split)[0]])
        model.compile("adam", "mse")
        return model

    # The last batch has one row: one replica has none.
    assert_parity(
        make, vectors()[:43], vectors()[:43, :1] * np.ones(8, "float32"), {"data": 2, "tensor": 2}, predict=True
    )


@pytest.mark.parametrize("layer", [keras_ext.ColumnParallelDense, keras_ext.RowParallelDense])
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_losses_take_what_a_last_activation_was_computed_of(layer: Any, activation: str) -> None:
    x, y = 100 * vectors()[:4], np.eye(4, dtype="float32")
    loss = keras.losses.BinaryCrossentropy() if activation == "sigmoid" else keras.losses.CategoricalCrossentropy()
    keras.utils.set_random_seed(1)
    plain = keras.layers.Dense(4, activation)
    plain.build(x.shape)
    with mesh_strategy({"tensor": 2}).scope():
        split = layer(4, activation)
        split.build(x.shape)
        split.set_weights(plain.get_weights())

    # In a graph, as in `fit`: eager probabilities, without their logits, would be clipped at 1e-7.
    @tf.function
    def lost(layer: Any) -> Any:
        return loss(y, layer(x))

    assert float(lost(plain)) > 20
    np.testing.assert_allclose(lost(split), lost(plain), rtol=1e-6)
