"""The bytes of the activations that a model's layers return in a training step, counted without computing them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.rematerialization import is_rematerialized, offloads
from keras_ext.tensor.split_tensor import SplitTensor
from strategies import layer_api

#: Layers that return their input in another shape, and so take no memory of their own.
_VIEWS = (keras.layers.Flatten, keras.layers.Identity, keras.layers.Reshape)


def activation_bytes(
    model: Any, num_rows: int, *, length: int | None = None, stages: Sequence[Sequence[Any]] = ((),)
) -> list[StageBytes] | None:
    """Returns the bytes of the outputs of a model's layers for `num_rows` rows, at any depth, each tensor once.

    A recomputed layer counts its inputs, if they stay on the device. Tensors inside recomputed layers exist for one
    such layer at a time, so only the layer with the most bytes inside counts. Of tensors in pieces, the first piece
    counts, which no other one exceeds.

    Args:
        model: Sequential or Functional; unchanged afterwards.
        num_rows: the size of the first dim of each input.
        length: the size of the other dims of inputs that have none.
        stages: the operations that each stage of a pipeline calls, in this order; one stage for other models.

    Returns:
        The bytes of each stage; None for a model without a graph of layers.

    Raises:
        ValueError: an input, or the output of a layer, has a dim of unknown size.
    """
    if not getattr(model, "inputs", None):
        return None
    given = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    for each in keras.tree.flatten(given):
        if None in each.shape[1:] and length is None:
            raise ValueError(
                "The bytes of activations follow from the sizes of the inputs. Give all of them but the rows, as in "
                f"keras.Input((128,)), or sequence_length. Received: an input {each.name!r} of shape {each.shape}."
            )

    def sized(x: Any) -> Any:
        return keras.KerasTensor((num_rows, *(length if n is None else n for n in x.shape[1:])), dtype=x.dtype)

    rows = keras.tree.map_structure(sized, given)
    with _watched(_operations(model), _Watch(stages)) as watch:

        def compute(inputs: Any) -> Any:
            watch.know_inputs(inputs)
            return model(inputs, training=True)

        layer_api.shapes_of(compute, rows)
    return watch.stages


@dataclasses.dataclass(frozen=True)
class StageBytes:
    """The bytes of the activations of one stage of a pipeline; of all layers, if a model is none.

    Attributes:
        received: of tensors that other stages send.
        held: of the other tensors that are held until the backward pass.
        inside: of the tensors that exist while one recomputed layer, the largest, is computed.
    """

    received: int
    held: int
    inside: int

    @property
    def together(self) -> int:
        """The sum of the bytes, for one pass."""
        return self.received + self.held + self.inside


@contextlib.contextmanager
def _watched(operations: Sequence[Any], watch: _Watch) -> Iterator[_Watch]:
    """Context manager: counts the tensors that calls of the operations return in the block."""
    # Keras calls a quantized layer by another method.
    names = ["quantized_call" if getattr(each, "quantization_mode", None) else "call" for each in operations]
    own = [vars(operation).get(name) for operation, name in zip(operations, names, strict=True)]
    for operation, name in zip(operations, names, strict=True):
        if is_rematerialized(operation):
            call = functools.partial(watch.call_block, getattr(operation, name), offloads(operation))
        else:
            call = functools.partial(watch.call, getattr(operation, name), not isinstance(operation, _VIEWS))
        setattr(operation, name, functools.partial(watch.call_in_stage, operation, call))
    try:
        yield watch
    finally:
        for operation, name, call in zip(operations, names, own, strict=True):
            if call is None:
                delattr(operation, name)
            else:
                setattr(operation, name, call)


def _operations(model: Any) -> list[Any]:
    """Returns a model's layers at any depth, and the operations of its graphs that are not layers."""
    layers = model._flatten_layers()
    found = {id(each): each for layer in layers for each in (layer, *getattr(layer, "operations", ()))}
    return [each for each in found.values() if not isinstance(each, keras.layers.InputLayer)]


class _Watch:
    """Counts the tensors that calls return.

    Args:
        stages: the operations that each stage calls.
    """

    def __init__(self, stages: Sequence[Sequence[Any]]) -> None:
        self._operations = {id(operation) for stage in stages for operation in stage}
        # The stage of each call, in order.
        self._calls = iter([k for k, stage in enumerate(stages) for _ in stage])
        self._is_in_stage = False
        self._stage = 0
        # By stage: the bytes of tensors that are held, by id; those that were received; those inside recomputed layers.
        self._held: list[dict[int, int]] = [{} for _ in stages]
        self._received: list[dict[int, int]] = [{} for _ in stages]
        self._blocks: list[list[int]] = [[] for _ in stages]
        # Keeps all seen tensors alive: no other tensor can then have the same id.
        self._known: dict[int, Any] = {}
        self._inputs: dict[int, Any] = {}
        self._inside: dict[int, int] | None = None

    @property
    def stages(self) -> list[StageBytes]:
        """The bytes of each stage."""
        of_stages = zip(self._received, self._held, self._blocks, strict=True)
        return [
            StageBytes(sum(received.values()), sum(held.values()), max(blocks, default=0))
            for received, held, blocks in of_stages
        ]

    def know_inputs(self, tensors: Any) -> None:
        """Records the inputs of the model, which are not the output of any layer, and do not count."""
        self._inputs = {id(each): each for each in _tensors_in(tensors)}

    def know(self, tensors: Any, *, is_counted: bool = False) -> None:
        """Records tensors; they count as 0 bytes unless `is_counted`."""
        found = self._held[self._stage] if self._inside is None else self._inside
        for each in _tensors_in(tensors):
            if id(each) not in found and id(each) not in self._inputs and not self._stages_of(each):
                self._known[id(each)] = each
                found[id(each)] = _bytes_of(each) if is_counted else 0

    def _stages_of(self, tensor: Any) -> list[int]:
        return [stage for stage, held in enumerate(self._held) if id(tensor) in held]

    def call_in_stage(self, operation: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls an operation, as the next one of the pipeline's graph if it belongs to it."""
        if self._is_in_stage or id(operation) not in self._operations:
            return call(*args, **kwargs)
        self._stage = next(self._calls)
        for each in _tensors_in((args, kwargs)):
            if self._stages_of(each) not in ([], [self._stage]):
                self._received[self._stage][id(each)] = _bytes_of(each)
        self._is_in_stage = True
        try:
            return call(*args, **kwargs)
        finally:
            self._is_in_stage = False

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
            for each in _tensors_in((args, kwargs)):
                self._held[self._stage][id(each)] = self._received[self._stage][id(each)] = 0
                self._known[id(each)] = each
        else:
            self.know((args, kwargs), is_counted=True)
        self._inside = {}
        try:
            made = call(*args, **kwargs)
        finally:
            self._blocks[self._stage].append(sum(self._inside.values()))
            self._inside = None
        self.know(made, is_counted=True)
        return made


def _tensors_in(values: Any) -> Iterator[Any]:
    """Yields the tensors of a structure; of tensors in pieces the first piece."""
    for each in keras.tree.flatten(values):
        if isinstance(each, SplitTensor):
            yield each.pieces[0]
        elif ops.is_tensor(each):
            yield each


def _bytes_of(tensor: Any) -> int:
    if None in tensor.shape:
        raise ValueError(
            "The bytes of activations follow from shapes. Give inputs of one size, and layers that return as many "
            f"numbers whatever the values are. Received: a tensor of shape {tensor.shape}."
        )
    return math.prod(tensor.shape) * int(tensor.dtype.size)
