"""Variables without memory: remote ones, which other processes own, and deferred ones, which are drawn on first use.

Where a replica spans processes, each process makes the whole model, so that it can show all of it, but holds only its
own part. A variable at coordinates where this process owns no part is a `RemoteVariable`: it has a shape and a dtype,
can be traced, and has no value. A model that is made before it is split, or cut into stages, has no coordinates yet:
its weights are `DeferredVariable`, drawn when something reads them. Usually nothing does, because copies that have
coordinates are drawn instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tf_internals import UninitializedVariable
from strategies.replica.creation_context import creating
from strategies.replica.driving import current_driver
from strategies.replica.stored_array import StoredArray

#: The prefix of the names of graphs in which Keras only infers shapes, and which never run.
SHAPES_ONLY = "scratch_graph"


class RemoteVariable(UninitializedVariable):
    """A variable that only other processes own.

    Args:
        owner: the first rank that owns it.
        **kwargs: arguments of ``tf.Variable``: shape, dtype, name, trainable, aggregation.
    """

    def __init__(self, owner: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.owner = owner

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        if tf.executing_eagerly():
            driver = current_driver()
            if driver is not None:
                return driver.read(self)
            raise ValueError(
                f"{self.name!r} is owned by rank {self.owner}, not by this process. Read all weights at once, on all "
                "ranks: model.get_weights(), or save the model."
            )
        # A graph may read its shape only. If that graph runs, TensorFlow raises its error for uninitialized variables.
        return super()._read_variable_op(no_copy)

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Ignores the value: the variable's owners assign it themselves. A driver sends the value to them."""
        driver = current_driver()
        if driver is not None and tf.executing_eagerly():
            driver.assign(self, value)
        return self

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Ignores the value: the variable's owners add it themselves. A driver sends the sum to them."""
        return self._assign_sum(lambda: delta)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Ignores the value: the variable's owners subtract it themselves. A driver sends the difference to them."""
        return self._assign_sum(lambda: tf.negative(tf.convert_to_tensor(delta, self.dtype)))

    def _assign_sum(self, delta: Callable[[], Any]) -> Any:
        driver = current_driver()
        if driver is not None and tf.executing_eagerly():
            driver.assign(self, driver.read(self) + tf.convert_to_tensor(delta(), self.dtype))
        return self


class DeferredVariable(UninitializedVariable):
    """A variable that is initialized when it is first assigned, or read for more than its shape.

    Args:
        initial_value: returns the value.
        **kwargs: arguments of ``tf.Variable``: shape, dtype, name, trainable, aggregation.
    """

    def __init__(self, initial_value: Callable[[], Any], **kwargs: Any) -> None:
        #: Returns the value; None once the variable has it.
        self.draw: Callable[[], Any] | None = None
        super().__init__(**kwargs)
        self.draw = initial_value

    @property
    def handle(self) -> Any:
        """The handle. The value is drawn first, except in a graph that only infers shapes."""
        if self.draw is not None and not in_shapes_only():
            self.draw_now()
        return super().handle

    def draw_now(self) -> None:
        """Draws the value, if that has not been done yet."""
        draw, self.draw = self.draw, None
        if draw is not None:
            with tf.init_scope(), tf.device(self._handle.device), creating(draws_in_place=True):
                self._fill(draw())

    @property
    def device(self) -> str:
        """The device; reading it does not draw the value."""
        return str(self._handle.device)

    def forget(self, draw: Callable[[], Any]) -> None:
        """Frees the memory of the value; the next read calls ``draw``."""
        empty = tf.zeros([0], self.dtype)
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=empty, validate_shape=False)
        self.draw = draw

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns a value; the initial one is never drawn."""
        if self.draw is None or not tf.executing_eagerly():
            return super().assign(value, *args, **kwargs)
        self.draw = None
        with tf.device(self._handle.device):
            self._fill(value)
        return self

    def _fill(self, value: Any) -> None:
        """Sets a variable that has no value yet, or an empty value of another shape."""
        tensor = tf.cast(value, self.dtype)
        if not self.shape.is_compatible_with(tensor.shape):
            raise ValueError(f"{self.name!r} has shape {self.shape}. Received: a value of shape {tensor.shape}.")
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=tensor, validate_shape=False)


@dataclasses.dataclass(frozen=True)
class UnknownValue:
    """A value of a variable that is made only for its shape. Assigning it leaves the variable without one.

    Attributes:
        shape: the shape of the value.
        dtype: the name of its dtype.
    """

    shape: tuple[int, ...]
    dtype: str


@contextlib.contextmanager
def drawn_for_now(variables: Iterable[Any]) -> Iterator[None]:
    """Context manager: deferred Keras or TensorFlow variables are drawn when they are read, and deferred again at exit.

    Functions traced in the block must not run later, and nothing may assign the variables in it.
    """
    components = [each for each in map(component_of, variables) if isinstance(each, DeferredVariable)]
    deferred = [(component, component.draw) for component in components if component.draw is not None]
    try:
        yield
    finally:
        for component, draw in deferred:
            if component.draw is None:
                component.forget(draw)


def draw_values(variables: Iterable[Any]) -> None:
    """Draws deferred Keras or TensorFlow variables, or reads them from their files, one after the other."""
    for component in map(component_of, variables):
        if isinstance(component, DeferredVariable) and component.draw is not None:
            component.draw_now()


def draw_of(variable: Any) -> Callable[[], Any] | None:
    """Returns a deferred variable's draw function, of the whole value if it is sharded; None if it is drawn."""
    component = component_of(variable)
    if not isinstance(component, DeferredVariable) or component.draw is None:
        return None
    whole: Callable[[], Any] = getattr(component.draw, "whole", component.draw)
    return whole


def draw_by(variable: Any, draw: Callable[[], Any]) -> None:
    """Replaces a deferred variable's draw function by ``draw``, which returns the whole value even if it is sharded."""
    component = component_of(variable)
    like = component.draw
    component.draw = dataclasses.replace(like, whole=draw) if isinstance(like, RangeDraw) else draw


@dataclasses.dataclass(frozen=True)
class StoredDraw:
    """A draw that reads a value from a file. Copies of the variable take over the array, and read only their parts.

    Attributes:
        array: the value.
    """

    array: StoredArray

    def __call__(self) -> tf.Tensor:
        """Returns the value, on the host."""
        with tf.device("CPU:0"):
            return tf.convert_to_tensor(np.asarray(self.array))


def stored_array_of(variable: Any) -> StoredArray | None:
    """Returns the array in a file that a deferred variable, if sharded all of it, is to be read from; else None."""
    draw = draw_of(variable)
    return draw.array if isinstance(draw, StoredDraw) else None


def is_left_in_file(variable: Any) -> bool:
    """Returns True if a Keras or TensorFlow variable is to be read from a file when it is used."""
    return stored_array_of(variable) is not None


@dataclasses.dataclass(frozen=True)
class RangeDraw:
    """A draw that returns a range of the elements of a whole value.

    Attributes:
        whole: draws the whole value.
        cut: takes the whole value, a tensor or a `StoredArray`, and returns the range.
    """

    whole: Callable[[], Any]
    cut: Callable[[Any], tf.Tensor]

    def __call__(self) -> tf.Tensor:
        """Returns the range, on the host."""
        with tf.device("CPU:0"):
            if isinstance(self.whole, StoredDraw):
                return self.cut(self.whole.array)
            return self.cut(tf.convert_to_tensor(self.whole()))


def peek(variable: Any) -> Any:
    """Returns the value of a Keras or TensorFlow variable; a deferred variable stays deferred."""
    component, draw = component_of(variable), draw_of(variable)
    if draw is not None:
        with tf.init_scope(), creating(draws_in_place=True):
            return draw()
    return tf.convert_to_tensor(getattr(variable, "value", variable) if component is None else component)


def is_remote(variable: Any) -> bool:
    """Returns True if other processes own a Keras or TensorFlow variable, and this one does not."""
    return isinstance(component_of(variable), RemoteVariable)


def component_of(variable: Any) -> Any:
    """Returns the first local replica's component of a Keras or TensorFlow variable; None if there is none."""
    value = variable if isinstance(variable, (tf.Variable, tf.distribute.DistributedValues)) else None
    value = getattr(variable, "_value", None) if value is None else value
    if isinstance(value, tf.distribute.DistributedValues):
        return value.values[0]
    return value if isinstance(value, tf.Variable) else None


def in_shapes_only() -> bool:
    """Returns True inside a graph that only infers shapes and never runs."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "building_function", False):
        if str(getattr(graph, "name", "")).startswith(SHAPES_ONLY):
            return True
        graph = graph.outer_graph
    return False
