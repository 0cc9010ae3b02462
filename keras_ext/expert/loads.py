"""The load of experts over the global batch, and the losses that depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras import ops

from strategies import layer_api


@dataclass(frozen=True)
class Load:
    """The choices of the tokens that are counted, over all replicas of a step.

    Tensors are float32, without gradient, and the same on all replicas.

    Attributes:
        counts: the number of choices of each expert, `[num_experts]`.
        num_counted: the number of tokens that a mask keeps; scalar.
        num_tokens: the number of all tokens; scalar.
        top_k: number of choices of a token.
    """

    counts: Any
    num_counted: Any
    num_tokens: Any
    top_k: int

    @classmethod
    def from_experts(cls, experts: Any, num_experts: int, counted: Any = None) -> Load:
        """Returns the load over all replicas. It runs a collective, so all replicas call it.

        Args:
            experts: the experts that each token of this replica has chosen, int32, `[tokens, choices]`.
            num_experts: number of experts.
            counted: 1 for tokens that count, 0 for others, float32, `[tokens]`; None if all count.
        """
        is_of = ops.sum(ops.one_hot(experts, num_experts, dtype="float32"), axis=1)
        ones = ops.ones_like(is_of[:, 0])
        counted = ones if counted is None else counted
        own = ops.sum(is_of * counted[:, None], axis=0), ops.sum(counted)[None], ops.sum(ones)[None]
        # One collective for all of them.
        total = layer_api.sum_over_rows(ops.concatenate(own, axis=0))
        return cls(total[:num_experts], total[num_experts], total[num_experts + 1], int(experts.shape[1]))

    @property
    def shares(self) -> Any:
        """Each expert's share of the choices, `[num_experts]`."""
        return self.counts / ops.maximum(self.num_counted * self.top_k, 1e-9)

    def mean(self, values: Any, counted: Any = None) -> Any:
        """Returns this replica's term of the mean over all tokens that count.

        Weighted by the replicas' numbers of rows, as losses are, the terms add up to that mean.

        Args:
            values: float32, `[tokens, ...]`.
            counted: see `Load.from_experts`.
        """
        if counted is None:
            return ops.mean(values, axis=0)
        counted = ops.reshape(counted, (-1, *[1] * (len(values.shape) - 1)))
        return ops.mean(values * counted, axis=0) * (self.num_tokens / ops.maximum(self.num_counted, 1e-9))


def load_balancing_loss(load: Load, probabilities: Any, counted: Any = None) -> Any:
    """Returns the load-balancing loss ``num_experts * sum(f * P)`` of this replica.

    ``f`` is each expert's share of the choices in the global batch, ``P`` the mean of its probability over this
    replica's tokens: the mean of the replicas' losses, weighted by rows, is the loss of one device.

    Args:
        load: the load over all replicas.
        probabilities: the router's probabilities, float32, `[tokens, num_experts]`.
        counted: see `Load.from_experts`.

    Source: Fedus et al., arXiv:2101.03961, equations 4 to 6.
    """
    return probabilities.shape[-1] * ops.sum(load.shares * load.mean(probabilities, counted))


def z_loss(load: Load, logits: Any, counted: Any = None) -> Any:
    """Returns the mean of the squared log-sum-exp of the router's logits, float32, `[tokens, num_experts]`.

    Source: Zoph et al., arXiv:2202.08906, equation 5.
    """
    return load.mean(ops.square(ops.logsumexp(logits, axis=-1)), counted)


def kept_choices(load: Load, experts: Any, num_experts: int, factor: float, counted: Any = None) -> Any:
    """Returns a mask of the choices that fit into the experts' capacity, bool, `[tokens, choices]`.

    Each expert takes ``ceil(tokens * choices * factor / num_experts)`` choices of the global batch: first choices
    before second ones, and, among these, in the order of the batch. Tokens that do not count are left out.

    Args:
        load: the load over all replicas, all of which call this: it runs collectives.
        experts: see `Load.from_experts`.
        num_experts: number of experts.
        factor: the capacity relative to an even load.
        counted: see `Load.from_experts`.
    """
    # [choices, tokens, experts]
    is_of = ops.one_hot(ops.transpose(experts), num_experts, dtype="float32")
    if counted is not None:
        is_of = is_of * counted[None, :, None]
    own = ops.sum(is_of, axis=1)
    of_all = layer_api.sum_over_rows(own)
    before = ops.cumsum(of_all, axis=0) - of_all + layer_api.sum_over_rows_before(own)
    position = ops.sum(is_of * (ops.cumsum(is_of, axis=1) - 1.0 + before[:, None, :]), axis=-1)
    # A rounding error above a whole number must not add one choice; fractions larger than 1e-3 still round up.
    capacity = ops.ceil(load.num_counted * (load.top_k * factor / num_experts) - 1e-3)
    fits = ops.logical_and(position < capacity, ops.any(is_of > 0, axis=-1))
    return ops.transpose(fits)
