"""Ops of Keras on a tensor in pieces, between one split layer and the next, inside the ``call`` of another layer.

A layer of a user's own class may compute ``down(silu(gate(x)) * up(x))``. The outputs of `gate` and `up` are in pieces,
one at each shard, and the code between is not ours. It gets symbolic tensors of Keras in their place, for which Keras
records the ops instead of computing them, as it does when a functional model is made. The layer `down` gets the last of
them, and computes the recorded ops at each shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from keras_ext.tensor.activations import is_elementwise_op, is_single
from keras_ext.tensor.split_tensor import SplitTensor
from strategies import layer_api


class RecordedTensor(keras.KerasTensor):
    """Stands for a tensor in pieces, for ops of Keras that record what is computed with it.

    Args:
        split: the tensor in pieces.
    """

    def __init__(self, split: SplitTensor) -> None:
        # Symbolic tensors and recorded ops are objects that Keras names.
        self.names_before = layer_api.name_counters()
        super().__init__(split.shape, dtype=keras.backend.standardize_dtype(split.dtype))
        self.split = split


def as_pieces(value: Any) -> Any:
    """Returns the result of recorded ops: in pieces if all of them are elementwise, else as a whole.

    Any other value, symbolic tensors of a model that is being made among them, is returned unchanged.

    Args:
        value: an input of a split layer.
    """
    if not isinstance(value, keras.KerasTensor):
        return value
    leaves = _leaves(value)
    if not leaves:
        return value
    layer_api.restore_name_counters(min((leaf.names_before for leaf in leaves), key=lambda each: sum(each.values())))
    first = leaves[0].split

    def computed(*tensors: Any) -> Any:
        return _computed(value, {id(leaf): tensor for leaf, tensor in zip(leaves, tensors, strict=True)})

    if is_by_pieces(value, leaves):
        pieces = first.each(computed, *(leaf.split for leaf in leaves[1:]))
        return SplitTensor(pieces, first.dim, first.shards, first.size)
    return computed(*(leaf.split.whole() for leaf in leaves))


def is_by_pieces(value: Any, leaves: list[Any]) -> bool:
    """Returns True if each piece of a result of recorded ops depends on the same piece of the leaves only.

    Args:
        value: a symbolic tensor of Keras.
        leaves: the symbolic tensors at which the record begins.
    """
    known = {id(leaf) for leaf in leaves}
    if len({leaf.shape[-1] for leaf in leaves}) != 1:
        return False
    return all(_is_elementwise(node) for node in _nodes(value, known))


def _leaves(value: Any) -> list[RecordedTensor]:
    """Returns the tensors in pieces from which a symbolic tensor is computed; none if others, or layers, are used."""
    found: dict[int, RecordedTensor] = {}
    pending = [value]
    while pending:
        tensor = pending.pop()
        node = node_of(tensor)
        if node is None:
            if not isinstance(tensor, RecordedTensor):
                return []
            found.setdefault(id(tensor), tensor)
        elif isinstance(node.operation, keras.Layer):
            return []
        else:
            pending += reversed(node.input_tensors)
    return list(found.values())


def node_of(tensor: Any) -> Any:
    """Returns the call whose result a symbolic tensor is; None for one at which a record begins."""
    history = getattr(tensor, "_keras_history", None)
    return (
        None if history is None or history.operation is None else history.operation._inbound_nodes[history.node_index]
    )


def _nodes(value: Any, leaves: set[int]) -> Iterator[Any]:
    """Yields the calls from which a symbolic tensor is computed."""
    if id(value) in leaves:
        return
    node = node_of(value)
    yield node
    for tensor in node.input_tensors if node is not None else ():
        yield from _nodes(tensor, leaves)


def _is_elementwise(node: Any) -> bool:
    if node is None or not is_elementwise_op(node.operation):
        return False
    # Other tensors would have to be cut like the pieces, and may have gradients.
    given = (*node.arguments.args, *node.arguments.kwargs.values())
    return all(isinstance(each, keras.KerasTensor) or is_single(each) for each in given)


def _computed(value: Any, made: dict[int, Any]) -> Any:
    """Returns the result of the recorded ops, given the tensors of the leaves by their id."""
    if id(value) not in made:
        node = node_of(value)

        def own(each: Any) -> Any:
            return _computed(each, made) if isinstance(each, keras.KerasTensor) else each

        args, kwargs = keras.tree.map_structure(own, (node.arguments.args, node.arguments.kwargs))
        results = node.operation(*args, **kwargs)
        for tensor, result in zip(node.output_tensors, keras.tree.flatten(results), strict=True):
            made[id(tensor)] = result
    return made[id(value)]
