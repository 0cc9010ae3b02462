"""The cost of layers: each is measured as one function, and equal layers are measured once."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from keras_ext.pipeline import layer_costs
from keras_ext.pipeline.layer_costs import NUM_TIMED, costs_of
from tests.clock import Clock
from tests.keras_ext.pipeline.test_graph_partition import Slow

L = keras.layers


@keras.saving.register_keras_serializable("tests")
class Counting(keras.layers.Dense):
    """Records how it was called: in a graph or eagerly."""

    calls: list[tuple[str, bool]]

    def call(self, x: Any, training: bool = False) -> Any:
        if not isinstance(x, keras.KerasTensor):
            self.calls.append((self.name, tf.executing_eagerly()))
        return super().call(x)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    monkeypatch.setattr(Counting, "calls", found, raising=False)
    return found


def test_a_layer_is_traced_once_and_those_that_are_alike_are_measured_once(calls: list[tuple[str, bool]]) -> None:
    x = keras.Input((4,))
    shared = Counting(4, name="shared")
    h = Counting(4, name="alike")(Counting(4, name="first")(x))
    h = Counting(5, name="wider")(shared(shared(h)))
    h = Counting(5, name="frozen", trainable=False)(Counting(5, name="other_shape")(h))
    model = keras.Model(x, h)
    calls.clear()
    costs = costs_of(model, None, 8)
    in_graph = [name for name, is_eager in calls if not is_eager]
    assert in_graph == ["first", "wider", "other_shape", "frozen"]
    # These run eagerly, only to compute their outputs.
    assert [name for name, is_eager in calls if is_eager] == ["alike", "shared", "shared"]
    assert len(costs) == 7
    assert costs[0] == costs[1] == costs[2] == costs[3]
    # Outputs, which are the inputs of the next layer that the gradient of its kernel needs.
    assert [held for _, held in costs[:1] + costs[4:6]] == [8 * 4 * 4, 8 * 5 * 4, 8 * 5 * 4]


@keras.saving.register_keras_serializable("tests")
class Untraceable(keras.Layer):
    """Cannot be traced, because it reads values."""

    def call(self, x: Any) -> Any:
        return x * 2 if isinstance(x, keras.KerasTensor) or float(x.numpy().sum()) >= 0 else x

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def test_what_cannot_be_traced_is_timed_op_by_op() -> None:
    model = keras.Sequential([keras.Input((4,)), Untraceable(), L.Dense(2)])
    costs = costs_of(model._functional, None, 8)
    assert [held for _, held in costs] == [8 * 4 * 4, 8 * 2 * 4]
    assert all(seconds > 0 for seconds, _ in costs)


def test_what_is_timed_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither tracing nor the first run counts."""
    clock = Clock()
    monkeypatch.setattr(layer_costs, "time", clock)
    waited: list[float] = []

    def wait(x: Any) -> Any:
        waited.append(7.0 if not waited else 0.25)
        clock.sleep(waited[-1])
        return x

    @keras.saving.register_keras_serializable("tests")
    class Waiting(keras.Layer):
        def call(self, x: Any) -> Any:
            clock.sleep(100.0)
            made = tf.numpy_function(wait, [x], tf.float32, stateful=False)
            made.set_shape(x.shape)
            return made + 0 * x

        def compute_output_spec(self, x: Any) -> Any:
            return keras.KerasTensor(x.shape, x.dtype)

    model = keras.Sequential([keras.Input((4,)), Waiting()])
    [(seconds, _)] = costs_of(model._functional, None, 2)
    assert seconds == 0.25
    assert len(waited) == NUM_TIMED + 1


def test_losses_and_statistics_stay_where_they_were() -> None:
    model = keras.Sequential(
        [keras.Input((4,)), L.Dense(4, activity_regularizer="l2"), L.BatchNormalization(), Slow(0.0)]
    )
    before = model.get_weights()
    costs_of(model._functional, np.ones((3, 4), "float32"), 0)
    assert model.losses == []
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_lookup_that_takes_only_words_that_it_knows(is_inside: bool) -> None:
    for lookup, dtype in (
        (L.StringLookup(vocabulary=["a", "b"], num_oov_indices=0), "string"),
        (L.IntegerLookup(vocabulary=[7, 9], num_oov_indices=0), "int64"),
    ):
        x = keras.Input((2,), dtype=dtype)
        layers = [lookup, L.Embedding(4, 3)]
        h = keras.Sequential([keras.Input((2,), dtype=dtype), *layers])(x) if is_inside else layers[1](layers[0](x))
        made = keras_ext.PipelineModel(keras.Model(x, L.Dense(4)(h)), 2)
        assert all(link.seconds > 0 for link in made.partition.links)


@keras.saving.register_keras_serializable("tests")
class Positive(keras.Layer):
    def call(self, x: Any) -> Any:
        tf.debugging.assert_positive(x)
        return x


def test_a_layer_that_refuses_zeros_is_named() -> None:
    model = keras.Sequential([keras.Input((4,)), Positive(name="positive"), L.Dense(2)])
    message = r"(?s)'positive', a Positive.*refuses the values computed from zeros.*sample_input.*InvalidArg"
    with pytest.raises(ValueError, match=message):
        keras_ext.PipelineModel(model, 2)
    sample = keras_ext.PartitionByTime(np.ones((3, 4), "float32"))
    assert len(keras_ext.PipelineModel(model, 2, partition=sample).partition.stages) == 2


@keras.saving.register_keras_serializable("tests")
class Positions(keras.Layer):
    """Takes sequences up to a maximum length."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(8, shape[-1]))

    def call(self, x: Any) -> Any:
        return x + tf.slice(self.table, [0, 0], [tf.shape(x)[1], -1])

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def test_a_layer_that_takes_short_sequences_only() -> None:
    x = keras.Input((None, 4))
    model = keras.Model(x, L.Dense(2)(Positions()(x)))
    assert [held > 0 for _, held in costs_of(model, None, 8)] == [True, True]
