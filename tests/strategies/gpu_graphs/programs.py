"""User programs whose graphs are scanned, and one of two processes of which the other does not exist."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies import multi_worker_mirrored
from strategies._keras_hooks import trainer_calls
from strategies.collectives.tf_runtime import TensorFlowCollectives
from strategies.control_plane import Member

NUM_ROWS, LENGTH, VOCABULARY = 16, 6, 20


class _TracedError(Exception):
    """Ends a program once its step was traced."""


class _OneOfTwo(TensorFlowCollectives):
    """Traces collectives as one of two processes; in eager calls the other process seems to have equal values."""

    def _all_reduce(self, values: list[tf.Tensor], axis: str, op: Any) -> list[tf.Tensor]:
        if not tf.executing_eagerly():
            return super()._all_reduce(values, axis, op)
        return [value * 2 if op == "sum" else value for value in values]

    def _all_gather(self, values: list[tf.Tensor], axis: str, dim: int, sizes: Any) -> list[tf.Tensor]:
        if not tf.executing_eagerly():
            return super()._all_gather(values, axis, dim, sizes)
        return [tf.concat([value, value], dim) for value in values]

    def _broadcast(self, values: list[tf.Tensor], axis: str, root: int) -> list[tf.Tensor]:
        return values if tf.executing_eagerly() else super()._broadcast(values, axis, root)

    def _exchange_sizes(self, values: list[tf.Tensor], axis: str, dim: int) -> list[tf.Tensor] | None:
        return None if tf.executing_eagerly() else super()._exchange_sizes(values, axis, dim)


class _OtherIsAlike(Member):
    """Rank 0 of two; the other rank's messages equal its own."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def exchange(self, name: str, text: str, what: str = "") -> list[str]:
        return [text] * self.world_size


@contextlib.contextmanager
def one_of_two_processes(devices: Sequence[str], **options: Any) -> Iterator[Any]:
    """Yields the MultiWorkerMirroredStrategy of rank 0 of two, for tracing only."""
    cluster = tf.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multi_worker_mirrored, "_start_runtime", lambda cluster, timeout_seconds: _OtherIsAlike())
        patch.setattr(multi_worker_mirrored, "TensorFlowCollectives", _OneOfTwo)
        patch.setattr(multi_worker_mirrored, "own_devices", lambda: list(devices))
        # A collective that really runs fails after this timeout.
        soon = tf.distribute.experimental.CommunicationOptions(timeout_seconds=20)
        yield strategies.MultiWorkerMirroredStrategy(resolver, communication_options=soon, **options)


@contextlib.contextmanager
def steps_are_traced_only() -> Iterator[list[Any]]:
    """Yields a list of Keras' traced steps; a step is traced instead of its first run, and then the program ends."""
    traced: list[Any] = []

    def step_of(function: Any, element_spec: Any, run_eagerly: bool) -> Any:
        def one(element: Any) -> Any:
            return function([element])

        def trace(element: Any) -> None:
            traced.append(tf.function(one, input_signature=[element_spec], autograph=False).get_concrete_function())
            raise _TracedError

        return trace

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(_TracedError):
        patch.setattr(trainer_calls, "_step_of", step_of)
        yield traced


def steps_of(function: Any) -> list[Any]:
    """Returns the traces of a model's train, test or predict function, the largest graph first."""
    seen: list[Any] = []
    pending = [function]
    found = []
    while pending:
        each = pending.pop()
        if any(each is other for other in seen):
            continue
        seen.append(each)
        if hasattr(each, "_list_all_concrete_functions"):
            found += each._list_all_concrete_functions()
        elif isinstance(each, (list, tuple)):
            pending += each
        else:
            pending += [cell.cell_contents for cell in getattr(each, "__closure__", None) or ()]
    return sorted(found, key=lambda concrete: -len(concrete.graph.get_operations()))


def classifier(**compiled: Any) -> Any:
    """Returns a model of most kinds of layers."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    hidden = keras.layers.Embedding(VOCABULARY, 8)(inputs)
    hidden = keras.layers.Flatten()(hidden)
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="relu")(hidden))
    hidden = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dropout(0.3)(hidden))
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax", dtype="float32")(hidden))
    arguments = {"optimizer": keras.optimizers.Adam(0.01, global_clipnorm=1.0), "metrics": ["accuracy"]} | compiled
    model.compile(loss="sparse_categorical_crossentropy", **arguments)
    return model


def loop_of(strategy: Any, model: Any) -> Any:
    """Returns a step of a custom loop, with its batches."""
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def of_replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batch: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(of_replica, args=batch), axis=None)

    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(rows()).batch(8))
    return step.get_concrete_function(next(iter(batches)))


def dense_layers() -> Any:
    """Returns a model for meshes with more axes than "data"."""
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="relu")(inputs)
    hidden = keras.layers.Dense(16, activation="relu")(hidden)
    return keras.Model(inputs, keras.layers.Dense(4)(hidden))


def numbers() -> tuple[Any, Any]:
    """Returns inputs and labels for `dense_layers`."""
    random = np.random.default_rng(0)
    return random.random((NUM_ROWS, 8)).astype("float32"), random.random((NUM_ROWS, 4)).astype("float32")


def rows() -> tuple[Any, Any]:
    """Returns inputs and labels for `classifier`."""
    random = np.random.default_rng(0)
    x = random.integers(0, VOCABULARY, (NUM_ROWS, LENGTH)).astype("int32")
    return x, random.integers(0, 3, (NUM_ROWS,)).astype("int32")
