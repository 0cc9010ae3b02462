"""A transformer language model by its sizes, and how it is laid out on devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The state that is sharded over replicas, as the strategies' argument.
Shard = Literal["optimizer", "gradients", "weights"] | None
#: The parts that the backward pass computes again: all of a layer, its attention scores, or none.
Recompute = Literal["full", "selective"] | None


@dataclass(frozen=True)
class Transformer:
    """The sizes of a GPT: blocks of attention and a feed-forward part with four times the hidden size.

    Attributes:
        num_layers: blocks.
        hidden_size: features of a token.
        num_heads: of attention.
        sequence_length: tokens of a row.
        vocabulary_size: tokens in all.

    Example:

        gpt3 = Transformer(num_layers=96, hidden_size=12288, num_heads=96)
        assert round(gpt3.num_parameters / 1e9) == 175
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    sequence_length: int = 2048
    vocabulary_size: int = 51200

    def __post_init__(self) -> None:
        sizes = vars(self)
        if any(not isinstance(size, int) or size < 1 for size in sizes.values()):
            raise ValueError(f"All sizes of a model are whole numbers from 1. Received: {sizes}.")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                "The hidden size is a multiple of the number of heads. Received: "
                f"hidden_size={self.hidden_size}, num_heads={self.num_heads}."
            )

    @property
    def parameters_of_layer(self) -> int:
        """The number of parameters of a block."""
        return 12 * self.hidden_size**2 + 13 * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """The number of all parameters, with tables of tokens and positions (arXiv:2104.04473, formula 2)."""
        tables = (self.vocabulary_size + self.sequence_length) * self.hidden_size
        return self.num_layers * self.parameters_of_layer + tables

    def flops(self, num_rows: int, *, recompute: Recompute = None) -> float:
        """Returns the floating-point operations of a step (arXiv:2104.04473, formula 3)."""
        s, h, v, layers = self.sequence_length, self.hidden_size, self.vocabulary_size, self.num_layers
        factor = 96 if recompute == "full" else 72
        per_layers = factor * num_rows * s * layers * h**2 * (1 + s / (6 * h))
        return per_layers + 6.0 * num_rows * s * h * v


@dataclass(frozen=True)
class Layout:
    """A mesh, and how a batch is computed on it.

    Attributes:
        num_data: replicas.
        num_stages: stages of a pipeline, with the schedule 1F1B.
        num_tensor: shards of each layer.
        microbatch_size: rows of a micro-batch.
        num_chunks: chunks of layers of each stage (interleaved 1F1B); 1 if a stage is one chunk.
        recompute: what the backward pass computes again.
        sequence_parallel: True if normalization and dropout work on parts of the sequence.
        shard: as the strategies' argument.
        host_size: devices of a host.
        gradient_bytes: bytes of a gradient where replicas exchange it.

    Example:

        layout = Layout(num_data=2, num_stages=2, num_tensor=2)
        assert layout.mesh == {"data": 2, "pipe": 2, "tensor": 2}
    """

    num_data: int = 1
    num_stages: int = 1
    num_tensor: int = 1
    microbatch_size: int = 1
    num_chunks: int = 1
    recompute: Recompute = None
    sequence_parallel: bool = False
    shard: Shard = None
    host_size: int = 8
    gradient_bytes: int = 4

    def parameters_of_device(self, model: Transformer) -> float:
        """Returns the parameters of a model on the device with the most, before `shard` divides them."""
        blocks = model.num_layers * model.parameters_of_layer / (self.num_tensor * self.num_stages)
        return blocks + model.vocabulary_size * model.hidden_size / self.num_tensor

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return self.num_data * self.num_stages * self.num_tensor

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh as the strategies take it."""
        return {"data": self.num_data, "pipe": self.num_stages, "tensor": self.num_tensor}

    def num_microbatches(self, batch_size: int) -> int:
        """Returns the number of micro-batches of each replica.

        Raises:
            ValueError: the batch is not a multiple of the rows that all replicas compute at a time.
        """
        rows = self.num_data * self.microbatch_size
        if batch_size % rows:
            raise ValueError(
                f"The batch is a multiple of the rows that {self.num_data} replicas compute at a time, {rows}. "
                f"Received: batch_size={batch_size}."
            )
        return batch_size // rows
