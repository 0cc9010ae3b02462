"""Copies of one weight in stages of several processes, as of a tied embedding: their gradients are the same bits.

Each copy is reduced over "data" in a process group of its own. From three replicas on, the order in which a group adds
up depends on what else is in the message, so that the copies' sums would differ in their last bits, and with every
step the copies by a little more.

Its contract is tested in ``tests/strategies/processes/spanning_copies.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.engine.layout import local_values
from strategies.replica.holders import place_of
from strategies.replica.parts import ReplicaParts
from strategies.replica.stage_messages import Description, StageMessages


def with_same_bits(parts: ReplicaParts, num_replicas: int, gradients: list[Any], targets: Sequence[Any]) -> list[Any]:
    """Returns gradients of which the copies are that of the first process that has the weight.

    Args:
        parts: of the replica. Its processes along "pipe" call this together.
        num_replicas: over which the gradients were summed. Sums of two do not depend on their order.
        gradients: per variable the sum over all replicas; None of those that other processes have. Slices, which are
            joined and not added up, are left as they are.
        targets: the variables.
    """
    if num_replicas < 3 or not parts.crosses("pipe"):
        return gradients
    found = list(gradients)
    messages: StageMessages | None = None
    for i, (gradient, target) in enumerate(zip(gradients, targets, strict=True)):
        place = place_of(target)
        holders = sorted({parts.process_at("pipe", position) for position in place.get("pipe", ())})
        part = parts.home(place)
        # No process has two replicas if one spans processes.
        [value] = local_values(gradient)
        if len(holders) < 2 or part is None or not isinstance(value, tf.Tensor):
            continue
        messages = messages or StageMessages(parts)
        first, *others = holders
        if messages.position == first:
            for other in others:
                messages.send(part, other, [value])
        else:
            described = [Description.of(tf.ensure_shape(value, target.shape))]
            found[i] = PerReplica(tuple(messages.receive(part, first, described)))
    return found
