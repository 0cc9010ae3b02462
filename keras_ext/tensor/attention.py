"""Attention layers whose heads are split: each shard projects to its own heads, attends with them and projects back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.keras_versions import causal_arguments, has_gate
from keras_ext.tensor.layer import AtShard, SplitLayer, equal_sizes
from keras_ext.tensor.projection import FREE, HEADS, INPUTS, OUTPUTS, SplitProjection
from keras_ext.tensor.split_tensor import SplitTensor
from strategies import layer_api

# The distance between the seeds of shards. It differs from that of replicas' seeds, so that no two seeds coincide.
_SEED_STRIDE = 0x85EBCA6B


class _SplitAttention(SplitLayer):
    """The base of both attention layers: everything but the shapes of their projections."""

    own_arguments = ("sequence_parallel",)

    def __init__(self, *args: Any, sequence_parallel: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sequence_parallel = sequence_parallel
        if self._flash_attention:
            received = f"flash_attention={kwargs.get('flash_attention')}, or keras.config.enable_flash_attention()"
            raise ValueError(self._refusal("flash attention", received))
        self.refuse_quantization()

    def __call__(self, query: Any, value: Any, key: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer like the plain one, with tensors, arrays or `SplitTensor`."""
        given = {"query": query, "value": value} | ({} if key is None else {"key": key})
        if any(isinstance(tensor, SplitTensor) for tensor in given.values()) and not args:
            # Keras passes on the masks of tensors, but not of `SplitTensor`s.
            masks = {f"{name}_mask": getattr(tensor, "_keras_mask", None) for name, tensor in given.items()}
            kwargs = masks | {name: value for name, value in kwargs.items() if value is not None}
        return super().__call__(*given.values(), *args, **kwargs)

    def _begin_build(self, query_shape: Sequence[Any], **num_heads: int) -> None:
        """Finds the shards, and refuses numbers of heads that their number does not divide."""
        shards = self.place_shards()
        if self.sequence_parallel:
            self.check_sequence(query_shape)
        for name, number in num_heads.items():
            equal_sizes(number, shards.count, f"the heads of {type(self).__qualname__} {self.name!r} ({name})")

    def _projection(
        self,
        name: str,
        input_shape: Sequence[Any],
        output_dims: Sequence[int],
        *,
        from_heads: bool = False,
        activation: str | None = None,
    ) -> SplitProjection:
        inputs, outputs = (HEADS, OUTPUTS[: len(output_dims)]) if from_heads else (INPUTS, HEADS)
        free = FREE[: len(input_shape) - len(inputs)]
        layer = SplitProjection(
            f"{free}{inputs},{inputs}{outputs}->{free}{outputs}",
            output_shape=(*[None] * (len(free) - 1), *output_dims),
            activation=activation,
            bias_axes=outputs if self.use_bias else None,
            name=name,
            **self._get_common_kwargs_for_sublayer(),
        )
        layer.build(tuple(input_shape))
        return layer

    def _make_seeds(self) -> None:
        """Makes a dropout seed for each shard. The first shard has that of the plain layer."""
        shards, seeds = self._placed(), []
        if self.dropout > 0:
            # Drawn once, as in Keras, so that all later draws, such as initial values, stay the same.
            first = keras.initializers.RandomUniform().seed if self.seed is None else self.seed
            for index in range(shards.count):
                with shards.parts.at(tensor=index):
                    seeds.append(keras.random.SeedGenerator(first + index * _SEED_STRIDE))
        self._seeds_of_shards = seeds

    def _drop(self, index: int, scores: Any, training: bool | None = None) -> Any:
        if not training:
            return scores
        return keras.random.dropout(scores, self.dropout, seed=self._seeds_of_shards[index])

    def _own_query_mask(self, query: Any, value: Any, key: Any, query_mask: Any) -> Any:
        """Returns the mask of the query that the plain layer uses."""
        return query_mask

    def _attend(self, view: AtShard, query: Any, key: Any, value: Any, **kwargs: Any) -> Any:
        """Returns context and scores of one shard's heads, computed by the plain layer's method."""
        return type(self)._compute_attention(view, query, key, value, **kwargs)

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """Adds up the outputs of the shards' heads. Arguments and result are those of the plain layer."""
        shards = self._placed()
        key = value if key is None else key
        query_mask = self._own_query_mask(query, value, key, query_mask)
        # A tensor that is passed twice is copied to the shards once, and its gradients are summed once.
        distinct = {id(tensor): tensor for tensor in (query, key, value)}
        given = [list(distinct).index(id(tensor)) for tensor in (query, key, value, query)]
        copies = [self.copies_of(tensor) for tensor in distinct.values()]
        # The computation of the mask reads the shapes of these.
        whole_query, whole_value = copies[given[0]][0], copies[given[2]][0]
        for_mask, for_scores = causal_arguments(type(self), use_causal_mask)
        masks = query_mask, value_mask, key_mask, attention_mask
        mask = self._compute_attention_mask(whole_query, whole_value, *masks, **for_mask)
        into = [self._query_dense, self._key_dense, self._value_dense]
        into += [self._gate_dense] if hasattr(self, "_gate_dense") else []
        is_penalized = self._output_dense.activity_regularizer is not None

        def attend(view: AtShard, inputs: list[Any], mask: list[Any], weights: list[list[Any]]) -> list[Any]:
            projected = [
                layer.project(inputs[which], *own) for layer, which, own in zip(into, given, weights, strict=False)
            ]
            arguments = {"attention_mask": mask[0] if mask else None, **for_scores}
            context, scores = self._attend(view, *projected[:3], training=training, **arguments)
            context = ops.multiply(context, *projected[3:]) if len(projected) > 3 else context
            made = [self._output_dense.project(context, *weights[-1])]
            return made + [scores] * return_attention_scores + projected * is_penalized

        made = []
        weights_of_layers = [layer.weights_of_shards() for layer in (*into, self._output_dense)]
        for own, i in enumerate(shards.owned):
            drop = functools.partial(self._drop, i)
            view = AtShard(self, _dropout_layer=drop, _return_attention_scores=return_attention_scores)
            weights = [of_shards[own] for of_shards in weights_of_layers]
            inputs = [[copy[own] for copy in copies], [] if mask is None else [mask], weights]
            made.append(shards.run_nested(i, functools.partial(attend, view), inputs))
        partial, *others = zip(*made, strict=True)
        in_pieces = self.sequence_parallel and shards.count > 1
        made = self._output_dense.add_up(partial, sequence_parallel=in_pieces)
        output = self.in_pieces(made, 1, shards.size_along(whole_query, 1)) if in_pieces else made[0]
        if is_penalized:
            for layer, pieces in zip(into, others[-len(into) :], strict=True):
                layer.penalize(shards.gather(pieces, -2))
            self._output_dense.penalize(output.whole() if in_pieces else output)
        if not return_attention_scores:
            return output
        # The dim of the heads precedes the attention dims of queries and of keys.
        return output, shards.gather(others[0], -1 - 2 * len(getattr(self, "_attention_axes", [1])))


@layer_api.saved_as(keras.layers.MultiHeadAttention)
class ParallelMultiHeadAttention(_SplitAttention, keras.layers.MultiHeadAttention):
    """``keras.layers.MultiHeadAttention`` whose heads are split over the mesh axis "tensor".

    Each of t shards holds the query, key and value kernels of ``num_heads / t`` heads, and their rows of the output
    kernel. It attends with its own heads only; the outputs are added up, by one all-reduce forward and one backward.
    The output's bias, which is added once, is not split.

    Under a strategy without that axis, and without a strategy, it is a ``MultiHeadAttention``. ``get_weights`` and
    files have the weights of a ``MultiHeadAttention``, and it is saved as one.

    Args:
        num_heads: as in ``keras.layers.MultiHeadAttention``, as are all arguments not listed. t must divide it.
        key_dim: size of a head.
        dropout: rate, of attention scores. Each shard draws with a seed of its own, the first with the plain layer's.
        sequence_parallel: whether the output stays in pieces along dim 1, by a reduce-scatter in place of the
            all-reduce, for layers that treat each position by itself, such as `ShardwiseLayerNormalization`.

    Input shape:
        query ``(batch, T, inputs)``, value and key ``(batch, S, inputs)``; T and S may be several dims. Each shard gets
        the whole inputs; pieces, along any dim, are gathered.

    Output shape:
        ``(batch, T, outputs)``; with ``return_attention_scores=True`` also ``(batch, num_heads, T, S)``, gathered from
        ``(batch, num_heads / t, T, S)`` at each shard.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            x = keras.Input((5, 8))
            y = keras_ext.ParallelMultiHeadAttention(num_heads=2, key_dim=4)(x, x)
            model = keras.Model(x, y)

    Raises:
        ValueError: t does not divide `num_heads`; `sequence_parallel` with inputs of more than one dim between batch
            and channels; flash attention or quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section 4.2.2.
    """

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        """Makes the shards of all kernels, in Keras' order."""
        key_shape = value_shape if key_shape is None else key_shape
        # Raises an error for shapes that do not match.
        self.compute_output_shape(query_shape, value_shape, key_shape)
        self._begin_build(query_shape, num_heads=self._num_heads)
        heads = [self._num_heads, self._value_dim]
        self._query_dense = self._projection("query", query_shape, [self._num_heads, self._key_dim])
        self._key_dense = self._projection("key", key_shape, [self._num_heads, self._key_dim])
        if has_gate(self):
            self._gate_dense = self._projection("gate", query_shape, heads, activation="sigmoid")
        self._value_dense = self._projection("value", value_shape, heads)
        self._build_attention(len(value_shape) + 1)
        output_shape, from_shape = self._output_shape or [query_shape[-1]], [*query_shape[:-1], *heads]
        self._output_dense = self._projection("attention_output", from_shape, output_shape, from_heads=True)

    def _build_attention(self, rank: int) -> None:
        # Keras makes a dropout layer here, which draws a seed. The shards' seeds replace it.
        rate = self.dropout
        self._dropout = 0.0
        super()._build_attention(rank)
        self._dropout = rate
        self._make_seeds()

    def _own_query_mask(self, query: Any, value: Any, key: Any, query_mask: Any) -> Any:
        # Keras uses the mask of the query tensor, whatever is passed, and removes the masks of the inputs.
        query_mask = getattr(query, "_keras_mask", None)
        for tensor in (query, value, key):
            if getattr(tensor, "_keras_mask", None) is not None:
                tensor._keras_mask = None
        return query_mask

    def _attend(self, view: AtShard, query: Any, key: Any, value: Any, **kwargs: Any) -> Any:
        wanted = view._return_attention_scores
        return super()._attend(view, query, key, value, return_attention_scores=wanted, **kwargs)


@layer_api.saved_as(keras.layers.GroupQueryAttention)
class ParallelGroupQueryAttention(_SplitAttention, keras.layers.GroupQueryAttention):
    """``keras.layers.GroupQueryAttention`` whose heads are split over the mesh axis "tensor".

    Each of t shards holds the kernels of ``num_query_heads / t`` query heads and of the ``num_key_value_heads / t`` key
    and value heads that they attend to, and their rows of the output kernel. All else is as in
    `ParallelMultiHeadAttention`.

    Args:
        head_dim: as in ``keras.layers.GroupQueryAttention``, as are all arguments not listed.
        num_query_heads: t must divide it.
        num_key_value_heads: t must divide it.
        sequence_parallel: as in `ParallelMultiHeadAttention`.

    Input shape:
        query ``(batch, T, inputs)``, value and key ``(batch, S, inputs)``. Each shard gets the whole inputs.

    Output shape:
        ``(batch, T, inputs)``; with ``return_attention_scores=True`` also ``(batch, num_query_heads, T, S)``, gathered
        from ``(batch, num_query_heads / t, T, S)`` at each shard.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            x = keras.Input((5, 8))
            y = keras_ext.ParallelGroupQueryAttention(head_dim=4, num_query_heads=4, num_key_value_heads=2)(x, x)
            model = keras.Model(x, y)

    Raises:
        ValueError: t does not divide both numbers of heads; flash attention or quantization.

    Source: Ainslie et al., arXiv:2305.13245; Shoeybi et al., arXiv:1909.08053, section 3.
    """

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        """Makes the shards of all kernels, in Keras' order."""
        key_shape = value_shape if key_shape is None else key_shape
        self._begin_build(
            query_shape, num_query_heads=self.num_query_heads, num_key_value_heads=self.num_key_value_heads
        )
        self.feature_dim = query_shape[-1]
        heads, fewer_heads = [self.num_query_heads, self.head_dim], [self.num_key_value_heads, self.head_dim]
        self._query_dense = self._projection("query", query_shape, heads)
        self._key_dense = self._projection("key", key_shape, fewer_heads)
        if has_gate(self):
            self._gate_dense = self._projection("gate", query_shape, heads, activation="sigmoid")
        self._value_dense = self._projection("value", value_shape, fewer_heads)
        self._softmax = keras.layers.Softmax(axis=-1, dtype=self.dtype_policy)
        self._dot_product_equation, self._combine_equation = "bquh,bkuh->buqk", "buqk,bkuh->bquh"
        self._make_seeds()
        from_shape = [*query_shape[:-1], *heads]
        self._output_dense = self._projection("attention_output", from_shape, [self.feature_dim], from_heads=True)

    def _attend(self, view: AtShard, query: Any, key: Any, value: Any, **kwargs: Any) -> Any:
        key, value = (ops.repeat(heads, self.num_repeats, axis=2) for heads in (key, value))
        return super()._attend(view, query, key, value, **kwargs)
