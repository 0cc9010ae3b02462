"""Variables whose value is set later, or never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from strategies.replica.deferred import DeferredVariable, RemoteVariable, is_remote, peek
from strategies.replica.driving import driving

KWARGS = {"shape": [2], "dtype": tf.float32, "name": "v", "trainable": True}


class TestDeferred:
    def made(self) -> tuple[DeferredVariable, list[int]]:
        drawn: list[int] = []

        def draw() -> tf.Tensor:
            drawn.append(1)
            return tf.ones([2])

        return DeferredVariable(draw, **KWARGS), drawn

    def test_it_is_drawn_when_it_is_read_and_once(self) -> None:
        variable, drawn = self.made()
        assert (variable.shape, variable.dtype, drawn) == ([2], tf.float32, [])
        assert tf.multiply(2.0, variable).numpy().tolist() == [2.0, 2.0]
        assert variable.numpy().tolist() == [1.0, 1.0]
        assert drawn == [1]

    def test_it_is_drawn_when_a_function_reads_it(self) -> None:
        variable, drawn = self.made()
        assert tf.function(lambda: tf.reduce_sum(variable))().numpy() == 2.0
        assert drawn == [1]

    def test_what_is_assigned_is_not_drawn(self) -> None:
        variable, drawn = self.made()
        variable.assign([3.0, 4.0])
        assert (variable.numpy().tolist(), drawn) == ([3.0, 4.0], [])

    def test_a_peek_leaves_it_undrawn(self) -> None:
        variable, _ = self.made()
        assert peek(variable).numpy().tolist() == [1.0, 1.0]
        assert variable.draw is not None
        assert not is_remote(variable)

    def test_what_it_has_can_be_forgotten(self) -> None:
        variable, drawn = self.made()
        variable.assign([3.0, 4.0])
        for value in ([5.0, 6.0], [7.0, 8.0]):
            variable.forget(lambda: tf.zeros([2]))
            variable.assign(value)
            assert variable.numpy().tolist() == value
        variable.forget(lambda: tf.zeros([2]))
        assert (variable.numpy().tolist(), drawn) == ([0.0, 0.0], [])

    def test_a_value_of_another_shape_is_refused(self) -> None:
        variable, _ = self.made()
        with pytest.raises(ValueError, match="Received: a value of shape"):
            variable.assign([1.0, 2.0, 3.0])


class TestRemote:
    def test_it_has_a_shape_and_no_value(self) -> None:
        variable = RemoteVariable(3, **KWARGS)
        assert (variable.shape, variable.owner, is_remote(variable)) == ([2], 3, True)
        assert variable.assign([1.0, 2.0]) is variable
        with pytest.raises(ValueError, match="is owned by rank 3"):
            variable.numpy()

    def test_a_driver_sends_what_is_assigned_added_and_subtracted(self) -> None:
        class Owner:
            """Stands for the rank that owns the variable."""

            value = tf.constant([1.0, 2.0])

            def read(self, component: RemoteVariable) -> tf.Tensor:
                return self.value

            def slices(self, component: RemoteVariable) -> Iterator[tf.Tensor]:
                yield self.value

            def assign(self, component: RemoteVariable, value: Any) -> None:
                self.value = tf.convert_to_tensor(value)

        variable, owner = RemoteVariable(3, **KWARGS), Owner()
        with driving(owner):
            variable.assign_add([2.0, 2.0])
            assert variable.numpy().tolist() == [3.0, 4.0]
            variable.assign_sub([1.0, 0.0])
            assert variable.numpy().tolist() == [2.0, 4.0]
            variable.assign([7.0, 8.0])
        variable.assign_add([1.0, 1.0])
        assert owner.value.numpy().tolist() == [7.0, 8.0]
