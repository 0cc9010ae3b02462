"""The values and gradients of the micro-batches of one batch, and what passes on a device wait for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_ext.pipeline.schedule import Action


@dataclass
class Ledger:
    """The values and gradients of the micro-batches of one batch, as far as this process has them.

    Attributes:
        values: for each micro-batch by the `id` of Keras' tensors.
        logits: of which an output was computed, by micro-batch and the `id` of its Keras tensor.
        added: losses that layers added, by stage and micro-batch.
        penalties: of weights, by stage.
        upstream: gradients that came for a value, by its key: micro-batch and `id` of a Keras tensor, with "logits"
            behind for its logits; ``(i, "added", k, n)``; ``("penalty", k, n)``.
    """

    values: list[dict[int, Any]]
    logits: dict[tuple[int, int], Any] = field(default_factory=dict)
    added: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    penalties: dict[int, list[Any]] = field(default_factory=dict)
    upstream: dict[Hashable, list[Any]] = field(default_factory=dict)

    def value(self, key: Any) -> Any:
        """Returns the value of which a key of `upstream` names the gradient."""
        if key[0] == "penalty":
            return self.penalties[key[1]][key[2]]
        i, name, *rest = key
        if name == "added":
            stage, n = rest
            return self.added[stage, i][n]
        return self.logits[i, name] if rest else self.values[i][name]

    def note(self, key: Hashable, gradient: Any) -> None:
        """Notes a gradient, or none, that comes for a value."""
        if gradient is not None:
            self.upstream.setdefault(key, []).append(gradient)


class Gates:
    """The outputs of the actions of each device, for which later ones wait.

    Args:
        actions: of each device, in its order.
    """

    def __init__(self, actions: Iterable[Sequence[Action]]) -> None:
        self._places = {action: place for own in actions for place, action in enumerate(own)}
        self._noted: dict[int, list[list[Any]]] = {}

    def note(self, part: int, outputs: Sequence[Any]) -> None:
        """Notes what the next action of a device has made."""
        self._noted.setdefault(part, []).append(list(outputs))

    def last(self, part: int) -> list[Any]:
        """Returns the outputs of the last action of a device; none before the first."""
        return self._noted[part][-1] if part in self._noted else []

    def of_receive(self, part: int, action: Action) -> list[Any]:
        """Returns the outputs that are to be there before memory is set aside for a message that an action takes.

        They are those of the action two before it, or of the last one on its device, where the sender is far ahead.
        """
        noted = self._noted.get(part, [])
        place = min(self._places[action] - 2, len(noted) - 1)
        return noted[place] if place >= 0 else []
