"""Tables sharded over replicas: the numbers of the plain layer, and no device that has the whole table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from tests.strategies.parity.harness import TOLERANCE

ROWS, COLUMNS = 13, 5
L: Any = keras.layers
OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    # Clipping treats slices one by one, or a dense tensor: both as in plain Keras.
    "adam": lambda: keras.optimizers.Adam(1e-2, epsilon=1e-3, clipnorm=0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, global_clipnorm=0.1),
    "accumulation": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
}


def clicks() -> tuple[np.ndarray, np.ndarray]:
    """Returns indices, with many repeated, and labels. The last batch has fewer rows than replicas."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, ROWS, (51, 4)).astype("int32")
    x[:20] = draw.integers(0, 3, (20, 4))
    return x, draw.integers(0, 3, 51)


def model(table: type[keras.layers.Embedding], optimizer: keras.Optimizer) -> keras.Model:
    keras.utils.set_random_seed(3)
    made = keras.Sequential(
        [keras.Input((4,), dtype="int32"), table(ROWS, COLUMNS, name="table"), L.Flatten(), L.Dense(3, "softmax")]
    )
    made.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def trained(made: keras.Model, epochs: int = 2) -> dict[str, list[float]]:
    history: dict[str, list[float]] = made.fit(
        *clicks(), batch_size=16, epochs=epochs, shuffle=False, verbose=0
    ).history
    return history


@functools.cache
def strategy(shard: Any = "optimizer", size: int | None = None, **mesh: int) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy([f"CPU:{k}" for k in range(4)], mesh=mesh or None, shard=shard, shard_size=size)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        pytest.param("adam", {}, marks=pytest.mark.parity_all),
        ("adagrad", {"size": 2}),
        ("accumulation", {"shard": "weights"}),
        pytest.param("adagrad", {"shard": None, "data": 2, "expert": 2}, marks=pytest.mark.parity_all),
    ],
)
def test_the_numbers_of_the_plain_layer(optimizer: str, options: dict[str, Any], tmp_path: Any) -> None:
    plain = model(L.Embedding, OPTIMIZERS[optimizer]())
    logs = trained(plain)
    with strategy(**options).scope():
        spread = model(keras_ext.ShardedEmbedding, OPTIMIZERS[optimizer]())
    found = trained(spread)
    for name, values in logs.items():
        np.testing.assert_allclose(found[name], values, rtol=TOLERANCE, atol=TOLERANCE)
    for one, other in zip(spread.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
    size = options.get("size", options.get("expert", 4))
    for component in spread.weights[0].value.values:
        assert component.shape[0] <= -(-ROWS // size)
        assert component.shape[1] == COLUMNS
    x, y = clicks()
    np.testing.assert_allclose(spread.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=TOLERANCE, atol=1e-6)
    np.testing.assert_allclose(
        spread.evaluate(x, y, verbose=0), plain.evaluate(x, y, verbose=0), rtol=TOLERANCE, atol=TOLERANCE
    )
    np.testing.assert_allclose(spread(x), plain(x), rtol=TOLERANCE, atol=1e-6)
    path = tmp_path / "clicks.keras"
    spread.save(path)
    opened = keras.models.load_model(path)
    assert type(opened.layers[0]) is L.Embedding
    # Both resume from the file and reach the same weights: files hold whole slots.
    np.testing.assert_allclose(
        opened.optimizer.variables[-1].numpy(), plain.optimizer.variables[-1].numpy(), rtol=TOLERANCE, atol=1e-6
    )
    trained(opened, 1)
    trained(spread, 1)
    for one, other in zip(spread.get_weights(), opened.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adagrad])
def test_no_step_computes_with_the_table(optimizer: type[keras.Optimizer]) -> None:
    """No tensor of a step has all rows of a shard. Reading a variable after its sparse update would copy it."""
    rows = 1024
    with strategy().scope():
        keras.utils.set_random_seed(0)
        wide = keras.Sequential(
            [keras.Input((4,), dtype="int32"), keras_ext.ShardedEmbedding(rows, COLUMNS), L.Flatten(), L.Dense(3)]
        )
        wide.compile(optimizer(0.1), "mse")
        wide.optimizer.build(wide.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy().run(wide.train_step, args=((x, y),))

    graph = step.get_concrete_function(tf.zeros((8, 4), tf.int32), tf.zeros((8, 3))).graph
    large = [
        output.op.type
        for op in graph.get_operations()
        for output in op.outputs
        # TensorFlow's custom gradients make zeros without consumers, which never run.
        if output.consumers() and output.dtype.is_floating and (output.shape.num_elements() or 0) >= rows // 4 * COLUMNS
    ]
    assert not large


def test_refusals() -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope(), pytest.raises(ValueError, match=r"shard='optimizer'"):
        keras_ext.ShardedEmbedding(4, 2).build()
    with pytest.raises(ValueError, match=r"no regularizer.*Received: \{'embeddings_regularizer'"):
        keras_ext.ShardedEmbedding(4, 2, embeddings_regularizer="l2")
    plain = keras_ext.ShardedEmbedding(4, 2)
    assert plain(np.array([[1, 3]])).shape == (1, 2, 2)
    with strategy().scope():
        made = model(keras_ext.ShardedEmbedding, OPTIMIZERS["adam"]())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not one of the rows of.*table/embeddings"):
        made.predict(np.full((4, 4), ROWS), verbose=0)
