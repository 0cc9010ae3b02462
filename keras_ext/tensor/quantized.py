"""Layers quantized to int8 whose kernel, or table, is split: each shard runs Keras' own int8 computation on its part.

Keras has a scale for each output channel of a kernel, and for each row of a table, so that a part and its scales are
those of the whole layer. The scales of inputs are taken over all input channels, which each shard has. So the results
have the bits of the whole layer; only the gradient of the input is a sum over shards, rounded in another order.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.layer import AtShard
from keras_ext.tensor.lora import AdaptedLayer, adapted_weight, plain_class
from strategies import layer_api


class _Quantized(AdaptedLayer):
    """The base of both: views of the layer at its shards."""

    def _views(self, names: list[str], **own: Any) -> tuple[list[list[Any]], Callable[..., Any]]:
        """Returns the tensors of weights at each owned shard, and a function that makes a view of the layer from them.

        Args:
            names: the attributes that hold weights; those that hold None are left out.
            **own: other attributes of the views.
        """
        shards = self._placed()
        names = [name for name in names if getattr(self, name) is not None]
        lists = []
        for name in names:
            weight = getattr(self, name)
            is_cut = isinstance(weight, layer_api.SplitWeight)
            lists.append(shards.select_owned(weight.shards) if is_cut else shards.copy(weight))
        held = [getattr(self, name) for name in names]
        casts = [self.autocast and each._autocast and each.dtype == self.variable_dtype for each in held]

        def view(*weights: Any) -> AtShard:
            # Keras casts whole weights when they are read; shards are read without a cast.
            tensors = {
                name: ops.cast(each, self.compute_dtype) if is_cast else ops.convert_to_tensor(each)
                for name, each, is_cast in zip(names, weights, casts, strict=True)
            }
            return AtShard(self, **tensors, **own)

        return [list(each) for each in zip(*lists, strict=True)], view


class QuantizedColumns(_Quantized):
    """Mix-in before ``Dense`` and ``EinsumDense``: their int8 kernel may be cut along a dim of the output."""

    activation: Any
    bias: Any

    @abc.abstractmethod
    def _cut_axis(self) -> int | None:
        """Returns the axis of the output, from the end, along which the kernel is cut; None if it is not."""

    def _int8_call(self, inputs: Any, training: bool | None = None) -> Any:
        axis = self._cut_axis()
        plain: Any = plain_class(self)
        if axis is None:
            return plain._int8_call(self, inputs, training=training)
        return self.joined(self.pieces_by(*self.int8_at_shards(training), inputs), axis)

    def pieces_by(self, weights: list[list[Any]], forward: Callable[..., Any], inputs: Any) -> list[Any]:
        """Returns each owned shard's part of the output, given the shards' weights and the function of `at_shards`."""
        return self._placed().run_each(forward, self.copies_of(inputs), *zip(*weights, strict=True))

    def joined(self, pieces: list[Any], axis: int) -> Any:
        """Returns the output: the shards' parts joined along `axis`, with what could not be applied to parts."""
        kernel, bias = adapted_weight(self), self.bias
        y = self._placed().gather(pieces, axis, kernel.shape[kernel.dim])
        y = y if bias is None or isinstance(bias, layer_api.SplitWeight) else self._plus_bias(y, bias)
        return y if self._is_apart() or self.activation is None else self.activation(y)

    def _is_apart(self) -> bool:
        """Returns True if bias and activation can be applied to the parts of the output."""
        # Keras losses read the logits from an attribute of a sigmoid's output, so it is applied after the gathering.
        is_last = is_elementwise(self.activation) and self.activation is not keras.activations.sigmoid
        return is_last and (self.bias is None or isinstance(self.bias, layer_api.SplitWeight))

    def int8_at_shards(self, training: bool | None = None) -> tuple[list[list[Any]], Callable[..., Any]]:
        """Returns each owned shard's weights, and a function from an input and these to the shard's part of the output.

        The function leaves out the activation, or a whole bias, if they cannot be applied to parts.
        """
        plain: Any = plain_class(self)
        is_bias_cut = isinstance(self.bias, layer_api.SplitWeight)
        names = ["_kernel", "kernel_scale", *(["bias"] if is_bias_cut else [])]
        names += ["lora_kernel_a", "lora_kernel_b"] if layer_api.adapters_of(self) else []
        own: dict[str, Any] = {} if is_bias_cut else {"bias": None}
        weights, view = self._views(names, activation=self.activation if self._is_apart() else None, **own)

        def forward(x: Any, *tensors: Any) -> Any:
            return plain._int8_call(view(*tensors), x, training=training)

        return weights, forward


class QuantizedRows(_Quantized):
    """Mix-in before ``Embedding`` and ``ReversibleEmbedding``: their int8 table may be cut along the vocabulary."""

    input_dim: int
    tie_weights: bool

    def _int8_call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        plain: Any = plain_class(self)
        if not isinstance(adapted_weight(self), layer_api.SplitWeight):
            return plain._int8_call(self, inputs, *args, **kwargs)
        is_reversible = isinstance(self, keras.layers.ReversibleEmbedding)
        if is_reversible and (args[0] if args else kwargs.get("reverse", False)):
            return self._project(inputs)
        return self._look_up(inputs)

    def _project(self, inputs: Any) -> Any:
        """Returns the logits that the shards compute for their ids."""
        shards = self._placed()
        prefix = "" if self.tie_weights else "reverse_"
        names = ["_embeddings" if self.tie_weights else "reverse_embeddings", f"{prefix}embeddings_scale"]
        weights, view = self._views(names)

        def forward(x: Any, *tensors: Any) -> Any:
            return keras.layers.ReversibleEmbedding._int8_call(view(*tensors), x, reverse=True)

        pieces = shards.run_each(forward, self.copies_of(inputs), *zip(*weights, strict=True))
        return shards.gather(pieces, -1, self.input_dim)

    def _look_up(self, inputs: Any) -> Any:
        """Adds up the rows that the shards look up; a shard without an id's row returns zeros for it."""
        shards = self._placed()
        ids = self._as_input(inputs)
        if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
            ids = ops.cast(ids, "int32")
        adapters = ["lora_embeddings_a", "lora_embeddings_b"] if layer_api.adapters_of(self) else []
        weights, view = self._views(["_embeddings", "embeddings_scale", *adapters])
        sizes = adapted_weight(self).sizes
        starts = [0, *itertools.accumulate(sizes)]

        def rows(start: int, size: int, x: Any, *tensors: Any) -> Any:
            # Ids are as in Keras: negative ones count from the end.
            x = ops.where(x < 0, x + self.input_dim, x)
            held = ops.logical_and(x >= start, x < start + size)
            known = ops.logical_and(x >= 0, x < self.input_dim)
            # Ids outside the table are out of range for each shard, so that the lookup treats them as in a whole table.
            local = ops.where(held, x - start, ops.where(known, ops.zeros_like(x), ops.full_like(x, size)))
            found = keras.layers.Embedding._int8_call(view(*tensors), local)
            return ops.where(ops.expand_dims(held, -1), found, ops.zeros_like(found))

        partial = [
            shards.run(i, functools.partial(rows, starts[i], sizes[i]), copy, *own)
            for i, copy, own in zip(shards.owned, shards.copy(ids), weights, strict=True)
        ]
        return shards.reduce(partial)
