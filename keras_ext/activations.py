"""The bytes of the activations that a model's layers return in a training step, counted without computing them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.rematerialization import is_rematerialized, offloads
from strategies import layer_api

#: Layers that return their input in another shape, and so take no memory of their own.
_VIEWS = (keras.layers.Flatten, keras.layers.Identity, keras.layers.Reshape)


def activation_bytes(model: Any, num_rows: int) -> int | None:
    """Returns the bytes of the outputs of a model's layers for `num_rows` rows, at any depth, each tensor once.

    A recomputed layer counts its inputs, if they stay on the device. Tensors inside recomputed layers exist for one
    such layer at a time, so only the layer with the most bytes inside counts.

    Args:
        model: Sequential or Functional; unchanged afterwards.
        num_rows: the size of the first dim of each input.

    Returns:
        The bytes; None for a model without a graph of layers.

    Raises:
        ValueError: an input, or the output of a layer, has a dim of unknown size.
    """
    if not getattr(model, "inputs", None):
        return None
    given = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    for each in keras.tree.flatten(given):
        if None in each.shape[1:]:
            raise ValueError(
                "The bytes of activations follow from the sizes of the inputs. Give all of them but the rows, as in "
                f"keras.Input((128,)). Received: an input {each.name!r} of shape {each.shape}."
            )
    rows = keras.tree.map_structure(lambda x: keras.KerasTensor((num_rows, *x.shape[1:]), dtype=x.dtype), given)
    with _watched(_operations(model)) as watch:

        def compute(inputs: Any) -> Any:
            # Inputs are not the output of any layer, and do not count.
            watch.know(inputs)
            return model(inputs, training=True)

        layer_api.shapes_of(compute, rows)
    return watch.held + max(watch.blocks, default=0)


@contextlib.contextmanager
def _watched(operations: Sequence[Any]) -> Iterator[_Watch]:
    """Context manager: counts the tensors that calls of the operations return in the block."""
    watch = _Watch()
    own = [vars(operation).get("call") for operation in operations]
    for operation in operations:
        if is_rematerialized(operation):
            operation.call = functools.partial(watch.call_block, operation.call, offloads(operation))
        else:
            operation.call = functools.partial(watch.call, operation.call, not isinstance(operation, _VIEWS))
    try:
        yield watch
    finally:
        for operation, call in zip(operations, own, strict=True):
            if call is None:
                del operation.call
            else:
                operation.call = call


def _operations(model: Any) -> list[Any]:
    """Returns a model's layers at any depth, and the operations of its graphs that are not layers."""
    layers = model._flatten_layers()
    found = {id(each): each for layer in layers for each in (layer, *getattr(layer, "operations", ()))}
    return [each for each in found.values() if not isinstance(each, keras.layers.InputLayer)]


class _Watch:
    """Counts the tensors that calls return."""

    def __init__(self) -> None:
        #: The bytes inside each recomputed layer.
        self.blocks: list[int] = []
        # The bytes of tensors outside of these, by id.
        self._held: dict[int, int] = {}
        # Keeps all seen tensors alive: no other tensor can then have the same id.
        self._known: dict[int, Any] = {}
        self._inside: dict[int, int] | None = None

    @property
    def held(self) -> int:
        """The bytes outside of recomputed layers."""
        return sum(self._held.values())

    def know(self, tensors: Any, *, is_counted: bool = False) -> None:
        """Records tensors; they count as 0 bytes unless `is_counted`."""
        found = self._held if self._inside is None else self._inside
        for each in keras.tree.flatten(tensors):
            if ops.is_tensor(each) and id(each) not in self._held and id(each) not in found:
                self._known[id(each)] = each
                found[id(each)] = _bytes_of(each) if is_counted else 0

    def call(self, call: Callable[..., Any], is_counted: bool, *args: Any, **kwargs: Any) -> Any:
        """Calls an operation and counts what it returns."""
        made = call(*args, **kwargs)
        self.know(made, is_counted=is_counted)
        return made

    def call_block(self, call: Callable[..., Any], offload: bool, *args: Any, **kwargs: Any) -> Any:
        """Calls a recomputed layer: tensors inside it exist only during its computation."""
        if self._inside is not None:
            # A block inside of a block: while the outer one is recomputed, it holds all.
            return self.call(call, True, *args, **kwargs)
        if offload:
            for each in keras.tree.flatten((args, kwargs)):
                self._held[id(each)] = 0
                self._known[id(each)] = each
        else:
            self.know((args, kwargs), is_counted=True)
        self._inside = {}
        try:
            made = call(*args, **kwargs)
        finally:
            self.blocks.append(sum(self._inside.values()))
            self._inside = None
        self.know(made, is_counted=True)
        return made


def _bytes_of(tensor: Any) -> int:
    if None in tensor.shape:
        raise ValueError(
            "The bytes of activations follow from shapes. Give inputs of one size, and layers that return as many "
            f"numbers whatever the values are. Received: a tensor of shape {tensor.shape}."
        )
    return math.prod(tensor.shape) * int(tensor.dtype.size)
