"""A transformer language model by its sizes: parameters and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The parts that the backward pass computes again: all of a layer, its attention scores, or none.
Recompute = Literal["full", "selective"] | None


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the feed-forward part of each block.

    Attributes:
        num: experts of a block, each of the size of the feed-forward part.
        top_k: the experts that compute a token.
    """

    num: int
    top_k: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num:
            raise ValueError(f"A token is computed by 1 to all experts. Received: num={self.num}, top_k={self.top_k}.")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters of the queries and values of each block, as KerasHub adds them; all else is frozen.

    Source: Hu et al., arXiv:2106.09685; with int8 weights Dettmers et al., arXiv:2305.14314.

    Attributes:
        rank: of the adapters.
        frozen_bytes: bytes of a frozen weight: 4 (float32), 2 (a half-precision policy) or 1 (int8).
    """

    rank: int
    frozen_bytes: int = 4

    def __post_init__(self) -> None:
        if self.rank < 1 or self.frozen_bytes not in (1, 2, 4):
            raise ValueError(
                "The rank is at least 1, and a frozen weight has 1, 2 or 4 bytes. "
                f"Received: rank={self.rank}, frozen_bytes={self.frozen_bytes}."
            )


@dataclass(frozen=True)
class Transformer:
    """The sizes of a GPT: blocks of attention and a feed-forward part with four times the hidden size.

    Attributes:
        num_layers: blocks.
        hidden_size: features of a token.
        num_heads: of attention.
        sequence_length: tokens of a row.
        vocabulary_size: tokens in all.
        experts: a mixture of experts, or None.
        lora: the adapters that are trained, or None if all weights are trained.

    Example:

        gpt3 = Transformer(num_layers=96, hidden_size=12288, num_heads=96)
        assert round(gpt3.num_parameters / 1e9) == 175
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    sequence_length: int = 2048
    vocabulary_size: int = 51200
    experts: Experts | None = None
    lora: Lora | None = None

    def __post_init__(self) -> None:
        sizes = {name: size for name, size in vars(self).items() if name not in ("experts", "lora")}
        if any(not isinstance(size, int) or size < 1 for size in sizes.values()):
            raise ValueError(f"All sizes of a model are whole numbers from 1. Received: {sizes}.")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                "The hidden size is a multiple of the number of heads. Received: "
                f"hidden_size={self.hidden_size}, num_heads={self.num_heads}."
            )

    @property
    def feed_forward_parameters(self) -> int:
        """The number of parameters of a feed-forward part, or of one expert."""
        return 8 * self.hidden_size**2 + 5 * self.hidden_size

    @property
    def expert_parameters(self) -> int:
        """The number of parameters of the experts of a block; 0 if there are none."""
        return 0 if self.experts is None else self.experts.num * self.feed_forward_parameters

    @property
    def shared_parameters(self) -> int:
        """The number of parameters of a block apart from experts: each replica has them."""
        attention = 4 * self.hidden_size**2 + 8 * self.hidden_size
        if self.experts is None:
            return attention + self.feed_forward_parameters
        return attention + self.experts.num * self.hidden_size

    @property
    def adapter_parameters(self) -> int:
        """The number of parameters of the adapters of a block: two matrices for queries, two for values."""
        return 0 if self.lora is None else 4 * self.hidden_size * self.lora.rank

    @property
    def parameters_of_layer(self) -> int:
        """The number of parameters of a block, without adapters."""
        return self.shared_parameters + self.expert_parameters

    @property
    def num_parameters(self) -> int:
        """The number of all parameters, with tables of tokens and positions (arXiv:2104.04473, formula 2)."""
        tables = (self.vocabulary_size + self.sequence_length) * self.hidden_size
        return self.num_layers * (self.parameters_of_layer + self.adapter_parameters) + tables

    @property
    def num_active_experts(self) -> int:
        """The number of feed-forward parts that compute a token."""
        return 1 if self.experts is None else self.experts.top_k

    def flops(self, num_rows: int, *, recompute: Recompute = None) -> float:
        """Returns the floating-point operations of a step in which all weights are trained.

        Source: arXiv:2104.04473, formula 3; with experts, each token is computed by some of them.
        """
        s, h, v, layers = self.sequence_length, self.hidden_size, self.vocabulary_size, self.num_layers
        passes = 4 if recompute == "full" else 3
        # Two operations for each parameter of the four products of attention and of the active feed-forward parts.
        products = 2 * (4 + 8 * self.num_active_experts) * h**2
        per_layers = passes * num_rows * s * layers * (products + 4 * s * h)
        return per_layers + 6.0 * num_rows * s * h * v
