"""Layers between the split layers of a transformer that treat each position of a sequence by itself.

They take a tensor in pieces of the sequence and leave it in pieces, so that each shard normalises its own positions
only, and stores only these for the backward pass (sequence parallelism).

Source: Korthikanti et al., arXiv:2205.05198, section 4.2.2.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras

from keras_ext.tensor.layer import AtShard, SplitLayer
from keras_ext.tensor.split_tensor import SplitTensor, cut_alike
from strategies import layer_api


class _Normalization(SplitLayer):
    """Mix-in before a plain normalisation layer. Its weights are whole, and copied to each shard for a call."""

    #: The names of the weights' attributes.
    weights_of_positions: tuple[str, ...] = ()

    def build(self, input_shape: Any) -> None:
        """Makes the weights of the plain layer."""
        self.place_shards()
        super().build(input_shape)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Normalises each piece, or the whole tensor if it does not come in pieces of the sequence."""
        if not isinstance(inputs, SplitTensor) or any(inputs.dim == axis % inputs.ndim for axis in self.axis):
            return super().call(self._as_input(inputs))
        shards = inputs.shards
        names = [name for name in self.weights_of_positions if getattr(self, name) is not None]
        copies = [shards.copy(getattr(self, name)) for name in names]
        plain = super().call.__func__

        def normalize(x: Any, *weights: Any) -> Any:
            return plain(AtShard(self, **dict(zip(names, weights, strict=True))), self._as_input(x))

        return self.in_pieces(shards.run_each(normalize, inputs.pieces, *copies), inputs.dim, inputs.size)


@layer_api.saved_as(keras.layers.LayerNormalization)
class ShardwiseLayerNormalization(_Normalization, keras.layers.LayerNormalization):
    """``keras.layers.LayerNormalization`` that normalises pieces of the sequence without gathering them.

    Its weights are not split; their gradients are the sum of the shards' gradients.

    Args:
        *args: as in ``keras.layers.LayerNormalization``, as are all others.
        **kwargs: likewise.

    Input shape:
        Any; in pieces, ``(batch, length / t, channels)`` each.

    Output shape:
        That of the input; in pieces of the sequence if the input is.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            block = keras_ext.ParallelTransformerBlock(8, num_heads=2, hidden_units=16, sequence_parallel=True)
            model = keras.Sequential([keras.Input((5, 8)), block, keras_ext.ShardwiseLayerNormalization()])
    """

    weights_of_positions = ("gamma", "beta")


@layer_api.saved_as(keras.layers.RMSNormalization)
class ShardwiseRMSNormalization(_Normalization, keras.layers.RMSNormalization):
    """``keras.layers.RMSNormalization`` that works on pieces like `ShardwiseLayerNormalization`.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            layer = keras_ext.RowParallelDense(8, sequence_parallel=True)
            model = keras.Sequential([keras.Input((5, 8)), layer, keras_ext.ShardwiseRMSNormalization()])
    """

    weights_of_positions = ("scale",)


@layer_api.saved_as(keras.layers.Add)
class ShardwiseAdd(SplitLayer, keras.layers.Add):
    """``keras.layers.Add`` that adds pieces without gathering them.

    If one of its inputs is in pieces, the others are cut like the first such input. If one has fewer dims, or other
    sizes from the cut dim on, so that it is to be broadcast, whole tensors are added.

    Input shape:
        A list of tensors; in pieces, of one size along the dim that is cut.

    Output shape:
        That of the inputs; in pieces if one of them is.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            x = keras.Input((5, 8))
            y = keras_ext.RowParallelDense(8, sequence_parallel=True)(x)
            model = keras.Model(x, keras_ext.ShardwiseAdd()([x, y]))
    """

    def __call__(self, inputs: Sequence[Any], **kwargs: Any) -> Any:
        """Calls the layer like the plain one, with tensors, arrays or `SplitTensor`."""
        return super().__call__(_cut_or_whole(inputs), **kwargs)

    def call(self, inputs: Sequence[Any]) -> Any:
        """Adds up the pieces."""
        plain = super().call
        if not isinstance(inputs[0], SplitTensor):
            return plain([self._as_input(value) for value in inputs])
        self.shards = inputs[0].shards
        first, *others = inputs
        pieces = first.each(lambda *values: plain([self._as_input(value) for value in values]), *others)
        return self.in_pieces(pieces, first.dim, first.size)


def shardwise_operation(plain: Any) -> Any:
    """Returns an operation like `plain`, such as ``+``, that does not gather pieces; in files it is `plain`.

    It cuts its inputs as `ShardwiseAdd` does.
    """
    plain_class: Any = type(plain)

    def call(operation: Any, *inputs: Any) -> Any:
        inputs = tuple(_cut_or_whole(inputs))
        add = functools.partial(plain_class.call, operation)
        if not isinstance(inputs[0], SplitTensor):
            return add(*inputs)
        first, *others = inputs
        return SplitTensor(first.each(add, *others), first.dim, first.shards, first.size)

    # Files name a class by its module and name.
    names = {"__module__": plain_class.__module__, "__qualname__": plain_class.__qualname__}
    shardwise: Any = type(plain_class.__name__, (plain_class,), {"call": call, **names})
    return shardwise.from_config(plain.get_config())


def _cut_or_whole(tensors: Sequence[Any]) -> list[Any]:
    """Returns `tensors`, all cut like the first one in pieces; all whole if some are to be broadcast."""
    first = next((tensor for tensor in tensors if isinstance(tensor, SplitTensor)), None)
    if first is None:
        return list(tensors)
    of_pieces = first.shape[first.dim :]
    if all(len(shape := _shape_of(tensor)) == first.ndim and shape[first.dim :] == of_pieces for tensor in tensors):
        return cut_alike(tensors)
    return [tensor.whole() if isinstance(tensor, SplitTensor) else tensor for tensor in tensors]


def _shape_of(value: Any) -> tuple[int | None, ...]:
    return tuple(getattr(value, "shape", ()))
