"""Finds projections inside layers of users' own classes between which nothing but elementwise ops is computed.

A transformer's feed-forward part, ``down(silu(gate(x)) * up(x))``, is computed with parts of its hidden units if `gate`
and `up` are split by columns and `down` by rows. The layer that calls them may do anything else besides. So its own
``call`` is tried, without values: the projections return symbolic tensors of Keras, which record the ops.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.custom_layers import description_of, is_custom, nodes_kept, plain_type, plain_view
from keras_ext.tensor.gathered import input_axis, output_axis
from keras_ext.tensor.recorded_ops import is_by_pieces, node_of
from strategies import layer_api

_logger = logging.getLogger(__name__)

# The equation of a ``Dense``.
_DENSE = "...i,io->...o"
# Of rows and of positions.
_SIZES = (2, 3)


@dataclass(frozen=True)
class FeedForward:
    """A layer split by rows, and those before it, split by columns, whose outputs go nowhere else.

    Attributes:
        up: the layers that compute the hidden units.
        down: the layer that takes them.
        dims: the dim of each layer's kernel that is the hidden units, by the kernel's id.
        is_direct: True if `down` takes the output of one layer as it is.
    """

    up: tuple[Any, ...]
    down: Any
    dims: Mapping[int, int]
    is_direct: bool


def feed_forwards_in(layer: Any, num_shards: int) -> list[FeedForward]:
    """Returns the feed-forward parts that a custom layer's call computes with layers that are its own attributes.

    Args:
        layer: a layer of any class.
        num_shards: the size of the mesh axis "tensor", which divides all hidden units.
    """
    if num_shards == 1 or not is_custom(layer) or not layer.built:
        return []
    names = {name for name, inner in vars(layer).items() if isinstance(inner, keras.Layer) and _is_dense(inner)}
    if len(names) < 2:
        return []
    key = (num_shards, description_of(layer))
    if key not in _known:
        _known[key] = _Trial(layer, names).run()
    found = []
    for names_of_up, name_of_down, is_direct in _known[key]:
        up, down = tuple(getattr(layer, name) for name in names_of_up), getattr(layer, name_of_down)
        if all(_fits(each, down, num_shards) for each in up):
            dims = {id(each._kernel): _hidden_dim(each, output_axis) for each in up}
            found.append(FeedForward(up, down, dims | {id(down._kernel): _hidden_dim(down, input_axis)}, is_direct))
    return found


#: The attributes that hold the layers of feed-forward parts, by what they depend on.
_known: dict[Any, list[tuple[tuple[str, ...], str, bool]]] = {}


def _is_dense(layer: Any) -> bool:
    return layer.built and plain_type(layer) in (keras.layers.Dense, keras.layers.EinsumDense)


def _hidden_dim(layer: Any, axis_of: Callable[[str, int], int | None]) -> int:
    """Returns the dim of a kernel that is the hidden units, the last dim of the tensors between; -1 if none is.

    Args:
        layer: a projection.
        axis_of: `output_axis` for a layer that computes hidden units, `input_axis` for one that takes them.
    """
    equation = _DENSE if plain_type(layer) is keras.layers.Dense else layer.equation
    own = [dim for dim in range(layer._kernel.ndim) if axis_of(equation, dim) is not None]
    return own[0] if len(own) == 1 and axis_of(equation, own[0]) == -1 else -1


def _fits(up: Any, down: Any, num_shards: int) -> bool:
    dims = _hidden_dim(up, output_axis), _hidden_dim(down, input_axis)
    if -1 in dims:
        return False
    number = up._kernel.shape[dims[0]]
    if number % num_shards or number != down._kernel.shape[dims[1]]:
        return False
    is_quantized = up.quantization_mode is not None or down.quantization_mode is not None
    return is_elementwise(up.activation) and up.activity_regularizer is None and not is_quantized


def _letters(layer: Any) -> list[str]:
    """Returns the letters of inputs, kernel and outputs in the equation of a projection."""
    is_dense = plain_type(layer) is keras.layers.Dense
    return re.split(",|->", _DENSE if is_dense else layer.equation.replace(" ", ""))


def _num_inputs(layer: Any) -> int:
    inputs, kernel, _ = _letters(layer)
    return int(layer._kernel.shape[kernel.index(inputs[-1])]) if inputs[-1] in kernel else 1


def _output_shape(layer: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of a projection's output. That of ``EinsumDense.compute_output_shape`` may be unknown."""
    inputs, kernel, outputs = _letters(layer)
    if inputs.startswith("..."):
        return (*shape[:-1], int(layer._kernel.shape[-1]))
    sizes = dict(zip(inputs, shape, strict=True)) | dict(zip(kernel, layer._kernel.shape, strict=True))
    return tuple(int(sizes[letter]) for letter in outputs)


class _Trial:
    """A call of a layer whose projections record what is computed with their outputs."""

    def __init__(self, layer: Any, names: set[str]) -> None:
        self._layer, self._names = layer, names
        self._made: dict[int, tuple[Any, str]] = {}
        self._found: list[tuple[tuple[str, ...], str, bool]] = []

    def run(self) -> list[tuple[tuple[str, ...], str, bool]]:
        """Returns the attributes that hold the layers of each `FeedForward`; none if the call cannot be tried."""
        with layer_api.global_state_kept(), nodes_kept(self._layer):
            try:
                arguments = self._arguments()
                made = [] if arguments is None else [layer_api.shapes_of(self._call, *arguments)]
            # A library's class may raise any error for symbolic tensors.
            except Exception as error:
                _logger.debug("No feed-forward part of %r is split: %s", self._layer.name, error)
                return []
        return self._found if made else []

    def _arguments(self) -> Any:
        """Returns the arguments of the layer's last call, with sizes where they are unknown; None without a call."""

        def sized(value: Any) -> Any:
            if not isinstance(value, keras.KerasTensor):
                return value
            shape = [_SIZES[min(i, 1)] if n is None else n for i, n in enumerate(value.shape)]
            return keras.KerasTensor(shape, value.dtype)

        if self._layer._inbound_nodes:
            arguments = self._layer._inbound_nodes[-1].arguments
            return keras.tree.map_structure(sized, (arguments.args, arguments.kwargs))
        # A layer inside another one has not been called with symbolic tensors. It may take one tensor.
        _, *parameters = inspect.signature(type(self._layer).call).parameters.values()
        named = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        if not named or any(each.default is inspect.Parameter.empty for each in named[1:]):
            return None
        first = next(inner for name, inner in vars(self._layer).items() if name in self._names)
        return (keras.KerasTensor((*_SIZES, _num_inputs(first)), first.compute_dtype),), {}

    def _call(self, args: Any, kwargs: Any) -> Any:
        view = plain_view(self._layer, type(self._layer), **{name: _Probe(self, name) for name in self._names})
        made = view.call(*args, **kwargs)
        if any(isinstance(each, keras.KerasTensor) for each in keras.tree.flatten(made)):
            raise ValueError("The output depends on that of a projection.")
        return made

    def output_of(self, name: str, x: Any) -> Any:
        """Returns the output of a projection: symbolic for an input that is not."""
        layer = getattr(self._layer, name)
        shape, dtype = _output_shape(layer, x.shape), layer.compute_dtype
        if not isinstance(x, keras.KerasTensor):
            output = keras.KerasTensor(shape, dtype)
            self._made[id(output)] = (output, name)
            return output
        leaves = {id(leaf): leaf for leaf in self._leaves(x)}
        if not leaves or not is_by_pieces(x, list(leaves.values())):
            raise ValueError(f"Something else than elementwise ops is computed before {layer.name!r}.")
        up = tuple(self._made[each][1] for each in leaves)
        self._found.append((up, name, id(x) in self._made))
        return ops.zeros(shape, dtype)

    def _leaves(self, value: Any) -> Iterator[Any]:
        node = node_of(value)
        if id(value) in self._made:
            yield value
        elif node is None or isinstance(node.operation, keras.Layer):
            raise ValueError("A tensor is used that no projection computes.")
        else:
            for tensor in node.input_tensors:
                yield from self._leaves(tensor)


class _Probe:
    """Stands for a projection in a trial."""

    def __init__(self, trial: _Trial, name: str) -> None:
        self._trial, self._name = trial, name

    def __call__(self, x: Any) -> Any:
        """Returns the output as `_Trial.output_of`."""
        return self._trial.output_of(self._name, x)
