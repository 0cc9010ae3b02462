"""Gradients that a program's optimizer computes from those of several weights are found in the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import pytest
import tensorflow as tf

from strategies._keras_hooks import joint_gradients

SEPARATE: dict[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "unchanged": lambda g: list(g),
    "scaled": lambda g: [0.5 * each for each in g],
    "clipped each": lambda g: [tf.clip_by_norm(each, 0.1) for each in g],
    "with a number of no gradient": lambda g: [each * tf.reduce_sum(tf.ones([3])) for each in g],
    "missing": lambda g: [None, 2.0 * g[1]],
}
JOINT: dict[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "clipped together": lambda g: tf.clip_by_global_norm(list(g), 0.1)[0],
    "one with another": lambda g: [g[0], g[1] + tf.reduce_mean(g[0])],
    "in a function": lambda g: tf.function(lambda one, other: [one + tf.reduce_sum(other), other])(*g),
}


@functools.cache
def optimizer() -> keras.Optimizer:
    with tf.init_scope():
        return keras.optimizers.SGD(name="clips")


@pytest.fixture(autouse=True)
def has_some_of_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_gradients, "_why_some", lambda update: "stages are elsewhere")


def pass_on(change: Callable[[Sequence[Any]], Sequence[Any]], gradients: Sequence[Any]) -> None:
    with joint_gradients.given(None, gradients):
        joint_gradients.check_separate(optimizer(), None, change(gradients))


def in_graph(change: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    @tf.function
    def step() -> None:
        pass_on(change, [tf.random.stateless_normal([3], [1, i]) for i in range(2)])

    step.get_concrete_function()


@pytest.mark.parametrize("change", SEPARATE.values(), ids=SEPARATE)
def test_separate_ones_pass(change: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    in_graph(change)


@pytest.mark.parametrize("change", JOINT.values(), ids=JOINT)
def test_joint_ones_are_refused(change: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    with pytest.raises(ValueError, match=r"SGD overrides apply.* but stages are elsewhere\. .*Received: 'clips'"):
        in_graph(change)


def test_rows_of_tables_count() -> None:
    def rows(values: Any) -> tf.IndexedSlices:
        return tf.IndexedSlices(values, tf.constant([0]), tf.constant([4, 3]))

    @tf.function
    def step(joint: bool) -> None:
        one, other = rows(tf.random.normal([1, 3])), tf.random.normal([3])
        factor = tf.norm(other) if joint else 2.0
        pass_on(lambda g: [rows(factor * g[0].values), g[1]], [one, other])

    step.get_concrete_function(False)
    with pytest.raises(ValueError, match="overrides apply"):
        step.get_concrete_function(True)


def test_what_runs_eagerly_cannot_be_looked_at() -> None:
    ones = [tf.ones([2]), tf.ones([3])]
    pass_on(lambda g: list(g), ones)
    with pytest.raises(ValueError, match="or may do so in a step that runs eagerly"):
        pass_on(lambda g: [2 * each for each in g], ones)


def test_outside_of_a_method_of_the_program_nothing_is_looked_at() -> None:
    joint_gradients.check_separate(optimizer(), None, [tf.ones([2])])
