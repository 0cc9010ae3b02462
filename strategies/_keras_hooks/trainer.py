"""Keras' trainer under our strategies: ``compile``, ``fit``, ``evaluate``, ``predict``, ``*_on_batch``, and steps."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import logging
import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Concatenate

import keras
import tensorflow as tf

from strategies._keras_hooks import (
    agreement,
    compiled_steps,
    losses,
    shapes,
)
from strategies._keras_hooks.addresses import TensorFlowTrainer, Trainer
from strategies._keras_hooks.fit_exits import exits
from strategies._keras_hooks.outside import check_part, other_strategy_error
from strategies._keras_hooks.trainer_calls import Step, as_trainer_call
from strategies._keras_hooks.wrapping import Rest, Result, wrap
from strategies._tf_internals import NoneTensorSpec, PerReplicaSpec
from strategies.batches import shares
from strategies.batches.row_marks import mark_reduced
from strategies.engine import legacy_keras
from strategies.engine.engine import Engine, engine_of
from strategies.replica.deferred import in_shapes_only
from strategies.replica.whole_weights import check_frozen
from strategies.saving.unread_files import current_loading
from strategies.steps.explained import calling
from strategies.steps.metric_variables import MetricVariable

_logger = logging.getLogger(__name__)
# The engines whose unused mesh axes have been logged.
_warned_of_idle: weakref.WeakSet[Engine] = weakref.WeakSet()

# The model whose `fit` runs, or another method that :func:`enter` calls.
_entered: contextvars.ContextVar[keras.Model | None] = contextvars.ContextVar("keras_strategies_entered", default=None)


def install() -> None:
    """Wraps the methods that two programs call without a method of ``DistributedModel``.

    One uses a model of no strategy in a strategy's scope, and is refused. The other's class calls
    ``keras.Model.fit(self, ...)`` in place of ``super().fit(...)``.
    """
    # Optimizers and metrics given by name would be made for one device.
    wrap(Trainer, "compile", _compile, in_step=False)
    # The first call of Keras' `fit`, `evaluate`, `train_on_batch` and `test_on_batch`.
    wrap(Trainer, "_assert_compile_called", _assert_compile_called, in_step=False)
    # The only call in both Keras' `predict` and `predict_on_batch`.
    wrap(TensorFlowTrainer, "make_predict_function", _make_predict_function, in_step=False)


def enter(original: Callable[Rest, Result], model: keras.Model, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
    """Calls ``fit``, ``evaluate``, ``predict`` or a ``*_on_batch`` method of Keras after the checks of its strategy.

    Args:
        original: Keras' own method of the model.
        model: the model.
        *args: the arguments of `original`.
        **kwargs: the arguments of `original`.
    """
    engine, name = engine_of(model.distribute_strategy), original.__name__
    if engine is None:
        return original(*args, **kwargs)
    compiled_steps.choose_if_never_compiled(model, engine)
    token = _entered.set(model)
    try:
        with calling(engine.member, name), exits():
            _check(model, model.distribute_strategy)
            if engine.agreement is not None:
                bound = inspect.signature(original).bind(*args, **kwargs)
                bound.apply_defaults()
                agreement.compare_call(model, name, bound.arguments)
            if model.built:
                _warn_of_idle_axes(model, engine)
            result = original(*args, **kwargs)
            _warn_of_idle_axes(model, engine)
            return result
    finally:
        _entered.reset(token)


def _warn_of_idle_axes(model: keras.Model, engine: Engine) -> None:
    """Logs on rank 0, once for a strategy, that a mesh has devices on which nothing was placed."""
    axes = engine.parts.idle_axes
    if not axes or engine in _warned_of_idle or not engine.should_checkpoint:
        return
    _warned_of_idle.add(engine)
    fixes = {"tensor": "keras_ext.parallelize(model)", "pipe": "keras_ext.PipelineModel(model)"}
    _logger.warning(
        "The mesh has %s, but no layer of %r is split over it: %d of the %d devices of each replica compute nothing. "
        "In the strategy's scope, train what %s returns, or leave the axis out.",
        ", ".join(f"{axis!r}: {engine.parts.mesh.axis_size(axis)}" for axis in axes),
        model.name,
        engine.parts.mesh.size - engine.parts.mesh.size // math.prod(map(engine.parts.mesh.axis_size, axes)),
        engine.parts.mesh.size,
        " and ".join(fixes[axis] for axis in axes),
    )


def _assert_compile_called(original: Callable[..., None], model: keras.Model, method_name: str | None = None) -> None:
    _check_entered(model, method_name)
    original(model, method_name)


def _check_entered(model: keras.Model, method_name: str | None = None) -> None:
    """Does the checks of :func:`enter` where Keras' method was not called through it.

    Args:
        model: the model.
        method_name: the name of Keras' method, if it can be refused.

    Raises:
        ValueError: the model was made under no strategy; or this is one of several processes, which compare their calls
            and report errors to each other in :func:`enter`.
    """
    engine = engine_of(model.distribute_strategy)
    if engine is None or _entered.get() is model:
        return
    if model._distribute_strategy is not None and method_name is not None and engine.agreement is not None:
        raise ValueError(
            f"The processes of a job compare their calls of {method_name} and report errors to each other; a call of "
            f"keras.Model.{method_name}(self, ...) skips that. Call super().{method_name}(...) in place of "
            f"keras.Model.{method_name}(self, ...). Received: {model.name!r}, of class {type(model).__name__}."
        )
    compiled_steps.choose_if_never_compiled(model, engine)
    _check(model, model.distribute_strategy)


def make_function(
    original: Callable[[Callable[[Any], Any]], Step], model: keras.Model, step_function: Callable[[Any], Any]
) -> Step:
    """Returns the function of an iterator that Keras makes of a step, compiled and run as our strategies need it."""
    step = compiled_steps.whole(model, step_function)

    def make() -> Step:
        with compiled_steps.not_by_keras(model):
            return original(step)

    return as_trainer_call(model, make(), make, "mean")


def _make_predict_function(
    original: Callable[Concatenate[keras.Model, Rest], Result],
    model: keras.Model,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> Result:
    _check_entered(model)
    before = model.predict_function

    def original_function(*args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if compiled_steps.is_whole(model) else compiled_steps.not_by_keras(model):
            return original(model, *args, **kwargs)

    def make_again() -> Any:
        current = model.predict_function
        original_function(force=True)
        made, model.predict_function = model.predict_function, current
        return made

    result = original_function(*args, **kwargs)
    if model.predict_function is not before:
        model.predict_function = as_trainer_call(model, model.predict_function, make_again, "concat")
    return result


def _compile(
    original: Callable[..., Result],
    model: keras.Model,
    *args: Any,
    **kwargs: Any,
) -> Result:
    strategy = model.distribute_strategy
    engine = engine_of(strategy)
    if engine is None or current_loading() is not None:
        # A model whose weights are left in their files has variables of one device: only its copy is trained.
        return original(model, *args, **kwargs)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    asked = bound.arguments
    legacy_keras.refuse_values(keras.tree.flatten(asked))
    check_part(strategy, "optimizer", asked.get("optimizer"))
    for argument in ("metrics", "weighted_metrics"):
        for metric in tf.nest.flatten(asked.get(argument)):
            check_part(strategy, "metric", metric)
    requested = asked.get("jit_compile", "auto")
    if requested == "auto":
        asked["jit_compile"] = not asked.get("run_eagerly") and compiled_steps.choose(model, engine)
    # Outside the scope, Keras would make the optimizer and the metrics for one device.
    with strategy.scope():
        result = original(*bound.args, **bound.kwargs)
    agreement.forget(model)
    compiled_steps.note_request(model, requested)
    _check(model, strategy)
    return result


def _check(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Refuses parts made outside the strategy's scope, and weights with only some shards frozen, before any step."""
    if model._distribute_strategy is not strategy:
        raise ValueError(other_strategy_error(model, strategy))
    losses.wrap_compute_loss(model)
    check_part(strategy, "model", model)
    check_frozen(model.variables)
    # Steps that a model overrides may use further optimizers, as adversarial networks do.
    for attribute in vars(model).values():
        if isinstance(attribute, keras.Optimizer):
            check_part(strategy, "optimizer", attribute)
    for metric in getattr(model, "metrics", []):
        check_part(strategy, "metric", metric)
        _wrap_result(metric)


def _wrap_result(metric: keras.Metric) -> None:
    """Wraps ``result`` of the metric's class, for steps that read metrics themselves."""
    owner = next(cls for cls in type(metric).__mro__ if "result" in vars(cls))
    wrap(owner, "result", _result)


def _result(original: Callable[..., Result], metric: keras.Metric, *args: Any, **kwargs: Any) -> Result:
    return read_over_replicas([metric], lambda: original(metric, *args, **kwargs))


def read_over_replicas(metrics: Sequence[keras.Metric], result: Callable[[], Result]) -> Result:
    """Returns the result of metrics over all replicas; across processes, they are summed in one message.

    Args:
        metrics: the metrics that `result` reads.
        result: reads the metrics of this replica.
    """
    values = [v.value for metric in metrics for v in metric.variables]
    state = [value for value in values if isinstance(value, MetricVariable)]
    engine = engine_of(state[0].distribute_strategy) if state else None
    share = shares.current()

    def read() -> Result:
        if engine is None or (in_shapes_only() and tf.distribute.get_replica_context() is not None):
            return result()
        with engine.metric_totals(state):
            # A metric may return its variable, whose value is a total in this block only.
            return keras.tree.map_structure(_value_of, result())

    if share is None:
        return read()
    alone = share.num_replicas == 1 and not (engine is not None and engine.parts.crosses("pipe"))
    if alone or not share.in_trainer:
        return result()
    # Read in one replica, the metric would cover only its rows.
    return mark_reduced(tf.distribute.get_replica_context().merge_call(lambda _: read()))


def _value_of(result: Any) -> Any:
    return tf.convert_to_tensor(result) if isinstance(result, keras.Variable) else result


def build_ahead(
    original: Callable[..., None],
    model: keras.Model,
    iterator: Any | None,
    data_batch: Any,
) -> None:
    """Builds a model before its first step, if it can be called on symbolic tensors in place of a batch.

    Without a strategy Keras builds nothing ahead: the first step builds what it calls. The same happens here where the
    model has no ``call`` (adversarial networks) or one for other inputs than the first of the batch (siamese networks),
    and where ``call`` looks at values (``run_eagerly=True``), or assigns and reads a variable in a ``tf.cond``.
    """
    if engine_of(model.distribute_strategy) is None:
        original(iterator=iterator, data_batch=data_batch)
        return
    if type(model).call is keras.Model.call:
        return
    if iterator is not None:
        # Keras would draw a batch to learn its shape and dtype: a generator that can be read only once would lose it.
        data_batch = _replica_specs(iterator._distributed_dataset.element_spec)
    shapes.check_ahead(model, data_batch)
    # The step may never make this call, so its errors and warnings are not shown to the user: the step has its own.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            original(data_batch=data_batch)
    except Exception as error:
        _logger.info("The first step builds the model %r: it cannot be built ahead. %s", model.name, error)
    agreement.compare_built(model)


def _replica_specs(element_spec: Any) -> Any:
    def one(spec: Any) -> Any:
        spec = spec._value_specs[0] if isinstance(spec, PerReplicaSpec) else spec
        return None if isinstance(spec, (tf.OptionalSpec, NoneTensorSpec)) else spec

    return keras.tree.map_structure(one, element_spec)
