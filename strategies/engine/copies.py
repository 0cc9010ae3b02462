"""Keeps gradients bit-equal between copies of one weight in stages of several processes, as of a tied embedding.

Each copy's gradient is reduced over "data" in its own process group. From three replicas on, the order in which a group
adds depends on what else is in the message: the sums would differ in their last bits, and the copies would drift apart
step by step.

The contract is tested in ``tests/strategies/processes/spanning_copies.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.engine.layout import local_values
from strategies.replica.owners import coordinates_of
from strategies.replica.parts import ReplicaParts
from strategies.replica.stage_messages import Description, StageMessages


def with_same_bits(parts: ReplicaParts, num_replicas: int, gradients: list[Any], targets: Sequence[Any]) -> list[Any]:
    """Returns gradients in which every copy has the bits of the first owner's.

    Args:
        parts: the parts of the replica. Its processes along "pipe" call this function together.
        num_replicas: the number of replicas over which the gradients were summed. A sum of two terms does not depend on
            their order.
        gradients: for each variable the sum over all replicas; None for variables of other processes. Slices are
            concatenated, not added, and are returned unchanged.
        targets: the variables.
    """
    if num_replicas < 3 or not parts.crosses("pipe"):
        return gradients
    found = list(gradients)
    messages: StageMessages | None = None
    for i, (gradient, target) in enumerate(zip(gradients, targets, strict=True)):
        coordinates = coordinates_of(target)
        owners = sorted({parts.process_at("pipe", position) for position in coordinates.get("pipe", ())})
        part = parts.local_part(coordinates)
        # No process has two replicas if one spans processes.
        [value] = local_values(gradient)
        if len(owners) < 2 or part is None or not isinstance(value, tf.Tensor):
            continue
        messages = messages or StageMessages(parts)
        first, *others = owners
        if messages.position == first:
            for other in others:
                messages.send(part, other, [value])
        else:
            described = [Description.from_tensor(tf.ensure_shape(value, target.shape))]
            found[i] = PerReplica(tuple(messages.receive(part, first, described)))
    return found
