"""Detection of gradients, and the number of their reductions; their parity is in `parity/cases_gradients.py`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies.steps.updates import Updates
from tests.strategies.parity.harness import TOLERANCE, features, targets

X, Y = features(45, 6), targets()
OPTIONS: dict[str, Any] = {"batch_size": 9, "shuffle": False, "verbose": 0}


def made(step: Callable[[Any, Any, Any], Any] | None, strategy: Any, split: bool = False) -> Any:
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data) if step is None else step(self, *data)

    with strategy.scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, "tanh", kernel_initializer="ones", name="up")(inputs)
        model = Own(inputs, keras.layers.Dense(1, kernel_initializer="ones", name="down")(hidden))
        if split:
            model = keras_ext.parallelize(model)
        model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def mirrored(number: int = 2, **arguments: Any) -> Any:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(number)], **arguments)


def taken(model: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    return loss, tape.gradient(loss, model.trainable_variables)


def applying(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any, Any, Any], Any]:
    def step(model: Any, x: Any, y: Any) -> Any:
        loss, gradients = taken(model, x, y)
        model.optimizer.apply_gradients(zip(change(gradients), model.trainable_variables, strict=True))
        return {"loss": loss}

    return step


def said(model: Any, num_rows: int = 45, batch_size: int = 9) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X[:num_rows], Y[:num_rows], **OPTIONS | {"batch_size": batch_size})
    return [str(each.message) for each in caught if each.category is strategies.DifferenceWarning]


def test_a_gradient_of_the_replica_alone_is_reported() -> None:
    def step(model: Any, x: Any, y: Any) -> Any:
        inner = tf.function(lambda x, y: tf.clip_by_global_norm(taken(model, x, y)[1], 0.1)[0], autograph=False)
        model.optimizer.apply_gradients(zip(inner(x, y), model.trainable_variables, strict=True))
        return {"loss": tf.reduce_mean(y)}

    assert any("neither a mean nor a sum over rows" in each for each in said(made(step, mirrored())))


def test_strict_turns_it_into_an_error() -> None:
    def step(model: Any, x: Any, y: Any) -> Any:
        kernel = model.trainable_variables[0]
        model.optimizer.apply_gradients([(tf.ones(kernel.shape) * tf.sqrt(tf.reduce_mean(tf.square(x))), kernel)])
        return {}

    with warnings.catch_warnings():
        strategies.strict()
        with pytest.raises(strategies.DifferenceWarning, match="A gradient that is applied here"):
            made(step, mirrored()).fit(X, Y, **OPTIONS)


def test_a_sum_of_what_is_global_is_reported() -> None:
    def step(model: Any, x: Any, y: Any) -> Any:
        context = tf.distribute.get_replica_context()
        total = context.all_reduce("SUM", tf.reduce_sum(x))
        mean = context.all_reduce("MEAN", tf.reduce_mean(y))
        loss, gradients = taken(model, x, y)
        model.optimizer.apply_gradients(
            zip(context.all_reduce("SUM", gradients), model.trainable_variables, strict=True)
        )
        return {"loss": loss, "total": total, "mean": mean}

    model = made(step, mirrored())
    texts = said(model)
    assert texts
    assert all("is the same on all replicas, so that the sum is a multiple" in each for each in texts)
    logs = model.fit(X[:9], Y[:9], **OPTIONS).history
    np.testing.assert_allclose([logs["total"][0], logs["mean"][0]], [X[:9].sum(), Y[:9].mean()], rtol=1e-5)


def test_a_norm_of_a_shard_is_reported() -> None:
    strategy = mirrored(4, mesh={"data": 2, "tensor": 2})
    by_weight = made(applying(lambda g: [tf.clip_by_norm(each, 0.1) for each in g]), strategy, split=True)
    assert any("single shards" in each for each in said(by_weight))
    together = made(applying(lambda g: tf.clip_by_global_norm(g, 0.1)[0]), strategy, split=True)
    assert not said(together)


@pytest.mark.parametrize("num_rows", [8, 7])
def test_gradients_of_shards_are_kept_in_variables(num_rows: int) -> None:
    """A replica's number of rows is static, or it is not."""

    def step(model: Any, x: Any, y: Any) -> Any:
        loss, gradients = taken(model, x, y)
        for kept, gradient in zip(model.kept, gradients, strict=True):
            kept.assign(0.5 * kept + gradient / 2)
            kept.assign_add(gradient * tf.reduce_mean(x))
        return {"loss": loss}

    def kept(strategy: Any) -> list[Any]:
        model = made(step, strategy, split=True)
        with strategy.scope():
            model.kept = [
                model.add_weight(shape=each.shape, initializer="zeros", trainable=False)
                for each in model.trainable_variables
            ]
        assert not said(model, num_rows, 4)
        return [each.numpy() for each in model.kept]

    one, two = kept(mirrored(2, mesh={"tensor": 2})), kept(mirrored(4, mesh={"data": 2, "tensor": 2}))
    for wanted, found in zip(one, two, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


def test_layers_that_are_split_have_optimizers_of_their_own() -> None:
    """A program chooses weights by layer: by position, a list of a split model has shards where another has weights."""

    def step(model: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        weights = [model.get_layer(name).trainable_variables for name in ("up", "down")]
        gradients = tape.gradient(loss, weights)
        for optimizer, mine, own in zip((model.optimizer, model.second), gradients, weights, strict=True):
            optimizer.apply_gradients(zip(mine, own, strict=True))
        return {"loss": loss}

    def trained(strategy: Any, *, split: bool) -> Any:
        model = made(step, strategy, split)
        with strategy.scope():
            model.second = keras.optimizers.SGD(0.1)
        model.fit(X[:12], Y[:12], epochs=2, **OPTIONS | {"batch_size": 4})
        return model.predict(X, verbose=0)

    found = trained(mirrored(4, mesh={"data": 2, "tensor": 2}), split=True)
    np.testing.assert_allclose(found, trained(mirrored(1), split=False), rtol=0, atol=TOLERANCE)


def test_a_branch_cannot_apply_gradients_in_shards() -> None:
    def step(model: Any, x: Any, y: Any) -> Any:
        _, gradients = taken(model, x, y)

        def apply() -> tf.Tensor:
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return tf.constant(0)

        tf.cond(tf.reduce_any(model.optimizer.iterations >= 0), apply, lambda: tf.constant(0))
        return {}

    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        made(step, mirrored(shard="optimizer")).fit(X, Y, **OPTIONS)


def test_gradients_are_summed_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras' own step reduces them in the optimizer, a custom step where it takes them; no step reduces them twice."""
    summed: list[int] = []
    original = Updates.synchronized

    def counted(self: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        # A global gradient is one value that all replicas share, not a PerReplica.
        summed.append(sum(type(each).__name__ == "PerReplica" for each in gradients))
        return original(self, gradients, *args, **kwargs)

    monkeypatch.setattr(Updates, "synchronized", counted)
    made(None, mirrored()).fit(X[:9], Y[:9], **OPTIONS)
    assert set(summed) == {4}
    num_traces = len(summed)
    summed.clear()
    made(applying(lambda g: g), mirrored()).fit(X[:9], Y[:9], **OPTIONS)
    assert sorted(summed) == [0] * num_traces + [4] * num_traces
