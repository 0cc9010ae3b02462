"""Models that are made only for their shapes, or to be copied: their variables take no memory until they are used.

``keras.StatelessScope(initialize_variables=False)`` does not work: in it, Keras refuses variables that are made from a
value, and therefore every optimizer (because of its iteration); and it adds the variables made there to a list that the
next such scope initializes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies import _keras_hooks
from strategies._keras_hooks.global_state import global_state_kept
from strategies.replica.creation_context import creating, creation_context
from strategies.replica.deferred import DeferredVariable
from strategies.replica.parts import Coordinates, current_parts, planned_parts
from strategies.saving.unread_files import Loading, loading_unread
from strategies.steps.placed_variables import form_of


@dataclass(frozen=True)
class UndrawnVariable:
    """A variable made in a block of :func:`variables_undrawn`.

    Attributes:
        variable: the variable of TensorFlow.
        coordinates: its coordinates in the replica.
        is_expert: True if the axis "expert" divides its rows.
    """

    variable: tf.Variable
    coordinates: Coordinates
    is_expert: bool = False

    def is_at(self, positions: Mapping[str, int]) -> bool:
        """Returns True if the device at these positions has the variable, where each device has its own process."""
        return all(positions.get(axis, 0) in at for axis, at in self.coordinates.items())


@contextlib.contextmanager
def variables_undrawn(axes: Mapping[str, int] | None = None) -> Iterator[list[UndrawnVariable]]:
    """Context manager: variables that Keras makes from an initializer take no memory until they are read or assigned.

    Yields the variables, in the order in which they are made. Restores the global state of Keras and the random
    generators afterwards.

    Args:
        axes: the sizes of "pipe" and "tensor", in this order, of the mesh of which models are split, and cut into
            stages, in the block.

    Raises:
        ValueError: a variable is made in the scope of a strategy.
    """
    _keras_hooks.install()
    made: list[UndrawnVariable] = []

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        if tf.distribute.has_strategy():
            raise ValueError(
                "A model of which only sizes are wanted is made without a strategy. Leave the scope out. "
                f"Received: {kwargs.get('name')!r} under {type(tf.distribute.get_strategy()).__name__}."
            )
        initial_value = kwargs.get("initial_value")
        if callable(initial_value):
            # Handles on the host are enough.
            with tf.device("CPU:0"):
                variable: tf.Variable = DeferredVariable(initial_value, **form_of(kwargs))
        else:
            variable = next_creator(**kwargs)
        is_expert = creation_context().row_axis == "expert"
        made.append(UndrawnVariable(variable, current_parts().coordinates, is_expert))
        return variable

    # Keras collects garbage whenever a layer is quantized: it need not look through what exists already.
    freezes = gc.get_freeze_count() == 0
    if freezes:
        gc.freeze()
    parts = planned_parts({"pipe": 1, "tensor": 1, **(axes or {})})
    with global_state_kept(), parts, creating(only_shapes=True), tf.variable_creator_scope(create):
        try:
            yield made
        finally:
            if freezes:
                gc.unfreeze()


@contextlib.contextmanager
def weights_left_in_files(*, collects: bool = False) -> Iterator[Loading]:
    """Context manager: variables take no memory, and files that are loaded into them are not read.

    The variables are those of one device, also in the scope of a strategy. Each is drawn, or read from its file, when
    it is used; copies in the scope, such as those of ``keras_ext.parallelize``, read only their own parts.

    Args:
        collects: True to note everything that differs, instead of raising an error for the first weight that does.
    """
    _keras_hooks.install()

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        # The next creator is that of the strategy, which is to make no variable.
        del next_creator
        initial_value = kwargs.get("initial_value")
        # Handles on the host are enough.
        with tf.device("CPU:0"):
            return DeferredVariable(
                initial_value if callable(initial_value) else lambda: initial_value, **form_of(kwargs)
            )

    with loading_unread(collects=collects) as loading, tf.variable_creator_scope(create):
        yield loading
