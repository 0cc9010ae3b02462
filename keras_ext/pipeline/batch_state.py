"""The values and gradients of the micro-batches of one batch, and the tensors that passes on a device wait for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strategies.schedules import Action


@dataclass
class BatchState:
    """The values and gradients of the micro-batches of one batch that this process has.

    Attributes:
        values: for each micro-batch, values by the `id` of Keras' tensors.
        logits: the logits of outputs, by micro-batch and the `id` of the output's Keras tensor.
        added: losses that layers added, by stage and micro-batch.
        penalties: penalties of weights, by stage.
        upstream: the gradients received for each value, by its key: ``(i, id)`` for the Keras tensor ``id`` of
            micro-batch i, ``(i, id, "logits")`` for its logits, ``(i, "added", k, n)`` for added loss n of stage k,
            ``("penalty", k, n)`` for penalty n of stage k.
    """

    values: list[dict[int, Any]]
    logits: dict[tuple[int, int], Any] = field(default_factory=dict)
    added: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    penalties: dict[int, list[Any]] = field(default_factory=dict)
    upstream: dict[Hashable, list[Any]] = field(default_factory=dict)

    def value(self, key: Any) -> Any:
        """Returns the value to which a key of `upstream` belongs."""
        if key[0] == "penalty":
            return self.penalties[key[1]][key[2]]
        i, name, *rest = key
        if name == "added":
            stage, n = rest
            return self.added[stage, i][n]
        return self.logits[i, name] if rest else self.values[i][name]

    def note(self, key: Hashable, gradient: Any) -> None:
        """Adds a gradient to those received for a value; None is ignored."""
        if gradient is not None:
            self.upstream.setdefault(key, []).append(gradient)


class ControlDependencies:
    """The outputs of the actions of each device, used as control dependencies of later actions.

    Args:
        actions: for each device, its actions in order.
    """

    def __init__(self, actions: Iterable[Sequence[Action]]) -> None:
        self._positions = {action: position for own in actions for position, action in enumerate(own)}
        self._noted: dict[int, list[list[Any]]] = {}

    def note(self, part: int, outputs: Sequence[Any]) -> None:
        """Records the outputs of the next action of a device."""
        self._noted.setdefault(part, []).append(list(outputs))

    def last(self, part: int) -> list[Any]:
        """Returns the outputs of the last recorded action of a device; empty before the first."""
        return self._noted[part][-1] if part in self._noted else []

    def before_receive(self, part: int, action: Action) -> list[Any]:
        """Returns the tensors that must be ready before memory is allocated for a message that an action uses.

        They are the outputs of the action two positions earlier on the device, or of the last recorded action if the
        sender is far ahead.
        """
        noted = self._noted.get(part, [])
        position = min(self._positions[action] - 2, len(noted) - 1)
        return noted[position] if position >= 0 else []
