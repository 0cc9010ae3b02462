"""The router's choice of experts for each token, and the weights of their outputs."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from keras import ops

RouterActivation = Literal["softmax", "sigmoid"]


class Routes(NamedTuple):
    """The chosen experts of each token, and their weights.

    Attributes:
        experts: the numbers of the experts, int32, `[tokens, choices]`.
        weights: the weights of the choices, in the scores' dtype, `[tokens, choices]`.
    """

    experts: Any
    weights: Any


def scores_of(logits: Any, activation: RouterActivation) -> Any:
    """Returns the router's scores, with the shape of its logits, `[..., num_experts]`."""
    return ops.softmax(logits, axis=-1) if activation == "softmax" else ops.sigmoid(logits)


def probabilities_of(scores: Any, activation: RouterActivation) -> Any:
    """Returns the scores, normalized to add up to 1 for each token."""
    if activation == "softmax":
        return scores
    return scores / (ops.sum(scores, axis=-1, keepdims=True) + 1e-20)


def choose(scores: Any, selection: Any, top_k: int, *, normalize: bool) -> Routes:
    """Returns the chosen experts, and their scores as weights.

    Args:
        scores: `[tokens, num_experts]`.
        selection: the values whose `top_k` highest are chosen, `[tokens, num_experts]`: the scores, or the scores plus
            a bias.
        top_k: number of experts that each token takes.
        normalize: divide the weights by their sum.
    """
    weights, experts = ops.top_k(selection, top_k)
    if selection is not scores:
        weights = ops.take_along_axis(scores, experts, axis=-1)
    if normalize:
        weights = weights / ops.sum(weights, axis=-1, keepdims=True)
    return Routes(ops.cast(experts, "int32"), weights)
