"""A replica's function for XLA: its arguments, and the graphs that are refused.

Its numbers in training are tested in tests/strategies/_keras_hooks/test_compiled_steps.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import strategies
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.steps.compiled_replica import NotCompilableError, check_graph, compute


def in_replicas(replica: Callable[[Any], Any], batch: Any) -> Any:
    """Runs ``replica`` on two devices, in a graph; returns what the first returned."""
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])

    @tf.function(autograph=False)
    def step(batch: Any) -> Any:
        return strategy.run(replica, args=(batch,))

    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch))
    return strategy.experimental_local_results(step(next(iter(dataset))))[0]


def test_takes_nests_and_hands_on_what_is_no_tensor() -> None:
    def replica(batch: Any) -> Any:
        return compute(lambda x, other: (x["a"] * 2.0, other), ({"a": batch}, None), on_gpu=False)

    doubled, other = in_replicas(replica, tf.ones((4, 3)))
    assert doubled.numpy().tolist() == [[2.0] * 3] * 2
    assert other is None


def test_inside_tensors_depend_on_rows_as_outside() -> None:
    kinds: list[Kind] = []

    def replica(batch: Any) -> Any:
        def function(x: Any) -> Any:
            share = shares.current()
            assert share is not None
            assert not share.in_inner_function
            kinds.extend(
                share.dependence.kind(each) for each in (x, tf.reduce_mean(x), tf.convert_to_tensor(share.weight))
            )
            return tf.reduce_sum(x)

        total = compute(function, (batch,), on_gpu=False)
        share = shares.current()
        assert share is not None
        kinds.append(share.dependence.kind(total))
        return total

    in_replicas(replica, tf.ones((4, 3)))
    assert kinds[:4] == [Kind.ROWS, Kind.MEAN, Kind.SAME, Kind.SUM]


@pytest.mark.parametrize(
    ("batch", "function", "says"),
    [
        (tf.constant(["a", "b"]), tf.identity, "no tensor of string"),
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), lambda x: x.to_tensor(), "not a RaggedTensor"),
        (tf.ones((2, 1)), lambda x: [tf.print("seen"), x][1], "operations .*PrintV2"),
        (
            tf.ones((2, 1)),
            lambda x: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x),
            "runs a collective",
        ),
        (tf.ones((2, 1)), lambda x: x.nothing, "cannot be traced by itself .AttributeError"),
    ],
    ids=["string", "ragged", "print", "collective", "fault"],
)
def test_refuses(batch: Any, function: Callable[[Any], Any], says: str) -> None:
    reasons = []

    def replica(batch: Any) -> Any:
        try:
            return compute(function, (batch,), on_gpu=False)
        except NotCompilableError as reason:
            reasons.append(str(reason))
            return tf.constant(0)

    in_replicas(replica, batch)
    assert len(reasons) == 2
    for reason in reasons:
        with pytest.raises(NotCompilableError, match=says):
            raise NotCompilableError(reason)


def test_needs_a_replica() -> None:
    with pytest.raises(ValueError, match=r"inside of strategy\.run"):
        compute(tf.identity, (tf.ones(2),), on_gpu=False)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_looks_into_functions_that_a_graph_calls(on_gpu: bool) -> None:
    inner = tf.function(lambda x: tf.strings.to_number(tf.strings.as_string(x)), autograph=False)
    graph = tf.function(lambda x: tf.cond(x > 0, lambda: inner(x), lambda: x), autograph=False)
    with pytest.raises(NotCompilableError, match="AsString, StringToNumber"):
        check_graph(graph.get_concrete_function(tf.TensorSpec(())).graph, on_gpu=on_gpu)
    check_graph(tf.function(tf.nn.relu).get_concrete_function(tf.TensorSpec(())).graph, on_gpu=on_gpu)
