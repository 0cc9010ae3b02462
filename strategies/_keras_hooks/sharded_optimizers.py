"""Optimizers whose updates are sharded over the data axis (ZeRO): they are built with slices of weights only.

To Keras' optimizers a slice is a variable. Optimizers that update number by number get ranges of the elements; others
get whole weights, each with one owner. ``engine.sharded_updates`` moves gradients and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers import base_optimizer

from strategies._keras_hooks.keras_versions import WRAPPING_OPTIMIZERS
from strategies._keras_hooks.whole_updates import needs_whole, overrides_gradients
from strategies._keras_hooks.wrapping import wrap
from strategies._tf_internals import UpdateContext
from strategies.collectives.descriptions import listed
from strategies.engine.engine import Engine, engine_of
from strategies.replica.splitting import weight_of
from strategies.replica.weight_identity import is_plain, keys_of, variable_name
from strategies.replica.weight_slices import WeightSlice
from strategies.sharding.partition import Partition
from strategies.sharding.row_variables import is_row_sharded
from strategies.sharding.slots import Announced, creating_slot
from strategies.sharding.updates import ShardedUpdates


def install() -> None:
    """Wraps the method that decides whether weight decay applies to a variable."""
    wrap(base_optimizer.BaseOptimizer, "_use_weight_decay", _use_weight_decay)


def sharded_updates() -> ShardedUpdates | None:
    """Returns the current strategy's `ShardedUpdates`; None if it does not shard updates."""
    engine = engine_of(tf.distribute.get_strategy())
    return None if engine is None else engine.sharded_updates


def inner_optimizers(optimizer: keras.Optimizer) -> list[keras.Optimizer]:
    """Returns the optimizers that an optimizer wraps."""
    wrapped = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [each for each in wrapped if isinstance(each, keras.Optimizer)]


def sliced(optimizer: keras.Optimizer, variables: Sequence[Any]) -> Sequence[Any] | None:
    """Returns the slices into which an optimizer's variables are partitioned; None if updates are not sharded.

    Raises:
        ValueError: the optimizer needs whole weights, and replicas have only shards or some rows of a weight.
    """
    updates = sharded_updates()
    if updates is None:
        return None
    if not variables or isinstance(variables[0], WeightSlice):
        # An optimizer that wraps this one has already been given slices.
        return variables
    whole = some_need_whole(optimizer)
    if whole and (split := [each.path for each in variables if weight_of(each) is not None]):
        raise ValueError(
            f"{type(optimizer).__name__} looks at whole weights, which cannot be sharded over devices where layers "
            "are split over the axis 'tensor'. Leave shard out, or use an optimizer that updates number by number, "
            f"such as Adam. Received: the split weights {listed(split)}."
        )
    if whole and (rows := [each.path for each in variables if is_row_sharded(each)]):
        raise ValueError(
            f"{type(optimizer).__name__} looks at whole weights, and of those of experts, and of a ShardedEmbedding, a "
            "replica has some rows. Use an optimizer that updates number by number, such as Adam, or plain layers on a "
            f"mesh without 'expert'. Received: {listed(rows)}."
        )
    return Announced(updates.partition(variables, whole=whole).slices)


def some_need_whole(optimizer: keras.Optimizer) -> bool:
    """Returns True if an optimizer, or one that it wraps, gets whole weights where updates are sharded."""
    inner = inner_optimizers(optimizer)
    if inner:
        return any(map(some_need_whole, inner))
    # An optimizer that chooses its inner ones by the variables has none before it is built.
    return isinstance(optimizer, WRAPPING_OPTIMIZERS) or needs_whole(optimizer) or overrides_gradients(optimizer)


def partition_of(optimizer: keras.Optimizer) -> Partition | None:
    """Returns the partitioned weights that an optimizer was built with; None if it was not built with slices."""
    known = optimizer._trainable_variables
    return known[0].partition if known and isinstance(known[0], WeightSlice) else None


def apply(
    engine: Engine,
    optimizer: keras.Optimizer,
    gradients: Sequence[Any],
    variables: Sequence[Any] | None,
    update: Callable[[Sequence[Any], Sequence[Any] | None], Any],
) -> Any:
    """Updates variables with gradients of replicas; each owner updates its slices. Call in cross-replica context.

    Raises:
        ValueError: the optimizer was not built with a variable, or was built under another strategy.
    """
    updates, partition = engine.sharded_updates, partition_of(optimizer)
    if updates is None or partition is None:
        raise ValueError(
            "The optimizer's updates are sharded over devices (shard='optimizer'), but it was built under another "
            "strategy. Make it, and compile the model, inside `with strategy.scope():`."
        )
    positions = {_key(variable): i for i, variable in enumerate(partition.variables)}
    found: list[Any] = [None] * len(positions)
    for gradient, variable in zip(gradients, partition.variables if variables is None else variables, strict=True):
        position = positions.get(_key(variable))
        if position is None:
            raise ValueError(
                f"Unknown variable: {variable}. This optimizer can only be called for the variables it was originally "
                "built with. When working with a new set of variables, you should recreate a new optimizer instance."
            )
        found[position] = gradient
    if all(gradient is None for gradient in found):
        raise ValueError("No gradients provided for any variable.")
    engine.finish_update()
    skips = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    counter = optimizer.inner_optimizer._iterations if skips else None
    result = updates.run(partition, found, update, gathers_at=_gathers_at(optimizer), counter=counter)
    # The update changed the optimizer's counter and learning rate for one replica of each group only.
    engine.layout.mirror(optimizer.variables)
    return result


def _key(variable: Any) -> int:
    return id(getattr(variable, "_value", variable) if isinstance(variable, keras.Variable) else variable)


def _gathers_at(optimizer: keras.Optimizer) -> tf.Tensor | None:
    """Returns a bool tensor, whether this step changes weights; None if every step does."""
    inner = inner_optimizers(optimizer)
    if inner:
        return _gathers_at(inner[0]) if len(inner) == 1 else None
    steps = optimizer.gradient_accumulation_steps
    if not steps or (optimizer.use_ema and optimizer.ema_overwrite_frequency):
        return None
    return tf.equal((optimizer._iterations + 1) % steps, 0)


def make_slot(optimizer: keras.Optimizer, each: WeightSlice, *args: Any, **kwargs: Any) -> Any:
    """Makes a slot of a slice: a variable of the slice's shape on the owner's device."""
    # Not Keras' method for TensorFlow, which reads the devices of a distributed variable: a slice is not one.
    with creating_slot(each):
        return base_optimizer.BaseOptimizer.add_variable_from_reference(optimizer, each, *args, **kwargs)


def finalize(original: Callable[..., None], optimizer: keras.Optimizer) -> None:
    """Sets weights to their moving averages at the end of training; each owner sets its slices."""
    partition = partition_of(optimizer)
    if not optimizer.use_ema or partition is None:
        return
    # Training ends outside of the strategy's scope.
    with partition.variables[0].value.distribute_strategy.scope():
        updates = sharded_updates()
        if updates is None:
            return
        for group in updates.local_groups:
            with UpdateContext(group):
                original(optimizer, optimizer._trainable_variables)
        updates.gather(partition)


class _Asked:
    """An id and a name that represent a variable where an optimizer looks up weight decay.

    Args:
        key: the id.
        name: the name of TensorFlow's variable, which contains the names of layers.
    """

    def __init__(self, key: str, name: str) -> None:
        self._unique_id, self.name = key, name


def _use_weight_decay(original: Callable[..., bool], optimizer: keras.Optimizer, variable: Any) -> bool:
    """Decides by the whole weight, with the keys and name of one device: programs exclude weights, not their parts."""
    weight = variable
    if not isinstance(variable, WeightSlice):
        position = optimizer._trainable_variables_indices.get(optimizer._var_key(variable))
        weight = variable if position is None else optimizer._trainable_variables[position]
    if is_plain(weight):
        return original(optimizer, variable)
    name = variable_name(weight)
    return all(original(optimizer, _Asked(key, name)) for key in keys_of(weight))
