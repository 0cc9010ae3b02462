"""Expert banks that are split along `hidden_dim` over the mesh axis "tensor", and the computation with their shards.

    tokens ── to all shards ── columns of gate and up ── activation ── rows of down ── all_reduce ── outputs

Each shard has a part of every expert. The pair of projections needs one all_reduce forward, and one backward.

Source: Shoeybi et al., arXiv:1909.08053, section 3, applied to each expert; combined with expert parallelism: Singh et
al., arXiv:2303.06318.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.activations import check_elementwise
from keras_ext.tensor.layer import SplitLayer, equal_sizes
from keras_ext.tensor.mappings import Shards
from strategies import layer_api

#: The dims along which banks are split, by the names of layer and weight. The bias of "down" is not split.
DIMS = {("gate", "kernel"): 2, ("up", "kernel"): 2, ("down", "kernel"): 1, ("gate", "bias"): 1, ("up", "bias"): 1}


@layer_api.saved_as(keras.layers.EinsumDense)
class SplitBank(SplitLayer, keras.layers.EinsumDense):
    """Holds sharded kernels and biases of all experts; the mixture of experts computes with them."""

    def build(self, input_shape: Any) -> None:
        """Creates the shards."""
        self.place_shards()
        # The plain layer's `build` knows the shapes of the weights, and the dims that an initializer needs.
        super().build(input_shape)

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a weight, sharded if `DIMS` has a dim for it."""
        dim = DIMS.get((self.name, kwargs.get("name", "")))
        if dim is None:
            return super().add_weight(*args, **kwargs)
        names = ("name", "shape", "initializer", "regularizer", "constraint", "trainable")
        given = {name: kwargs[name] for name in names}
        return self.add_split_weight(dim=dim, **given)


def bank_class(layer: Any) -> Any:
    """Returns the layer class for the banks of a mixture of experts, built under the current strategy.

    Raises:
        ValueError: see :func:`check_split`.
    """
    count = Shards.present().count
    check_split(layer, count)
    return keras.layers.EinsumDense if count == 1 else SplitBank


def check_split(layer: Any, num_shards: int) -> None:
    """Refuses experts that cannot be split along `hidden_dim`.

    Args:
        layer: the mixture.
        num_shards: size of the mesh axis "tensor".

    Raises:
        ValueError: `hidden_dim` is not divisible by the number of shards, or the activation is not elementwise.
    """
    if num_shards == 1:
        return
    equal_sizes(layer.hidden_dim, num_shards, f"hidden_dim of the experts of {layer.name!r}")
    check_elementwise(layer.activation, "experts that are cut along hidden_dim, on a mesh with the axis 'tensor',")


def summed_over_shards(
    shards: Shards,
    banks: Sequence[Any],
    value_of: Callable[[Any], Any],
    function: Callable[..., Any],
    *inputs: Any,
) -> Any:
    """Computes a function on each shard, with the shard's part of the banks, and returns the all-reduced sum.

    Args:
        shards: the shards of the banks.
        banks: `SplitWeight`, or variables that are not split: biases of the sum, which only the first shard adds.
        value_of: returns the local value of a variable, or the variable itself.
        function: takes the banks of a shard as a list, and the inputs.
        *inputs: tensors; floating-point ones have gradients.
    """
    are_cut = [isinstance(bank, layer_api.SplitWeight) for bank in banks]
    whole = [shards.copy(value_of(bank)) for bank, is_cut in zip(banks, are_cut, strict=True) if not is_cut]
    copies = [shards.copy(each) for each in inputs]

    def compute_shard(index: int, *tensors: Any) -> Any:
        # Other shards multiply by 0 instead of leaving the bias out: the order of collectives in the backward pass
        # follows these ops, even ones without a gradient, and must be the same on all processes.
        factor = 1.0 if index == 0 else 0.0
        rest = iter(tensors)
        own = [next(rest) if is_cut else ops.multiply(next(rest), factor) for is_cut in are_cut]
        return function(own, *rest)

    made = []
    for position, index in enumerate(shards.owned):
        uncut = iter(whole)
        with shards.parts.on(shards.members[index]):
            own = [
                value_of(bank.shards[index]) if is_cut else next(uncut)[position]
                for bank, is_cut in zip(banks, are_cut, strict=True)
            ]
        tensors = [*own, *(copy[position] for copy in copies)]
        made.append(shards.run(index, functools.partial(compute_shard, index), *tensors))
    return shards.reduce(made)
