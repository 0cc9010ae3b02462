"""The feed-forward networks of experts; each expert computes only the tokens routed to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from keras_ext.expert.grouping import Grouping, groups_of
from keras_ext.expert.split_bank import summed_over_shards
from keras_ext.tensor.mappings import Shards
from strategies import layer_api

#: Computes the tokens of one expert, `[tokens, features]`, with that expert's matrices and biases.
FeedForward = Callable[..., Any]


def compute_experts(
    tokens: Any, counts: Any, banks: Sequence[Any], feed_forward: FeedForward, shards: Shards | None = None
) -> Any:
    """Returns the experts' outputs for their tokens, `[slots, features]`, by one matrix product per expert and bank.

    Along the mesh axis "expert", tokens are sent to the replicas that hold their experts, and the outputs are sent
    back. Along "tensor", each shard computes one term of a sum.

    Args:
        tokens: sorted by expert, `[slots, features]`.
        counts: the number of tokens of each expert, int32, `[num_experts]`; they add up to the number of slots.
        banks: the weights of all experts: Keras variables of shape `[num_experts, ...]`, or their `SplitWeight`.
        feed_forward: takes an expert's tokens, possibly none, and the expert's part of each bank.
        shards: the shards of the banks that are split along "tensor"; None if no bank is split.
    """
    exchange = _exchange_of(banks)
    value_of = _identity if exchange is None else exchange.own

    def compute(tokens: Any, counts: Any) -> Any:
        if shards is not None:
            function = functools.partial(_computed_with, feed_forward)
            return summed_over_shards(shards, banks, value_of, function, tokens, counts)
        return _computed_with(feed_forward, [value_of(bank) for bank in banks], tokens, counts)

    return compute(tokens, counts) if exchange is None else exchange.computed(tokens, counts, compute)


def _exchange_of(banks: Sequence[Any]) -> layer_api.RowExchange | None:
    """Returns the exchange that sends tokens to the experts of `banks`; None if this replica holds all experts."""
    exchange = layer_api.row_exchange("expert")
    variables = [
        each for bank in banks for each in (bank.shards if isinstance(bank, layer_api.SplitWeight) else [bank])
    ]
    return exchange if exchange is not None and exchange.has_rows_of(variables) else None


def _identity(bank: Any) -> Any:
    return bank


def check_banks(num_experts: int, regularizers: Sequence[Any], name: str) -> None:
    """Refuses banks that cannot be partitioned over the replicas along the mesh axis "expert".

    Raises:
        ValueError: the number of experts is not divisible by the size of the axis, or a bank has a regularizer, which
            would have to read all experts.
    """
    exchange = layer_api.row_exchange("expert")
    if exchange is None:
        return
    if num_experts % exchange.size:
        raise ValueError(
            f"The {exchange.size} replicas along the mesh axis 'expert' have equal numbers of experts: use a number of "
            f"experts that {exchange.size} divides. Received: num_experts={num_experts} of {name!r}."
        )
    if any(each is not None for each in regularizers):
        raise ValueError(
            "Regularizers of experts read the weights of all of them, and a replica along the mesh axis 'expert' has "
            "some. Use weight_decay of the optimizer, or a mesh without 'expert'. Received: "
            f"{[each for each in regularizers if each is not None]} of {name!r}."
        )


def _computed_with(feed_forward: FeedForward, banks: Sequence[Any], tokens: Any, counts: Any) -> Any:
    num_experts = int(banks[0].shape[0])
    # With unstack, the gradient of a bank is one stack; with indexing, it would be a sum of `num_experts` full banks.
    parts = [ops.unstack(ops.cast(bank, tokens.dtype), num_experts, axis=0) for bank in banks]
    groups = groups_of(tokens, counts, num_experts)
    outputs = [feed_forward(group, *own) for group, *own in zip(groups, *parts, strict=True)]
    return ops.concatenate(outputs, axis=0)


def weighted_sum_over_experts(
    tokens: Any,
    experts: Any,
    weights: Any,
    banks: Sequence[Any],
    feed_forward: FeedForward,
    is_kept: Any = None,
    shards: Shards | None = None,
) -> Any:
    """Returns for each token the weighted sum of its experts' outputs, `[tokens, features]`.

    Args:
        tokens: `[tokens, features]`.
        experts: the experts that each token has chosen, int32, `[tokens, choices]`.
        weights: the weights of the choices, in the tokens' dtype, `[tokens, choices]`.
        banks: see `compute_experts`.
        feed_forward: see `compute_experts`; its output has as many features as its input.
        is_kept: bool, `[tokens, choices]`; choices that are False are not computed and add nothing. None to compute
            all.
        shards: see `compute_experts`.
    """
    num_experts = int(banks[0].shape[0])
    if shards is None or _exchange_of(banks) is not None:

        def compute(tokens: Any, counts: Any) -> Any:
            return compute_experts(tokens, counts, banks, feed_forward, shards)

        return _weighted_sum(compute, num_experts, tokens, weights, experts, is_kept)

    # Each shard sorts the tokens and sums over choices itself, so the all_reduce has the size of the tokens and not of
    # the choices.
    def compute_shard(own: Sequence[Any], tokens: Any, weights: Any, experts: Any, is_kept: Any = None) -> Any:
        compute = functools.partial(_computed_with, feed_forward, own)
        return _weighted_sum(compute, num_experts, tokens, weights, experts, is_kept)

    inputs = [tokens, weights, experts, *([] if is_kept is None else [is_kept])]
    return summed_over_shards(shards, banks, _identity, compute_shard, *inputs)


def _weighted_sum(
    compute: Callable[[Any, Any], Any], num_experts: int, tokens: Any, weights: Any, experts: Any, is_kept: Any
) -> Any:
    if is_kept is None:
        grouping = Grouping.from_experts(experts, num_experts)
        outputs = compute(grouping.sorted(tokens), grouping.counts)
    else:
        # Dropped choices are sorted to one additional last expert, whose outputs are zeros.
        grouping = Grouping.from_experts(ops.where(is_kept, experts, num_experts), num_experts + 1)
        counts = grouping.counts[:num_experts]
        kept, rest = groups_of(grouping.sorted(tokens), ops.stack([ops.sum(counts), grouping.counts[-1]]), 2)
        outputs = ops.concatenate([compute(kept, counts), ops.zeros_like(rest)], axis=0)
    return ops.sum(grouping.gather(outputs) * weights[:, :, None], axis=1)
