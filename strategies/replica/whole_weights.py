"""From shards back to whole weights: in lists of variables, and in the slots of an optimizer.

Gradients and optimizers work on shards; arrays, files and norms on whole weights. The contract is tested in
``tests/strategies/processes/spanning_files.py`` and ``tests/keras_ext/tensor/test_files.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from strategies.replica.splitting import SplitWeight, sharded_weight, weight_of


def whole_of(variable: Any) -> SplitWeight | None:
    """Returns the model's weight that a shard (or a shard of a shard) belongs to; None if ``variable`` is whole."""
    weight = weight_of(variable)
    if weight is None:
        return sharded_weight(variable)
    return whole_of(weight if weight.variable is None else weight.variable) or weight


def joined(variables: Sequence[Any], *, only_split: bool = False) -> list[Any]:
    """Returns ``variables`` with the shards of each weight replaced by the weight, in the place of the first shard.

    Args:
        variables: Keras variables.
        only_split: do not replace variables that are sharded over replicas, but are one variable in their layer.
    """
    result: list[Any] = []
    seen: set[int] = set()
    for variable in variables:
        weight = weight_of(variable) if only_split else whole_of(variable)
        if weight is None:
            result.append(variable)
        elif id(weight) not in seen:
            seen.add(id(weight))
            result.append(weight)
    return result


def check_frozen(variables: Iterable[Any]) -> None:
    """Checks that the shards of each split weight are trainable or frozen together.

    Raises:
        ValueError: ``trainable`` was set on some shards of a weight only.
    """
    for variable in variables:
        weight = weight_of(variable)
        if weight is not None and bool(variable.trainable) != weight.trainable:
            attribute = weight.path.rpartition("/")[2]
            raise ValueError(
                f"The shards of the split weight {weight.path!r} are not all trainable, nor all frozen: a layer's "
                "`weights` and `trainable_weights` list shards. Set `trainable` of the whole weight, as in "
                f"`layer.{attribute}.trainable = False`, or of each shard. "
                f"Received: {[bool(shard.trainable) for shard in weight.shards]} of {len(weight.shards)} shards."
            )


class Slots:
    """Groups an optimizer's slots of shards: the k-th slots of all shards of a weight form one slot of the weight."""

    def __init__(self) -> None:
        self._groups: weakref.WeakKeyDictionary[SplitWeight, list[SplitWeight]] = weakref.WeakKeyDictionary()

    def note(self, weight: SplitWeight, shard: Any, slot: Any) -> None:
        """Records that ``slot``, a variable of the shard's shape, was made for ``shard`` of ``weight``."""
        groups = self._groups.setdefault(weight, [])
        position = next(i for i, other in enumerate(weight.shards) if other is shard)
        # The first group that has no slot of this shard yet.
        group = next((group for group in groups if len(group.shards) == position), None)
        if group is None:
            group = weight.like()
            groups.append(group)
            outer = None if weight.variable is None else weight_of(weight.variable)
            if outer is not None:
                self.note(outer, weight.variable, group)
        group.add(slot)
