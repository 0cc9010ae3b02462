"""Gradients that a program passes to an optimizer: of the global batch, or terms that replicas still have to sum.

In a step of Keras' trainer, ``gradients`` marks the gradients of a tape. The kind of a gradient that a program derives
from these, or computes by hand, follows from the operations that made it (``row_dependence``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies._tf_internals import Mirrored, ReplicaContext, UpdateContext
from strategies.batches import shares
from strategies.batches.row_kinds import Form, Kind
from strategies.batches.row_warnings import warn, warn_of_shards
from strategies.engine.engine import Engine
from strategies.replica.overwritten import is_overwritten
from strategies.steps.layout import local_values

#: Kinds of a replica's gradient that is a term of the global one.
_TERMS = (Kind.SUM, Kind.COUNT)


def as_terms(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """Returns a replica's gradients, each global or a term of a sum over replicas, and for each whether it is global.

    Means over rows become terms, weighted by the replica's rows. Any other gradient is treated as a mean, with a
    warning. Outside of steps of the trainer all gradients are terms. Gradients that overwrite their variable, which are
    combined by the maximum, are returned as terms, too.
    """
    share = shares.current()
    found, are_global = list(gradients), [False] * len(gradients)
    if share is None or not share.in_trainer:
        return found, are_global
    warn_of_shards(found, "A gradient that is applied here", share.dependence, right=(Form.ELEMENTS,))
    if share.num_replicas == 1:
        return found, are_global
    for i, (gradient, variable) in enumerate(zip(found, variables, strict=True)):
        if gradient is None:
            continue
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
        kind = share.dependence.kind(values)
        are_global[i] = kind is Kind.SAME
        if are_global[i] or kind in _TERMS or is_overwritten(variable):
            continue
        if kind is Kind.DRAWN:
            # Random numbers that are not for rows: all replicas take those of the first.
            found[i] = values * tf.cast(share.value_on_replica(lambda replica: replica == 0), values.dtype)
            continue
        if kind is not Kind.MEAN:
            warn(
                "A gradient that is applied here is computed from each replica's own rows and is neither a mean nor a "
                "sum over rows, so that the update is not that of one device: replicas take the mean of theirs, "
                "weighed by rows",
                "Take it with tape.gradient or tf.gradients in the step itself, where it is that of the global batch "
                "(in a tf.function that the step calls it is the replica's), and change it after that; or compute it "
                "from strategies.gather_rows(x), the rows of all replicas.",
            )
        weighed = share.weigh(values)
        if isinstance(gradient, tf.IndexedSlices):
            weighed = tf.IndexedSlices(weighed, gradient.indices, gradient.dense_shape)
        found[i] = weighed
    return found, are_global


def marked(gradients: Sequence[Any], are_global: Sequence[bool]) -> list[Any]:
    """Returns gradients as values of cross-replica context, global ones as `Mirrored` values."""
    return [
        Mirrored(local_values(gradient)) if is_global and gradient is not None else gradient
        for gradient, is_global in zip(gradients, are_global, strict=True)
    ]


def can_synchronize(context: Any) -> bool:
    """Returns True where the replicas of this process can synchronize: not in a conditional of one replica's step."""
    if tf.executing_eagerly() or not isinstance(context, ReplicaContext) or type(context) is ReplicaContext:
        return True
    share = shares.current()
    return share is None or share.is_in_step_graph


def apply_alone(
    engine: Engine,
    optimizer: keras.Optimizer,
    gradients: Sequence[Any],
    variables: Sequence[Any] | None,
    are_global: Sequence[bool],
    update: Callable[[Sequence[Any], Sequence[Any] | None], Any],
) -> Any:
    """Updates the running replica's components of variables with global gradients, in a conditional of its step.

    There, replicas of a process cannot synchronize. Each makes the same update of its own components.

    Raises:
        ValueError: the update needs all replicas.
    """
    share = shares.current()
    alike = all(is_global or each is None for each, is_global in zip(gradients, are_global, strict=True))
    is_plain = engine.sharded_updates is None and engine.central is None and engine.num_processes == 1
    can_build = optimizer.built or variables is not None
    if share is None or not (alike and is_plain and can_build and not optimizer.gradient_accumulation_steps):
        raise ValueError(
            "Gradients are applied inside a tf.cond, a tf.while_loop or a tf.function of a step, where the replicas "
            "of a process cannot synchronize. That works in one process, in a step that Keras' trainer runs, with an "
            "optimizer that is built or gets the variables as well, with gradients that tape.gradient gave outside of "
            "it, without `shard` and without CentralStorageStrategy. To apply gradients of several steps at once, "
            "leave that to Keras: optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=4). Received: "
            f"{engine.num_processes} process(es), {type(optimizer).__name__}, built={optimizer.built}, gradients of "
            f"the global batch: {alike}."
        )
    replica = share.replica_id - engine.layout.first_replica

    def in_place(_: tf.distribute.Strategy) -> Any:
        if not optimizer.built:
            # Slots belong to no branch, and to all replicas.
            with tf.init_scope():
                optimizer.build(variables)
        with tf.device(engine.layout.devices[replica]), UpdateContext(replica):
            return update(list(gradients), variables)

    with ReplicaContext(tf.distribute.get_strategy(), share.replica_id):
        return tf.distribute.get_replica_context().merge_call(in_place)
