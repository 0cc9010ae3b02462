"""The contract of every implementation of Collectives: values, gradients, sub-groups, sizes, refusals.

Each test states the whole exchange on one device: plain TensorFlow over the values of all coordinates. An
implementation gets and returns only the values of its own process, so that one class serves one process and several.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives import Collectives
from tests.strategies.collectives.reference import (
    CASES,
    CUBE,
    EXCHANGE,
    FLOATS,
    LOWEST,
    MODES_AND_CASES,
    ROOT,
    SCATTER,
    SQUARE,
    SUM,
    SWAP,
    UNEQUAL,
    Case,
    Tensors,
    draw,
    ids,
    reference,
)
from tests.strategies.collectives.refusals import RefusalsContract


class CollectivesContract(RefusalsContract):
    """Inherit and implement `make`; every process runs all tests, in the same order."""

    def check(self, collectives: Collectives, mode: str, case: Case, axis: str, dtype: str = "float32") -> None:
        """Compares values and gradients with those of one device."""
        method, kwargs, shape = case
        mesh, local = collectives.mesh, collectives.local_indices
        values = draw([shape(i) for i in range(mesh.size)], dtype)
        with tf.GradientTape() as tape:
            tape.watch(values)
            expected = reference(mesh, method, values, axis, **kwargs)
            weights = draw([tuple(e.shape) for e in expected], dtype)
            loss = tf.add_n([tf.reduce_sum(e * w) for e, w in zip(expected, weights, strict=True)])
        expected_gradients = tape.gradient(loss, values, unconnected_gradients="zero")

        def step(mine: Tensors) -> tuple[Tensors, Tensors]:
            with tf.GradientTape() as tape:
                tape.watch(mine)
                outputs = getattr(collectives, method)(mine, axis, **kwargs)
                losses = [tf.reduce_sum(o * weights[i]) for i, o in zip(local, outputs, strict=True)]
            return outputs, tape.gradient(losses, mine)

        outputs, gradients = self.run(mode, step, [values[i] for i in local])
        for i, output, gradient in zip(local, outputs, gradients, strict=True):
            np.testing.assert_allclose(output, expected[i], rtol=1e-6, err_msg=f"value of {i}")
            np.testing.assert_allclose(gradient, expected_gradients[i], rtol=1e-6, err_msg=f"gradient of {i}")

    @pytest.mark.parametrize(("mode", "case"), MODES_AND_CASES, ids=ids)
    def test_values_and_gradients(self, mode: str, case: Case) -> None:
        self.check(self.make(SQUARE), mode, case, "data")

    def test_every_axis_of_a_cube(self) -> None:
        collectives = self.make(CUBE)
        for axis in CUBE:
            for case in (UNEQUAL, EXCHANGE):
                self.check(collectives, "graph", case, axis)

    def test_longer_axis_and_any_order_of_devices(self) -> None:
        collectives = self.make({"data": 4}, reverse=True)
        for case in (UNEQUAL, SCATTER, EXCHANGE, SWAP):
            self.check(collectives, "graph", case, "data")

    @pytest.mark.parametrize("case", CASES[::4], ids=ids)
    def test_an_axis_the_mesh_does_not_have_is_a_group_of_one(self, case: Case) -> None:
        if case[0] not in ("broadcast", "permute"):
            for mode in ("eager", "graph"):
                self.check(self.make({"data": 4}), mode, case, "tensor")

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_float_dtypes(self, dtype: str) -> None:
        for case in (SUM, UNEQUAL, EXCHANGE, SWAP):
            self.check(self.make(SQUARE), "graph", case, "data", dtype)

    @pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
    def test_other_dtypes(self, dtype: str) -> None:
        collectives = self.make(SQUARE)
        cases = [UNEQUAL, ROOT, EXCHANGE, SWAP] + [SUM, LOWEST, SCATTER] * (dtype != "bool")
        values = {ids(case): draw([case[2](i) for i in range(4)], dtype) for case in cases}
        mine = {name: [value[i] for i in collectives.local_indices] for name, value in values.items()}

        @tf.function(autograph=False)
        def step() -> dict[str, Tensors]:
            return {ids(case): getattr(collectives, case[0])(mine[ids(case)], "data", **case[1]) for case in cases}

        outputs = step()
        for case in cases:
            expected = reference(collectives.mesh, case[0], values[ids(case)], "data", **case[1])
            for i, output in zip(collectives.local_indices, outputs[ids(case)], strict=True):
                assert output.dtype == expected[i].dtype
                np.testing.assert_array_equal(output, expected[i])

    def test_results_lie_on_the_devices_of_their_coordinates(self) -> None:
        collectives = self.make(SQUARE)

        def step(mine: Tensors) -> Tensors:
            last = []
            for method, kwargs, _ in (SUM, UNEQUAL, SCATTER, ROOT, EXCHANGE, SWAP):
                last = getattr(collectives, method)(mine, "data", **kwargs)
                for output, index in zip(last, collectives.local_indices, strict=True):
                    assert output.device.endswith(collectives.mesh.devices[index])
            return last

        values = draw([(8, 2)] * len(collectives.local_indices))
        self.run("eager", step, values)
        self.run("graph", step, values)

    def test_not_differentiable_on_request(self, mode: str) -> None:
        collectives = self.make(SQUARE)

        def step(mine: Tensors) -> tuple[Tensors, list[bool]]:
            with tf.GradientTape() as tape:
                tape.watch(mine)
                outputs = collectives.all_reduce(mine, "data", differentiable=False)
            return outputs, [gradient is None for gradient in tape.gradient(outputs, mine)]

        values = draw([(2,)] * 4)
        expected = reference(collectives.mesh, "all_reduce", values, "data")
        outputs, without = self.run(mode, step, [values[i] for i in collectives.local_indices])
        assert all(without)
        for i, output in zip(collectives.local_indices, outputs, strict=True):
            np.testing.assert_array_equal(output, expected[i])

    def test_gradient_of_a_gradient(self, mode: str) -> None:
        collectives = self.make(SQUARE)
        values = [v + 0.5 for v in draw([(2, 3)] * 4)]
        with tf.GradientTape() as outer:
            outer.watch(values)
            with tf.GradientTape() as inner:
                inner.watch(values)
                gathered = reference(collectives.mesh, "all_gather", values, "data")
                loss = tf.add_n([tf.reduce_sum(g**3) for g in gathered])
            first = inner.gradient(loss, values)
            penalty = tf.add_n([tf.reduce_sum(g**2) for g in first])
        expected = outer.gradient(penalty, values)

        def step(mine: Tensors) -> Tensors:
            with tf.GradientTape() as outer:
                outer.watch(mine)
                with tf.GradientTape() as inner:
                    inner.watch(mine)
                    gathered = collectives.all_gather(mine, "data")
                    losses = [tf.reduce_sum(g**3) for g in gathered]
                first = inner.gradient(losses, mine)
                penalties = [tf.reduce_sum(g**2) for g in first]
            return outer.gradient(penalties, mine)

        second = self.run(mode, step, [values[i] for i in collectives.local_indices])
        for i, gradient in zip(collectives.local_indices, second, strict=True):
            np.testing.assert_allclose(gradient, expected[i], rtol=1e-6)

    def test_one_function_serves_batches_of_any_size(self) -> None:
        collectives = self.make(SQUARE)
        num_local = len(collectives.local_indices)
        traced = tf.function(
            lambda mine: (collectives.all_reduce(mine, "data"), collectives.all_gather(mine, "tensor")),
            input_signature=[[tf.TensorSpec([None, 2])] * num_local],
            autograph=False,
        )
        for num_rows in (3, 1, 64, 0, 17, 3, 1000):
            values = draw([(num_rows, 2)] * 4)
            mine = [values[i] for i in collectives.local_indices]
            results = (
                traced(mine),
                (collectives.all_reduce(mine, "data"), collectives.all_gather(mine, "tensor")),
            )
            summed = reference(collectives.mesh, "all_reduce", values, "data")
            gathered = reference(collectives.mesh, "all_gather", values, "tensor")
            for outcome in results:
                for i, one, other in zip(collectives.local_indices, *outcome, strict=True):
                    np.testing.assert_array_equal(one, summed[i])
                    np.testing.assert_array_equal(other, gathered[i])

    def test_two_instances_at_once(self, mode: str) -> None:
        first, second = self.make(SQUARE), self.make({"data": 4})
        values = draw([(5,)] * 4)

        def step(mine: Tensors) -> tuple[Tensors, Tensors, Tensors]:
            return (
                first.all_reduce(mine, "tensor"),
                second.all_reduce(mine, "data", "max"),
                first.all_gather(mine, "data"),
            )

        one, two, three = self.run(mode, step, [values[i] for i in first.local_indices])
        for outputs, mesh, method, axis, kwargs in (
            (one, first.mesh, "all_reduce", "tensor", {}),
            (two, second.mesh, "all_reduce", "data", {"op": "max"}),
            (three, first.mesh, "all_gather", "data", {}),
        ):
            expected = reference(mesh, method, values, axis, **kwargs)
            for i, output in zip(first.local_indices, outputs, strict=True):
                np.testing.assert_array_equal(output, expected[i])

    def test_many_ops_in_one_function_and_in_a_loop(self) -> None:
        collectives = self.make(CUBE)

        def step(mine: Tensors) -> Tensors:
            total = mine
            for _ in range(3):
                total = collectives.all_reduce(total, "data", "mean")
                total = collectives.permute(total, "tensor", [(0, 1), (1, 0)])
            body = lambda *loop: tuple(collectives.all_reduce(list(loop), "pipe"))  # noqa: E731
            return list(tf.while_loop(lambda *_: True, body, tuple(total), maximum_iterations=3))

        values = draw([(3,)] * 8)
        expected = reference(collectives.mesh, "all_reduce", values, "data", op="mean")
        for _ in range(3):
            expected = reference(collectives.mesh, "all_reduce", expected, "pipe")
        # Three swaps equal one.
        expected = reference(collectives.mesh, "permute", expected, "tensor", pairs=[(0, 1), (1, 0)])
        for _ in range(2):
            outputs = self.run("graph", step, [values[i] for i in collectives.local_indices])
            for i, output in zip(collectives.local_indices, outputs, strict=True):
                np.testing.assert_allclose(output, expected[i], rtol=1e-6)

    def test_channel_carries_tagged_messages_both_ways(self) -> None:
        collectives = self.make({"pipe": 2, "data": 2})
        mesh, local = collectives.mesh, collectives.local_indices
        firsts = [i for i in local if mesh.position(i, "pipe") == 0]
        lasts = [i for i in local if mesh.position(i, "pipe") == 1]
        values = draw([(2, 3)] * 4)

        @tf.function(autograph=False)
        def step(num_rows: Any) -> tuple[Tensors, Tensors]:
            there = collectives.channel("pipe", 0, 1, num_messages=3)
            back = collectives.channel("pipe", 1, 0, num_messages=3)
            arrived: dict[int, Tensors] = {}
            returned: dict[int, Tensors] = {}
            shape = [num_rows, 3]
            for tag in range(3):
                there.send([values[i][:num_rows] * (tag + 1.0) for i in firsts], tag)
            for tag in (2, 0, 1):
                arrived[tag] = there.recv([tf.stack(shape)] * len(lasts), tf.float32, tag)
                back.send([2 * a for a in arrived[tag]], tag)
            for tag in range(3):
                returned[tag] = back.recv([tf.stack(shape)] * len(firsts), tf.float32, tag)
            return [arrived[tag] for tag in range(3)], [returned[tag] for tag in range(3)]

        for num_rows in (2, 1, 2):
            arrived, returned = step(tf.constant(num_rows))
            for tag in range(3):
                for i, value in zip(lasts, arrived[tag], strict=True):
                    np.testing.assert_array_equal(value, values[mesh.group(i, "pipe")[0]][:num_rows] * (tag + 1.0))
                for i, value in zip(firsts, returned[tag], strict=True):
                    np.testing.assert_array_equal(value, values[i][:num_rows] * (tag + 1.0) * 2)
