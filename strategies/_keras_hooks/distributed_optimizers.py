"""Optimizers of our strategies: gradients are reduced first, then Keras' optimizer runs unchanged on every device.

An optimizer that is made under one of our strategies gets a subclass of its class, see ``subclasses``:

    Adam                     _Outermost, Adam, DistributedOptimizer, keras.Optimizer
    a user's LossScale       _Outermost, LossScale, DistributedLossScale, LossScaleOptimizer, DistributedOptimizer, ...

Optimizers of no strategy, or of another one, are Keras' own. ``optimizer.__class__`` remains the class that the program
chose: files, configs and copies are those of plain Keras.

Keras reduces gradients at the end of ``apply``: after it has unscaled them, checked them for overflow, clipped them and
accumulated them over micro-steps, all on one replica's part. It also runs collectives inside conditionals, which
TensorFlow refuses. Reducing at the very start of ``apply`` solves both problems, for every optimizer and for optimizers
wrapped in others: an inner ``apply`` runs outside any replica and passes straight through.

In a step of Keras' trainer most gradients are those of the global batch already (``gradients``), and only those that
are still terms of a sum are summed: ``applied_gradients`` distinguishes them.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks import applied_gradients, joint_gradients
from strategies._keras_hooks.addresses import BaseOptimizer, TFOptimizer
from strategies._keras_hooks.keras_versions import MULTI_OPTIMIZERS, decay_name, decay_rule
from strategies._keras_hooks.loops import check_runs
from strategies._keras_hooks.norms import clipped
from strategies._keras_hooks.optimizer_updates import Apply, OptimizerUpdate, choose
from strategies._keras_hooks.outside import check_part
from strategies._keras_hooks.owned_variables import apply_owned, are_finite, owned_averages
from strategies._keras_hooks.row_updates import update_rows
from strategies._keras_hooks.subclasses import become, reduced, subclass
from strategies._keras_hooks.summed_gradients import sums_of_terms, terms_of
from strategies._keras_hooks.weights import WholeSlots
from strategies._keras_hooks.whole_updates import needs_whole, overrides_apply, whole_pairs
from strategies._keras_hooks.wrapping import not_converted, overrides, wrap
from strategies._tf_internals import get_update_replica_id
from strategies.batches import shares
from strategies.engine.engine import engine_of
from strategies.replica.splitting import SplitWeight, weight_of
from strategies.replica.weight_identity import is_plain, keys_of, named_as_wholes, variable_name
from strategies.replica.weight_slices import WeightSlice


def install() -> None:
    """Wraps the constructor of optimizers, and ``apply`` of those that were made under no strategy."""
    wrap(TFOptimizer, "__init__", _init, in_step=False)
    wrap(BaseOptimizer, "apply", _apply_of_no_strategy)


def _init(original: Callable[..., None], optimizer: keras.Optimizer, *args: Any, **kwargs: Any) -> None:
    original(optimizer, *args, **kwargs)
    engine = engine_of(optimizer._distribution_strategy)
    if engine is not None:
        become(optimizer, distributed(type(optimizer)))
        # Not by setattr: Keras would track the value.
        vars(optimizer)["_distributed_update"] = choose(engine, optimizer)


def _apply_of_no_strategy(original: Callable[..., Any], optimizer: keras.Optimizer, *args: Any, **kwargs: Any) -> Any:
    """Refuses an optimizer that was made under no strategy: it would run, and count its steps, once per replica."""
    if not isinstance(optimizer, DistributedOptimizer) and tf.distribute.get_replica_context() is not None:
        strategy = tf.distribute.get_strategy()
        if engine_of(strategy) is not None:
            check_part(strategy, "optimizer", optimizer)
    return original(optimizer, *args, **kwargs)


def distributed(cls: type) -> type:
    """Returns the subclass of an optimizer's class that distributes it."""
    if issubclass(cls, DistributedOptimizer):
        return cls
    inner = next(each for plain, each in _CLASSES.items() if issubclass(cls, plain))
    return subclass(cls, inner, _Outermost)


@contextlib.contextmanager
def may_defer_update(optimizer: keras.Optimizer) -> Iterator[None]:
    """Context manager: nothing uses the variables that the optimizer updates before metrics are read."""
    update: OptimizerUpdate = optimizer._distributed_update
    update.may_defer = True
    try:
        yield
    finally:
        update.may_defer = False


class DistributedOptimizer(WholeSlots):
    """Methods of Keras' base class for an optimizer of one of our strategies. They pass through outside of it."""

    #: The optimizer's state and updates under its strategy; None if it was made under another strategy, or none.
    _distributed_update: OptimizerUpdate | None = None

    def _update_here(self) -> OptimizerUpdate | None:
        """Returns how updates run if the optimizer's strategy is the current one, else None."""
        update = self._distributed_update
        return update if update is not None and engine_of(tf.distribute.get_strategy()) is update.engine else None

    def _reduce_first(self, gradients: Sequence[Any], variables: list[Any] | None, apply: Apply) -> Any:
        """Calls ``apply`` with global gradients and their variables: once outside of our replicas, else per device."""
        engine = engine_of(tf.distribute.get_strategy())
        if get_update_replica_id() is not None or engine is None:
            return apply(gradients, variables)
        update = self._update_here()
        if update is None:
            raise ValueError(
                f"The optimizer {self.name!r} was made under another strategy. Make it, and compile the model, inside "
                "`with strategy.scope():`, with the same strategy object."
            )
        # Read here, in the replica's own thread: `across` runs in another one.
        may_defer = update.may_defer
        targets = self._trainable_variables if variables is None else variables
        gradients, are_global = terms_of(gradients, targets)

        def across(strategy: tf.distribute.Strategy, gradients: list[Any]) -> Any:
            del strategy
            if not self.built and variables is not None:
                with tf.init_scope():
                    self.build(variables)
            marked = applied_gradients.marked(gradients, are_global)
            return update.run(marked, variables, apply, may_defer=may_defer)

        context = tf.distribute.get_replica_context()
        if context is None:
            return across(tf.distribute.get_strategy(), list(gradients))
        if not applied_gradients.can_synchronize(context):
            return applied_gradients.apply_alone(engine, self, gradients, variables, are_global, apply)
        if engine.sharded_weights is not None:
            engine.sharded_weights.gathers.end_backward()
        return context.merge_call(across, args=(list(gradients),))

    # A user's optimizer may override `apply` and work on all gradients there: it gets sums over all replicas. Calls of
    # the trainer and of most loops come here, which is hardly ever overridden.
    @not_converted
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Reduces gradients, and applies the sums to the variables."""
        pairs = list(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        joint_gradients.check_separate(self, self._update_here(), gradients)
        apply = super().apply_gradients
        context = tf.distribute.get_replica_context()
        is_in_step = get_update_replica_id() is None and shares.current() is not None
        if is_in_step and overrides_apply(self) and applied_gradients.can_synchronize(context):
            with sums_of_terms(gradients, variables) as sums:
                return apply(sums)

        def update(summed: Sequence[Any], targets: Sequence[Any] | None) -> Any:
            return apply(list(zip(summed, targets or variables, strict=True)))

        return self._reduce_first(gradients, variables, update)

    @not_converted
    def apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """Reduces gradients, and updates the variables by the sums."""
        joint_gradients.check_separate(self, self._update_here(), grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        apply = super().apply

        def update(summed: Sequence[Any], targets: Sequence[Any] | None) -> Any:
            here = self._update_here()
            pairs = whole_pairs(self, summed, targets)
            return apply(*pairs) if here is None else apply_owned(here, apply, *pairs)

        return self._reduce_first(grads, variables, update)

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        """Makes a slot on the devices of its variable; for a split weight one for each shard."""
        update = self._update_here()
        if update is None:
            return super().add_variable_from_reference(reference_variable, name, initializer)
        if isinstance(reference_variable, SplitWeight):
            slot = reference_variable.like()
            for shard in reference_variable.shards:
                slot.add(DistributedOptimizer.add_variable_from_reference(self, shard, name, initializer))
            return slot
        create: Callable[..., Any] = super().add_variable_from_reference
        if isinstance(reference_variable, WeightSlice):
            # Not Keras' method for TensorFlow, which reads the devices of a distributed variable: a slice is not one.
            create = functools.partial(BaseOptimizer.add_variable_from_reference, self)
        made = update.make_slot(reference_variable, name, lambda: create(reference_variable, name, initializer))
        weight = weight_of(reference_variable)
        if weight is not None and not needs_whole(self):
            update.slots.note(weight, reference_variable, made)
        return made

    def _filter_empty_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        kept: tuple[list[Any], list[Any]] = super()._filter_empty_gradients(grads, vars)
        update = self._update_here()
        if update is not None and (self.clipnorm or self.global_clipnorm):
            # Keras does not clip gradients that overwrite their variable.
            update.clipped = [v for v in kept[1] if not self._overwrite_variable_with_gradient(v)]
        return kept

    @not_converted
    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        update, clip = self._update_here(), super()._clip_gradients
        return clip(grads) if update is None else clipped(update, clip, grads)

    def _use_weight_decay(self, variable: Any) -> bool:
        """Decides by the whole weight, with the keys and name of one device: programs exclude weights, not parts."""
        weight = variable
        if not isinstance(variable, WeightSlice):
            position = self._trainable_variables_indices.get(self._var_key(variable))
            weight = variable if position is None else self._trainable_variables[position]
        if is_plain(weight):
            return super()._use_weight_decay(variable)
        use = decay_rule(self, super()._use_weight_decay)
        whole = weight.variable if isinstance(weight, WeightSlice) else weight
        name = decay_name(self, whole, variable_name(weight))
        # Keras looks a variable up by its id and its name only.
        return all(use(types.SimpleNamespace(_unique_id=key, name=name)) for key in keys_of(weight))

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        if self._distributed_update is not None:
            check_runs(self, self._distributed_update.engine)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
        with self._with_averages(trainable_variables) as own:
            super()._update_model_variables_moving_average(own)

    def _overwrite_model_variables_with_average_value(self, trainable_variables: Sequence[Any]) -> None:
        with self._with_averages(trainable_variables) as own:
            super()._overwrite_model_variables_with_average_value(own)

    def _with_averages(self, variables: Sequence[Any]) -> contextlib.AbstractContextManager[Sequence[Any]]:
        update = self._update_here()
        return contextlib.nullcontext(variables) if update is None else owned_averages(update, variables)


class _Outermost(keras.Optimizer):
    """Methods that come before those of the optimizer's own class."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Updates variables by gradients, which the program's own method may change."""
        with joint_gradients.given(self._update_here(), grads if overrides_apply(self) else None):
            return super().apply(grads, trainable_variables)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Updates variables by gradients, which the program's own method may change."""
        pairs = list(grads_and_vars)
        is_own = overrides(self, BaseOptimizer, "apply_gradients")
        with joint_gradients.given(self._update_here(), [g for g, _ in pairs] if is_own else None):
            return super().apply_gradients(pairs)

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Builds the optimizer with the variables of its update; a class names them ``variables`` or ``var_list``."""
        update = self._update_here()
        if update is None:
            super().build(*args, **kwargs)
            return
        [variables] = [*args, *kwargs.values()]
        own = update.variables(variables)
        with update.engine.optimizer_state.creating(self), named_as_wholes(own):
            super().build(own)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets weights to their final values, at the end of training."""
        update, finalize = self._distributed_update, super().finalize_variable_values
        if update is None:
            finalize(var_list)
        else:
            update.finalize(var_list, finalize)

    def __reduce__(self) -> Any:
        """Returns what pickles hold: the class that the program chose, which can be imported, in place of this one."""
        return reduced(self, super().__reduce__())


class DistributedAdagrad(keras.optimizers.Adagrad, DistributedOptimizer):
    """Adagrad that updates only the rows of a row-sharded table that were looked up."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        update_rows(self, super().update_step, gradient, variable, learning_rate)


class _ReducesFirst(keras.Optimizer):
    """An optimizer that passes all of its gradients to others."""

    @not_converted
    def apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """Reduces gradients, and passes the sums on."""
        joint_gradients.check_separate(self, self._update_here(), grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        return self._reduce_first(grads, variables, super().apply)


class DistributedLossScale(_ReducesFirst, keras.optimizers.LossScaleOptimizer, DistributedOptimizer):
    """A loss scale that skips a step on all processes, or on none."""

    def _tf_apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        if get_update_replica_id() is None:
            return super()._tf_apply(grads, trainable_variables)
        # Keras refuses to run outside a replica, because it could not reduce there. The gradients are reduced.
        return self._common_apply(grads, trainable_variables=trainable_variables)

    @not_converted
    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Returns True if the gradients of all processes are finite."""
        update, check = self._update_here(), super().check_finite
        return check(grads) if update is None else are_finite(update.engine, check, grads)


#: By class of Keras, the class whose methods come before those of that class; the first that applies is taken.
_CLASSES: dict[type, type] = {
    keras.optimizers.LossScaleOptimizer: DistributedLossScale,
    keras.optimizers.Adagrad: DistributedAdagrad,
}
for _multi in MULTI_OPTIMIZERS:
    _CLASSES[_multi] = types.new_class("DistributedMultiOptimizer", (_ReducesFirst, _multi, DistributedOptimizer))
_CLASSES[keras.Optimizer] = DistributedOptimizer
