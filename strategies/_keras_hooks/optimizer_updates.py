"""The variables, slots and gradients that a distributed optimizer sees: replicated, partitioned or central.

==================  ===========================================  ==============================================
update              variables of the optimizer                   runs
==================  ===========================================  ==============================================
`OptimizerUpdate`   the model's, or whole weights (Lamb, Muon)   on each replica's components
`PartitionedUpdate` slices of them, each with an owner (ZeRO)    on the owner's device; the slices are gathered
`CentralUpdate`     as without a parameter device                once, on the parameter device
==================  ===========================================  ==============================================

Each optimizer has one of these, chosen by its strategy when the optimizer is made (`distributed_optimizers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from strategies._keras_hooks.keras_versions import WRAPPING_OPTIMIZERS
from strategies._keras_hooks.whole_updates import inner_optimizers, needs_whole, shards_of, some_need_whole
from strategies._tf_internals import UpdateContext
from strategies.collectives.descriptions import listed
from strategies.engine.engine import Engine
from strategies.replica.overwritten import is_overwritten
from strategies.replica.splitting import weight_of
from strategies.replica.weight_identity import named_as_shard
from strategies.replica.weight_slices import WeightSlice
from strategies.replica.whole_weights import Slots, joined
from strategies.sharding.partition import Partition
from strategies.sharding.updates import ShardedUpdates
from strategies.sharding.variables import is_row_sharded
from strategies.steps.gradient_sync import Accumulation
from strategies.steps.optimizer_state import SlicesInTurn

#: Updates variables by global gradients; without variables, those that the optimizer was built with.
Apply: TypeAlias = Callable[[Sequence[Any], Sequence[Any] | None], Any]


class OptimizerUpdate:
    """The state and the updates of one optimizer: each replica holds all of its state and makes all of its updates.

    Args:
        engine: the engine of the strategy under which the optimizer was made.
        optimizer: the optimizer.
    """

    #: True if each of several owners updates some of the weights.
    is_partitioned = False

    def __init__(self, engine: Engine, optimizer: keras.Optimizer) -> None:
        self.engine = engine
        self.optimizer = optimizer
        #: The optimizer's slots of split weights.
        self.slots = Slots()
        #: True where nothing uses the variables that an update changes before metrics are read.
        self.may_defer = False
        #: The variables of the gradients that are clipped next, which Keras does not pass to its clipping.
        self.clipped: Sequence[Any] = ()

    def variables(self, variables: Sequence[Any]) -> Sequence[Any]:
        """Returns the variables that the optimizer is built with in place of the model's."""
        return joined(variables) if needs_whole(self.optimizer) else variables

    def make_slot(self, reference: Any, name: str | None, create: Callable[[], Any]) -> Any:
        """Makes a slot. Accumulators, recognized only by Keras' name for them, hold each replica's part of a sum.

        Accumulators of a wrapped optimizer do not: a loss scale is checked at every step on the global gradient, so
        each replica accumulates the global gradient. Nor do those of gradients that overwrite their variable: each
        replica accumulates the maximum over all replicas.
        """
        state = self.engine.optimizer_state
        is_wrapped = state.builders and state.builders[0] is not self.optimizer
        with named_as_shard(reference):
            if name == "gradient_accumulator" and not is_wrapped and not is_overwritten(reference):
                return self.make_accumulator(create)
            return create()

    def make_accumulator(self, create: Callable[[], Any]) -> Any:
        """Makes the accumulator of a gradient."""
        with self.engine.optimizer_state.creating_accumulators(self.optimizer):
            return create()

    def run(self, gradients: list[Any], variables: Sequence[Any] | None, apply: Apply, *, may_defer: bool) -> Any:
        """Sums gradients and updates variables. Call it in cross-replica context.

        Args:
            gradients: for each variable a per-replica gradient, a `Mirrored` one that is global already, or None.
            variables: the variables; None for all that the optimizer was built with.
            apply: updates them by the sums.
            may_defer: see :meth:`Engine.update_replicas`.
        """
        targets = self._targets(variables)

        def on_device(summed: Sequence[Any]) -> Any:
            return apply(summed, variables)

        accumulators = self._accumulators(variables)
        if accumulators is None:
            return self.engine.update_replicas(gradients, on_device, targets, may_defer=may_defer)
        is_due = tf.equal((self.optimizer._iterations + 1) % self.optimizer.gradient_accumulation_steps, 0)
        return self.engine.update_replicas(gradients, on_device, targets, Accumulation(accumulators, is_due))

    def finalize(self, variables: Sequence[Any], finalize: Callable[[Sequence[Any]], None]) -> None:
        """Sets weights to their final values, at the end of training."""
        finalize(joined(variables) if needs_whole(self.optimizer) else variables)

    def _targets(self, variables: Sequence[Any] | None) -> list[Any]:
        known = self.optimizer._trainable_variables if variables is None else variables
        # Not for a tf.Variable: its `value` is a method.
        shards = [shard for v in known for shard in shards_of(v)]
        return [shard.value if isinstance(shard, keras.Variable) else shard for shard in shards]

    def _accumulators(self, variables: Sequence[Any] | None) -> list[Any] | None:
        """Returns the accumulator of each variable's gradient, if the optimizer accumulates gradients over steps."""
        optimizer = self.optimizer
        if not optimizer.gradient_accumulation_steps:
            return None
        known = optimizer._trainable_variables if variables is None else variables
        if needs_whole(optimizer):
            known = joined(known)
        found = [optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in known]
        return [shard.value for accumulator in found for shard in shards_of(accumulator)]


class CentralUpdate(OptimizerUpdate):
    """The state and the updates of one optimizer on the parameter device, which makes each update once."""

    def make_accumulator(self, create: Callable[[], Any]) -> Any:
        """Makes the accumulator of a gradient: the sum itself, like any slot."""
        return create()

    def run(self, gradients: list[Any], variables: Sequence[Any] | None, apply: Apply, *, may_defer: bool) -> Any:
        """Sums gradients on the parameter device, and updates variables there."""
        del may_defer
        result = self.engine.update_replicas(
            gradients, lambda summed: apply(summed, variables), self._targets(variables)
        )
        # Variables that an optimizer makes before it is built have a component on each replica.
        self.engine.layout.mirror(self.optimizer.variables)
        return result


class PartitionedUpdate(OptimizerUpdate):
    """The state and the updates of one optimizer, sharded over the data axis (ZeRO).

    To Keras' optimizers a slice is a variable. Optimizers that update number by number get ranges of the elements;
    others get whole weights, each with one owner.

    Args:
        engine: the engine.
        optimizer: the optimizer.
        sharded: moves gradients and weights to and from the slices' owners.
    """

    is_partitioned = True

    def __init__(self, engine: Engine, optimizer: keras.Optimizer, sharded: ShardedUpdates) -> None:
        super().__init__(engine, optimizer)
        self._sharded = sharded

    def variables(self, variables: Sequence[Any]) -> Sequence[Any]:
        """Returns the slices into which the optimizer's variables are partitioned.

        Raises:
            ValueError: the optimizer needs whole weights, and replicas have only shards or some rows of a weight.
        """
        if not variables:
            return variables
        # An optimizer that wraps this one has already been given slices.
        slices = variables if isinstance(variables[0], WeightSlice) else self._slices(variables)
        if isinstance(self.optimizer, WRAPPING_OPTIMIZERS):
            # It makes no slots, and may choose the optimizers that it wraps in its loop over the slices.
            return list(slices)
        return SlicesInTurn(slices, self.engine.optimizer_state)

    def _slices(self, variables: Sequence[Any]) -> Sequence[WeightSlice]:
        name, whole = type(self.optimizer).__name__, some_need_whole(self.optimizer)
        if whole and (split := [each.path for each in variables if weight_of(each) is not None]):
            raise ValueError(
                f"{name} looks at whole weights, which cannot be sharded over devices where layers are split over the "
                "axis 'tensor'. Leave shard out, or use an optimizer that updates number by number, such as Adam. "
                f"Received: the split weights {listed(split)}."
            )
        if whole and (rows := [each.path for each in variables if is_row_sharded(each)]):
            raise ValueError(
                f"{name} looks at whole weights, and of those of experts, and of a ShardedEmbedding, a replica has "
                "some rows. Use an optimizer that updates number by number, such as Adam, or plain layers on a mesh "
                f"without 'expert'. Received: {listed(rows)}."
            )
        return self._sharded.partition(variables, whole=whole).slices

    def make_slot(self, reference: Any, name: str | None, create: Callable[[], Any]) -> Any:
        """Makes a slot of a slice: a variable of the slice's shape on the owner's device."""
        if not isinstance(reference, WeightSlice):
            return super().make_slot(reference, name, create)
        with named_as_shard(reference), self.engine.optimizer_state.creating_slot(reference):
            return create()

    def run(self, gradients: list[Any], variables: Sequence[Any] | None, apply: Apply, *, may_defer: bool) -> Any:
        """Sums gradients over all replicas; each owner updates its slices, which all replicas then get.

        Raises:
            ValueError: the optimizer was not built with a variable.
        """
        del may_defer
        partition = self._partition
        if partition is None:
            raise ValueError(
                "The optimizer's updates are sharded over devices (shard='optimizer'), but it was built outside of the "
                "strategy's scope. Build it inside `with strategy.scope():`."
            )
        found = _in_order_of(partition, gradients, partition.variables if variables is None else variables)
        if all(gradient is None for gradient in found):
            raise ValueError("No gradients provided for any variable.")
        self.engine.finish_update()
        skips = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        counter = self.optimizer.inner_optimizer._iterations if skips else None
        gathers_at = _gathers_at(self.optimizer)
        result = self._sharded.run(partition, found, apply, gathers_at=gathers_at, counter=counter)
        # The update changed the optimizer's counter and learning rate for one replica of each group only.
        self.engine.layout.mirror(self.optimizer.variables)
        return result

    def finalize(self, variables: Sequence[Any], finalize: Callable[[Sequence[Any]], None]) -> None:
        """Sets weights to their moving averages; each owner sets its slices."""
        partition, own = self._partition, self.optimizer._trainable_variables
        if partition is None:
            super().finalize(variables, finalize)
        elif isinstance(self.optimizer, WRAPPING_OPTIMIZERS):
            # Each optimizer that it wraps finalizes its own slices.
            finalize(own)
        elif self.optimizer.use_ema:
            # Training ends outside of the strategy's scope.
            with partition.variables[0].value.distribute_strategy.scope():
                for group in self._sharded.local_groups:
                    with UpdateContext(group):
                        finalize(own)
                self._sharded.gather(partition)

    @property
    def _partition(self) -> Partition | None:
        """The partitioned weights that the optimizer was built with; None if it was not built with slices."""
        known = self.optimizer._trainable_variables
        return known[0].partition if known and isinstance(known[0], WeightSlice) else None


def choose(engine: Engine, optimizer: keras.Optimizer) -> OptimizerUpdate:
    """Returns how an optimizer that was made under the engine's strategy updates variables."""
    if engine.sharded_updates is not None:
        return PartitionedUpdate(engine, optimizer, engine.sharded_updates)
    return (OptimizerUpdate if engine.central is None else CentralUpdate)(engine, optimizer)


def _in_order_of(partition: Partition, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns for each weight of a partition its gradient, or None."""
    positions = {_key(variable): i for i, variable in enumerate(partition.variables)}
    found: list[Any] = [None] * len(positions)
    for gradient, variable in zip(gradients, variables, strict=True):
        position = positions.get(_key(variable))
        if position is None:
            raise ValueError(
                f"Unknown variable: {variable}. This optimizer can only be called for the variables it was originally "
                "built with. When working with a new set of variables, you should recreate a new optimizer instance."
            )
        found[position] = gradient
    return found


def _key(variable: Any) -> int:
    return id(getattr(variable, "_value", variable) if isinstance(variable, keras.Variable) else variable)


def _gathers_at(optimizer: keras.Optimizer) -> tf.Tensor | None:
    """Returns a bool tensor that is True if this step changes weights; None if every step does."""
    inner = inner_optimizers(optimizer)
    if inner:
        return _gathers_at(inner[0]) if len(inner) == 1 else None
    steps = optimizer.gradient_accumulation_steps
    if not steps or (optimizer.use_ema and optimizer.ema_overwrite_frequency):
        return None
    return tf.equal((optimizer._iterations + 1) % steps, 0)
