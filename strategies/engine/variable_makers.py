"""Chooses how a variable that is created in a strategy's scope comes to be on devices.

===============================  ==========================================================================
variable                         created
===============================  ==========================================================================
flag of an optimizer             by TensorFlow, outside of the replicas: it is this process' own
slot of a slice of a weight      on the device of the slice's owner in each group of replicas; elsewhere a placeholder
weight, shard="weights"          as shards, one on each device
central storage's                once, on the parameter device
of a part in another process     a placeholder with shape and dtype, without a value
of a replica over processes      initialized when it is needed: split and staged copies take the initializer over
accumulator of gradients         on each replica, as partial sums
any other                        on the device of the part of each local replica, by TensorFlow
===============================  ==========================================================================

The first row that applies is taken.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from strategies._tf_internals import MirroredVariable, SyncOnReadVariable
from strategies.engine.engine import Engine
from strategies.replica.owners import set_coordinates, set_owner
from strategies.sharding.creation import ShardedWeights
from strategies.steps.metric_variables import MetricVariable
from strategies.steps.placed_variables import has_value, remote, without_value
from strategies.steps.variables import ReplicaStateVariable

_Arguments = dict[str, Any]


@dataclass(frozen=True)
class _Colocation:
    """A fake ``colocate_with`` target: TensorFlow reads only its devices."""

    _devices: tuple[str, ...]


class _Maker(NamedTuple):
    applies: Callable[[_Arguments], bool]
    make: Callable[[Callable[..., Any], _Arguments], Any]


class VariableMakers:
    """Creates the variables of a strategy.

    Args:
        strategy: the strategy.
        engine: its engine.
        mirrored: TensorFlow's creation of a variable with a component on the device of each local replica.
        initial_value: returns the initial value of a variable, or a callable that returns it, from its arguments.
    """

    def __init__(
        self,
        strategy: Any,
        engine: Engine,
        mirrored: Callable[..., Any],
        initial_value: Callable[[_Arguments], Any],
    ) -> None:
        self._strategy = strategy
        self._engine = engine
        self._mirrored = mirrored
        self._initial_value = initial_value
        state = engine.optimizer_state
        makers = [
            _Maker(lambda _: state.makes_flag, lambda create, kwargs: create(**kwargs)),
            _Maker(lambda _: state.slice is not None, self._make_slot),
        ]
        if (sharded := engine.sharded_weights) is not None:
            makers.append(_Maker(sharded.should_shard, functools.partial(self._make_sharded, sharded)))
        if (central := engine.central) is not None:
            makers.append(_Maker(central.keeps, functools.partial(central.create, strategy)))
        if engine.parts.spans_processes:
            makers.append(_Maker(self._is_without_value, self._make_without_value))
        makers += [
            _Maker(lambda _: state.makes_accumulators, self._make_accumulator),
            _Maker(lambda _: True, lambda create, kwargs: _aware(self._make_mirrored(create, kwargs))),
        ]
        self._makers = tuple(makers)

    def make(self, create: Callable[..., Any], kwargs: _Arguments) -> Any:
        """Returns a new variable.

        Args:
            create: TensorFlow's creator of a variable on the current device.
            kwargs: the arguments of ``tf.Variable``.
        """
        parts, reference = self._engine.parts, kwargs.get("colocate_with")
        maker = next(each for each in self._makers if each.applies(kwargs))
        made = maker.make(create, kwargs)
        self._engine.steps.components.add(made)
        if parts.spans_processes and isinstance(made, tf.distribute.DistributedValues):
            set_coordinates(made, parts, reference)
        return made

    def _make_slot(self, create: Callable[..., Any], kwargs: _Arguments) -> Any:
        owner = self._engine.optimizer_state.slice
        if owner is None:
            raise RuntimeError("No slot of a slice is being created.")
        if owner.is_owned:
            components = []
            for replica in owner.replicas:
                with tf.device(owner.on_replica(replica).device):
                    components.append(create(**kwargs))
        else:
            components = [remote(owner.rank, kwargs)]
        made = ReplicaStateVariable(self._strategy, components, components[0].aggregation)
        sharded = self._engine.sharded_updates
        if sharded is not None and sharded.spans_processes:
            set_owner(made, owner.rank)
        return made

    def _make_sharded(self, sharded: ShardedWeights, create: Callable[..., Any], kwargs: _Arguments) -> Any:
        return sharded.create(self._strategy, create, self._initial_value(kwargs), kwargs)

    def _is_without_value(self, kwargs: _Arguments) -> bool:
        may_defer = not self._engine.optimizer_state.makes_accumulators
        return not has_value(self._engine.parts.local_part(), kwargs, may_defer=may_defer)

    def _make_without_value(self, create: Callable[..., Any], kwargs: _Arguments) -> Any:
        del create
        parts = self._engine.parts
        component = without_value(parts, parts.local_part(), kwargs)
        return ReplicaStateVariable(self._strategy, [component], component.aggregation)

    def _make_accumulator(self, create: Callable[..., Any], kwargs: _Arguments) -> Any:
        return self._engine.optimizer_state.create_accumulator(
            lambda **given: self._make_mirrored(create, given), kwargs
        )

    def _make_mirrored(self, create: Callable[..., Any], kwargs: _Arguments) -> Any:
        parts = self._engine.parts
        part = parts.local_part()
        if part is not None and part != parts.owned[0] and kwargs.get("colocate_with") is None:
            kwargs["colocate_with"] = _Colocation(parts.part_devices(part))
        return self._mirrored(functools.partial(_create_component, create), **kwargs)


def _create_component(create: Callable[..., Any], **kwargs: Any) -> Any:
    """Creates one replica's component of a variable, under a name that all components of that replica have.

    TensorFlow compiles a kernel for each name, and keeps it: without this, that is most of the time in which variables
    are created. The variable's own name is the one that TensorFlow has chosen, such as "kernel/replica_1:0".
    """
    name = str(kwargs.get("name"))
    of_replica = re.fullmatch(r".+/(replica_\d+/)", name)
    # In graphs, variables of one name would be one.
    if of_replica is None or not tf.executing_eagerly():
        return create(**kwargs)
    component = create(**kwargs | {"name": of_replica[1]})
    component._handle_name = f"{name.removesuffix('/')}:0"
    return component


def _aware(variable: Any) -> Any:
    """Returns ``variable``, rebuilt as our class that replaces its TensorFlow class, if one does."""
    for theirs, ours in ((MirroredVariable, ReplicaStateVariable), (SyncOnReadVariable, MetricVariable)):
        if type(variable) is theirs:
            return ours(variable.distribute_strategy, variable.values, variable.aggregation)
    return variable
