"""The gradients of a model's variables, of those that its stages found. Tested with the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from strategies import layer_api


def whole_gradients(
    parts: layer_api.ReplicaParts,
    devices: Sequence[int],
    variables: Sequence[Any],
    weights: Sequence[Sequence[Any]],
    gradients: Sequence[Sequence[Any]],
) -> Iterator[tuple[Any, Any]]:
    """Yields gradient and variable, where a layer is in several stages added up at the first of them.

    Args:
        parts: of the replica.
        devices: the part of each stage.
        variables: of the model, in the order to yield.
        weights: of each stage, variables.
        gradients: of each stage, of its weights.
    """
    found: dict[int, list[Any]] = {}
    first: dict[int, int] = {}
    for k, (own, of_own) in enumerate(zip(weights, gradients, strict=True)):
        for variable, gradient in zip(own, of_own, strict=True) if devices[k] is not None else ():
            first.setdefault(id(variable), k)
            found.setdefault(id(variable), []).append(gradient)
    for variable in variables:
        if layer_api.is_remote(variable):
            continue
        yield parts.added(devices[first[id(variable)]], found[id(variable)]), variable
