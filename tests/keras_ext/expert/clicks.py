"""A model with experts and a table, trained on one device and on any strategy: for tests in one or more processes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

import keras_ext
from strategies import layer_api
from tests.strategies.parity.harness import TOLERANCE

ROWS, FEATURES, EXPERTS, LENGTH = 13, 8, 4, 4
L: Any = keras.layers


def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns indices and labels in three batches of 16; the last has 3 rows, fewer than there may be replicas.

    All indices of the first batch are equal: two experts get all tokens, and one row of the table all lookups.
    """
    draw = np.random.default_rng(0)
    x = draw.integers(0, ROWS, (35, LENGTH)).astype("int32")
    x[:16] = 1
    x[16:24] = draw.integers(0, 3, (8, LENGTH))
    return x, draw.integers(0, 3, 35)


def model(strategy: Any, axes: Mapping[str, int], optimizer: str, seed: int = 3) -> Any:
    """Returns the compiled model; plain without a strategy.

    With the optimizer "adam, micro-batches" a pipeline has two micro-batches, and the mixture uses no statistics of the
    batch: in a pipeline, these would be of the micro-batch.
    """
    is_cut = optimizer == "adam, micro-batches"
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        # Its rows are on the replicas that share the optimizer: without such replicas, the layer cannot be used.
        is_shared = layer_api.row_exchange("data") is not None or layer_api.num_replicas() == 1
        table = keras_ext.ShardedEmbedding if strategy is not None and is_shared else L.Embedding
        keras.utils.set_random_seed(seed)
        mixture = keras_ext.MixtureOfExperts(
            EXPERTS,
            10,
            router_bias=None if is_cut else 0.01,
            load_balancing_loss=0.0 if is_cut else 0.1,
            z_loss=0.0 if is_cut else 1e-3,
            use_bias=True,
            shared_hidden_dim=3,
        )
        tokens = keras.Input((LENGTH,), dtype="int32")
        x = mixture(L.Dense(FEATURES, "tanh", name="before")(table(ROWS, FEATURES, name="table")(tokens)))
        made = keras.Model(tokens, L.Dense(3, "softmax", name="after")(L.Flatten()(x)))
        if strategy is not None and "tensor" in axes:
            made = keras_ext.parallelize(made, {"before": "column"})
        if strategy is not None and "pipe" in axes:
            made = keras_ext.PipelineModel(made, num_microbatches=1 + is_cut)
        chosen = {
            "adam": lambda: keras.optimizers.Adam(1e-2, epsilon=1e-3, global_clipnorm=0.5),
            "adam, micro-batches": lambda: keras.optimizers.Adam(1e-2, epsilon=1e-3, global_clipnorm=0.5),
            "adagrad": lambda: keras.optimizers.Adagrad(0.1, clipnorm=0.1),
            "accumulation": lambda: keras.optimizers.Adam(1e-2, epsilon=1e-3, gradient_accumulation_steps=2),
        }[optimizer]()
        made.compile(chosen, "sparse_categorical_crossentropy", metrics=["accuracy"])
        made.optimizer.build(made.trainable_variables)
    return made


def optimizers_of(axes: Mapping[str, int]) -> list[str]:
    """Returns the optimizers with which the model is trained on a mesh of several processes."""
    if "expert" not in axes:
        return ["adagrad"]
    return ["adam", "adam, micro-batches"] if "pipe" in axes else ["adam"]


def trained(made: Any, epochs: int = 3) -> list[Any]:
    """Returns logs, weights and slots. Evaluation and prediction, with their own functions, would double the cost."""
    x, y = data()
    logs = made.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history
    return [*logs.values(), *state(made)]


def state(made: Any) -> list[Any]:
    """Returns weights and slots."""
    return [*made.get_weights(), *layer_api.values_of(made, layer_api.joined(made.optimizer.variables))]


def inferred(made: Any) -> list[Any]:
    """Returns the results of evaluate and predict."""
    x, y = data()
    return [made.evaluate(x, y, batch_size=16, verbose=0), made.predict(x, batch_size=16, verbose=0)]


def found(made: Any, epochs: int = 3) -> list[Any]:
    """Returns the results of `trained` and of `inferred`."""
    return [*trained(made, epochs), *inferred(made)]


@functools.cache
def plain(optimizer: str) -> list[Any]:
    """Returns the results of `found` on one device."""
    return found(model(None, {}, optimizer))


def assert_trained_as(one: list[Any], other: list[Any]) -> None:
    """Compares results of `trained` with results of `found`."""
    assert_same(one, other[:-2])


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def own_rows(made: Any) -> list[tuple[int, ...]]:
    """Returns the shapes of this process' first shard of each weight whose rows are on several replicas."""
    values = [variable.value for variable in made.weights]
    return [tuple(each.values[0].shape) for each in values if getattr(each, "has_own_rows", False)]
