"""Embeddings whose vocabulary is split, and the projection back to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.lora import AdaptedLayer
from strategies import layer_api
from strategies.evenly import even_sizes


class _SplitEmbedding(AdaptedLayer):
    """The base of both embeddings: the table, the lookup of ids in it, and the refusals."""

    # Attributes of the plain layer.
    input_dim: int
    built: bool

    def __init__(self, input_dim: int, output_dim: int, *, weights: Any = None, **kwargs: Any) -> None:
        super().__init__(input_dim, output_dim, **kwargs)
        self.refuse_quantization()
        if weights is not None:
            self.build()
            self.set_weights(weights if isinstance(weights, list) and len(weights) == 1 else [weights])

    def build(self, input_shape: Any = None) -> None:
        """Makes the shards of the table."""
        if self.built:
            return
        count = self.place_shards().count
        if self.input_dim < count:
            raise ValueError(
                f"{count} shards cannot hold a row each of the table of {self.name}. Use an input_dim of at least "
                f"{count}, or a mesh whose 'tensor' axis is {self.input_dim} at most. Received: "
                f"input_dim={self.input_dim}."
            )
        self._sizes = even_sizes(self.input_dim, count)
        self._starts = [0, *itertools.accumulate(self._sizes)][:-1]
        self._embeddings = self.add_split_weight(
            "embeddings",
            (self.input_dim, self.output_dim),
            0,
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
            sizes=self._sizes,
        )
        self.built = True
        if self.lora_rank:
            # Keras' own build leaves `lora_alpha` out here.
            self.enable_lora(self.lora_rank)

    @property
    def embeddings(self) -> Any:
        """The whole table, shape ``(input_dim, output_dim)``; with LoRA a tensor, the adapters' product added."""
        self._placed()
        return super().embeddings

    def _look_up(self, inputs: Any) -> Any:
        shards = self._placed()
        if any(hasattr(inputs, name) for name in ("row_splits", "dense_shape")):
            raise ValueError(
                f"{type(self).__qualname__} {self.name!r} takes a dense tensor of ids. Pad ragged ids with 0 and set "
                f"mask_zero=True; convert sparse ones. Received: {type(inputs).__name__}."
            )
        ids = self._as_input(inputs)
        if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
            ids = ops.cast(ids, "int32")
        partial = [
            shards.run(i, self._rows_of(i), copy, *table)
            for i, copy, table in zip(shards.owned, shards.copy(ids), self.kernels_of_shards(), strict=True)
        ]
        return shards.reduce(partial)

    def _rows_of(self, index: int) -> Callable[..., Any]:
        start, size = self._starts[index], self._sizes[index]

        def rows(ids: Any, *weights: Any) -> Any:
            table = self.kernel_of(*weights)
            if size == self.input_dim:
                return ops.cast(ops.take(table, ids, axis=0), self.compute_dtype)
            ids = ops.where(ids < 0, ids + self.input_dim, ids)
            held = ops.logical_and(ids >= start, ids < start + size)
            known = ops.logical_and(ids >= 0, ids < self.input_dim)
            # Ids outside the table are out of range for each shard, so that the lookup treats them as in a whole table.
            local = ops.where(held, ids - start, ops.where(known, ops.zeros_like(ids), ops.full_like(ids, size)))
            found = ops.cast(ops.take(table, local, axis=0), self.compute_dtype)
            # Ids of other shards get row 0 times zero, whose gradients are slices of zeros. Each occurrence of a held
            # id has one slice, and Keras' optimizers square these one by one, as with a whole table.
            return ops.where(ops.expand_dims(held, -1), found, ops.zeros_like(found))

        return rows


@layer_api.saved_as(keras.layers.Embedding)
class VocabParallelEmbedding(_SplitEmbedding, keras.layers.Embedding):
    """``keras.layers.Embedding`` whose vocabulary is split over the mesh axis "tensor".

    Each of t shards holds the rows of ``input_dim / t`` ids; if t does not divide `input_dim`, the first shards hold
    one more, and nothing is padded. A shard looks up the ids it holds and returns zeros for others; one all-reduce adds
    up the results.

    Ids are as in Keras: negative ones count from the end; those beyond the table raise an error on CPUs, and return
    zeros on GPUs.

    Under a strategy without that axis, and without a strategy, it is an ``Embedding``. ``get_weights`` and files have
    the weights of an ``Embedding``, and it is saved as one.

    Args:
        input_dim: as in ``keras.layers.Embedding``, as are all arguments; those after `output_dim` by name only.
        output_dim: the size of a row.

    Input shape:
        ``(batch, ...)``, the same for each shard.

    Output shape:
        ``(batch, ..., output_dim)``, not split.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            model = keras.Sequential([keras.Input((5,), dtype="int32"), keras_ext.VocabParallelEmbedding(11, 4)])

    Raises:
        ValueError: fewer rows than shards; ids in a ragged or sparse tensor; quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    def call(self, inputs: Any) -> Any:
        """Adds up the rows that the shards look up."""
        return self._look_up(inputs)


@layer_api.saved_as(keras.layers.ReversibleEmbedding)
class VocabParallelReversibleEmbedding(_SplitEmbedding, keras.layers.ReversibleEmbedding):
    """``keras.layers.ReversibleEmbedding`` whose vocabulary is split over the mesh axis "tensor".

    It looks ids up like `VocabParallelEmbedding`. With ``reverse=True`` each shard computes the logits of the ids it
    holds from the whole input; `VocabParallelSparseCategoricalCrossentropy` takes them in pieces.

    A tied table is used twice. TensorFlow adds up the two gradients on the first device of the replica.

    Args:
        input_dim: as in ``keras.layers.ReversibleEmbedding``, as are all arguments not listed; those after
            `output_dim` by name only.
        output_dim: the size of a row.
        gather_output: whether the logits are one tensor. If not, they stay in pieces, which layers and losses of
            ``keras_ext`` take as they are; for others they are gathered.

    Input shape:
        ``(batch, ...)``; reversed, ``(batch, ..., output_dim)``; the same for each shard.

    Output shape:
        ``(batch, ..., output_dim)``, not split; reversed, ``(batch, ..., input_dim)``, in pieces
        ``(batch, ..., input_dim / t)`` each, sizes differing by one at most.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            table = keras_ext.VocabParallelReversibleEmbedding(11, 4)
            ids = keras.Input((5,), dtype="int32")
            model = keras.Model(ids, table(table(ids), reverse=True))

    Raises:
        ValueError: as for `VocabParallelEmbedding`.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    own_arguments = ("gather_output",)

    def __init__(self, input_dim: int, output_dim: int, *, gather_output: bool = True, **kwargs: Any) -> None:
        self.gather_output = gather_output
        super().__init__(input_dim, output_dim, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Makes the shards of the table, and of the reverse table unless the two are tied."""
        if self.built:
            return
        super().build(input_shape)
        if not self.tie_weights:
            self.reverse_embeddings = self.add_split_weight(
                "reverse_embeddings",
                (self.output_dim, self.input_dim),
                1,
                initializer=self.embeddings_initializer,
                sizes=self._sizes,
            )

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        """Looks ids up, or computes each shard's logits."""
        if reverse:
            return self._project(inputs)
        rows = self._look_up(inputs)
        mask = keras.layers.Embedding.compute_mask(self, inputs)
        if mask is not None:
            rows._keras_mask = mask
        return rows

    def reverse(self, inputs: Any) -> Any:
        """Returns the logits of all ids: ``self(inputs, reverse=True)``."""
        return self(inputs, reverse=True)

    def _project(self, inputs: Any) -> Any:
        shards = self._placed()
        if self.tie_weights:
            weights = self.kernels_of_shards()
        else:
            weights = [[shard] for shard in shards.select_owned(self.reverse_embeddings.shards)]
        pieces = shards.run_each(self._logits, self.copies_of(inputs), *zip(*weights, strict=True))
        size = self.input_dim
        return shards.gather(pieces, -1, size) if self.gather_output else self.in_pieces(pieces, -1, size)

    def _logits(self, x: Any, *weights: Any) -> Any:
        # Computed in the table's own dtype, as in Keras, unless `reverse_dtype` is given.
        kernel = ops.transpose(self.kernel_of(*weights)) if self.tie_weights else weights[0]
        if self.reverse_dtype is not None:
            x, kernel = ops.cast(x, self.reverse_dtype), ops.cast(kernel, self.reverse_dtype)
        logits = ops.matmul(x, kernel)
        cap = self.logit_soft_cap
        return logits if cap is None else ops.multiply(ops.tanh(ops.divide(logits, cap)), cap)
