"""An embedding whose table is sharded by rows over the data axis."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from strategies import layer_api


@layer_api.saved_as(keras.layers.Embedding)
class ShardedEmbedding(keras.layers.Embedding):
    """A ``keras.layers.Embedding`` whose rows are sharded over replicas, for tables that are too large for one device.

    Each replica requests the rows for its own part of the batch from the others: every distinct index is sent to the
    owner of its row, which sends the row back; in the backward pass, gradients are sent to the owner of their row,
    which updates it. The table's gradient is not all-reduced, and no device holds the whole table. Weights and logs are
    those of the plain layer; in files it is the plain layer, with the whole table.

    The rows are sharded over the replicas that share the optimizer: all of them with ``shard="optimizer"`` or
    ``"weights"``, those of a group with ``shard_size``, or those along the mesh axis "expert". With one replica, it is
    the plain layer.

    For ``n`` indices in a replica's part of the batch, ``u`` of them distinct, and ``d`` columns in float32, a replica
    sends and receives ``4 u`` bytes of indices and ``4 u d`` of rows in the forward pass, and ``4 n`` and ``4 n d`` in
    the backward pass; between processes parts are padded to the longest. With the plain layer each replica gets the
    gradients of all others, and holds the table and its slots.

    The cost of an update depends on the optimizer: SGD without momentum and Adagrad touch only the rows that were
    looked up; Adam and others touch all rows of a shard, as in plain Keras. In plain Keras Adagrad computes with all
    rows as well, with the same result.

    Args:
        input_dim: the number of rows of the whole table.
        output_dim: the number of columns.
        **kwargs: further arguments of ``keras.layers.Embedding``.

    Example:

        with strategies.MirroredStrategy(shard="optimizer").scope():
            items = keras_ext.ShardedEmbedding(1000, 16)
            layers = [keras.Input((3,), dtype="int32"), items, keras.layers.Flatten(), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.Adagrad(0.1), "mse")
        model.fit(np.ones((8, 3), "int32"), np.ones((8, 1)), verbose=0)

    Raises:
        ValueError: there are several replicas, and the strategy shards nothing; a regularizer, LoRA or quantization,
            which read the whole table.

    Source: model-parallel embeddings of DLRM (Naumov et al., arXiv:1906.00091).
    """

    def __init__(self, input_dim: int, output_dim: int, **kwargs: Any) -> None:
        super().__init__(input_dim, output_dim, **kwargs)
        received = {
            name: value
            for name in ("embeddings_regularizer", "lora_rank", "quantization_config", "quantization_mode")
            if (value := getattr(self, name, None)) is not None
        }
        if received:
            raise ValueError(
                "ShardedEmbedding has no regularizer, LoRA or quantization: they read the whole table in each step. "
                f"Use keras.layers.Embedding for those. Received: {received}."
            )

    @classmethod
    def plain_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of the plain layer, for files."""
        return dict(config)

    @property
    def synchronized(self) -> bool:
        """True if this layer runs collectives between replicas, as a synchronized batch normalization does."""
        return layer_api.lie_on_replicas(self.variables)

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        if self.built:
            return
        if layer_api.row_exchange("data") is None and layer_api.num_replicas() > 1:
            raise ValueError(
                "A ShardedEmbedding lies on the replicas that share the optimizer, and the strategy has each replica "
                "hold all of it. Make it with shard='optimizer' or shard='weights', as in "
                f"MultiWorkerMirroredStrategy(shard='optimizer'). Received: {layer_api.num_replicas()} replicas."
            )
        with layer_api.sharded_rows("data"):
            super().build(input_shape)
        # XLA cannot compile it: the sizes of messages depend on the indices.
        self.supports_jit = not self.synchronized

    def call(self, inputs: Any) -> Any:
        """Looks up indices of this replica's part of the batch: ``[...] -> [..., output_dim]``."""
        exchange = layer_api.row_exchange("data")
        if exchange is None or not exchange.is_in_replica():
            return super().call(inputs)
        indices = ops.cast(inputs, "int32")
        rows = layer_api.sharded_lookup(exchange, self._embeddings, ops.reshape(indices, (-1,)))
        # The exchange sorts by owner, but its result is again in the order of the indices, which is that of the batch.
        rows = layer_api.as_rows(ops.reshape(rows, (*ops.shape(indices), self.output_dim)), indices)
        return ops.cast(rows, dtype=self.compute_dtype)
