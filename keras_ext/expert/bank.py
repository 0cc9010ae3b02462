"""The feed-forward networks of experts, each of which computes its own tokens only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from keras_ext.expert.grouping import Grouping, groups_of
from strategies import layer_api

#: Computes tokens of one expert, `[tokens, features]`, with that expert's matrices and biases.
FeedForward = Callable[..., Any]


def compute_experts(tokens: Any, counts: Any, banks: Sequence[Any], feed_forward: FeedForward) -> Any:
    """Returns what each expert makes of its tokens, `[slots, features]`: one matrix product per expert and bank.

    Along the mesh axis "expert" tokens go to the replicas that have their experts, and what these make comes back.

    Args:
        tokens: sorted by expert, `[slots, features]`.
        counts: of the tokens of each expert, int32, `[num_experts]`; they add up to the slots.
        banks: weights of all experts, Keras variables of shape `[num_experts, ...]`.
        feed_forward: takes an expert's tokens, of which there may be none, and its part of each bank.
    """
    exchange = layer_api.row_exchange("expert")
    if exchange is None or not exchange.has_rows_of(banks):
        return _computed(tokens, counts, [ops.cast(bank, tokens.dtype) for bank in banks], feed_forward)
    own = [ops.cast(exchange.own(bank), tokens.dtype) for bank in banks]
    return exchange.computed(tokens, counts, lambda tokens, counts: _computed(tokens, counts, own, feed_forward))


def check_banks(num_experts: int, regularizers: Sequence[Any], name: str) -> None:
    """Refuses banks that cannot lie on the replicas along the mesh axis "expert".

    Raises:
        ValueError: experts cannot be dealt out evenly, or there is a regularizer, which reads all of them.
    """
    exchange = layer_api.row_exchange("expert")
    if exchange is None:
        return
    if num_experts % exchange.size:
        raise ValueError(
            f"The {exchange.size} replicas along the mesh axis 'expert' have as many experts each: use a number of "
            f"experts that {exchange.size} divides. Received: num_experts={num_experts} of {name!r}."
        )
    if any(each is not None for each in regularizers):
        raise ValueError(
            "Regularizers of experts read the weights of all of them, and a replica along the mesh axis 'expert' has "
            "some. Use weight_decay of the optimizer, or a mesh without 'expert'. Received: "
            f"{[each for each in regularizers if each is not None]} of {name!r}."
        )


def _computed(tokens: Any, counts: Any, banks: Sequence[Any], feed_forward: FeedForward) -> Any:
    num_experts = int(banks[0].shape[0])
    # Unstacked: the gradient of a bank is then one stack, and not a sum of as many banks as there are experts.
    parts = [ops.unstack(bank, num_experts, axis=0) for bank in banks]
    groups = groups_of(tokens, counts, num_experts)
    outputs = [feed_forward(group, *own) for group, *own in zip(groups, *parts, strict=True)]
    return ops.concatenate(outputs, axis=0)


def weighted_sum_over_experts(
    tokens: Any, experts: Any, weights: Any, banks: Sequence[Any], feed_forward: FeedForward, is_kept: Any = None
) -> Any:
    """Returns for each token the weighted sum of what its experts make of it, `[tokens, features]`.

    Args:
        tokens: `[tokens, features]`.
        experts: those that each token has chosen, int32, `[tokens, choices]`.
        weights: of the choices, in the tokens' dtype, `[tokens, choices]`.
        banks: as `compute_experts` takes them.
        feed_forward: likewise; as many features come out as go in.
        is_kept: bool, `[tokens, choices]`: the others are not computed, and add nothing. None to compute all.
    """
    num_experts = int(banks[0].shape[0])
    if is_kept is None:
        grouping = Grouping.of(experts, num_experts)
        outputs = compute_experts(grouping.sorted(tokens), grouping.counts, banks, feed_forward)
    else:
        # As choices of one expert more, behind all others, which makes zeros.
        grouping = Grouping.of(ops.where(is_kept, experts, num_experts), num_experts + 1)
        counts = grouping.counts[:num_experts]
        kept, rest = groups_of(grouping.sorted(tokens), ops.stack([ops.sum(counts), grouping.counts[-1]]), 2)
        computed = compute_experts(kept, counts, banks, feed_forward)
        outputs = ops.concatenate([computed, ops.zeros_like(rest)], axis=0)
    return ops.sum(grouping.of_choices(outputs) * weights[:, :, None], axis=1)
