"""The trainer: what ``compile``, ``fit``, ``evaluate``, ``predict`` and the ``*_on_batch`` methods need."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_tf_trainer
from keras.src.trainers import trainer as keras_trainer

from strategies import shares
from strategies._keras_hooks import losses
from strategies._keras_hooks.wrapping import engine_of, wrap
from strategies._tf_internals import DistributedVariable, PerReplicaSpec

_ENTRIES = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def install() -> None:
    """Wraps the trainer's entries and what they call."""
    wrap(keras_trainer.Trainer, "compile", _compile, in_step=False)
    wrap(keras_trainer.Trainer, "get_metrics_result", _read_across_replicas)
    wrap(keras_tf_trainer.TensorFlowTrainer, "_maybe_symbolic_build", _maybe_symbolic_build, in_step=False)
    wrap(keras_tf_trainer.TensorFlowTrainer, "_make_function", _make_function, in_step=False)
    wrap(keras_tf_trainer.TensorFlowTrainer, "make_predict_function", _make_predict_function, in_step=False)
    for name in _ENTRIES:
        wrap(keras_tf_trainer.TensorFlowTrainer, name, _entry, in_step=False)


def _entry(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = model.distribute_strategy
    if engine_of(strategy) is not None:
        _check(model, strategy)
    return original(model, *args, **kwargs)


def _make_function(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    return _driven(model, original(model, *args, **kwargs), "mean")


def _make_predict_function(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    before = model.predict_function
    result = original(model, *args, **kwargs)
    if model.predict_function is not before:
        model.predict_function = _driven(model, model.predict_function, "concat")
    return result


def _driven(model: Any, function: Callable[..., Any], combination: shares.Combination) -> Callable[..., Any]:
    """Returns ``function``, marked as the trainer's for as long as it runs: callbacks run outside of it."""
    engine = engine_of(model.distribute_strategy)
    if engine is None:
        return function

    @functools.wraps(function)
    def driven(*args: Any, **kwargs: Any) -> Any:
        with engine.driven_by_trainer(combination):
            return function(*args, **kwargs)

    return driven


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = model.distribute_strategy
    if engine_of(strategy) is None:
        return original(model, *args, **kwargs)
    asked = inspect.signature(original).bind(model, *args, **kwargs).arguments
    if asked.get("jit_compile") is True:
        raise ValueError(
            f"jit_compile=True cannot work under {type(strategy).__name__}: XLA compiles for one device and has no "
            "operation that reduces gradients between devices here. Pass jit_compile=False (or leave it at 'auto'). "
            "Received: jit_compile=True"
        )
    _check_part(strategy, "optimizer", asked.get("optimizer"))
    for argument in ("metrics", "weighted_metrics"):
        for metric in tf.nest.flatten(asked.get(argument)):
            _check_part(strategy, "metric", metric)
    # Outside the scope, Keras would make the optimizer and the metrics for one device.
    with strategy.scope():
        result = original(model, *args, **kwargs)
    _check(model, strategy)
    return result


def _check(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuses, before any step runs, what was made outside the strategy's scope."""
    if getattr(model, "jit_compile", False) is True:
        raise ValueError(
            f"model.jit_compile is True, which cannot work under {type(strategy).__name__}. "
            "Compile the model with jit_compile=False."
        )
    if model._distribute_strategy is not strategy:
        raise ValueError(_outside("model", model.name, strategy))
    losses.watch(type(model))
    _check_part(strategy, "model", model)
    # Steps of a model's own may use optimizers of its own, as adversarial networks do.
    for attribute in vars(model).values():
        if isinstance(attribute, keras.Optimizer):
            _check_part(strategy, "optimizer", attribute)
    for metric in getattr(model, "metrics", []):
        _check_part(strategy, "metric", metric)
        _watch_result(metric)


def _check_part(strategy: tf.distribute.Strategy, kind: str, part: Any) -> None:
    if not isinstance(part, (keras.Model, keras.Optimizer, keras.Metric)):
        return
    for variable in part.variables:
        value = variable.value if isinstance(variable, keras.Variable) else variable
        if not (isinstance(value, DistributedVariable) and value.distribute_strategy is strategy):
            raise ValueError(_outside(kind, part.name, strategy, getattr(variable, "path", variable.name)))


def _outside(kind: str, name: str, strategy: tf.distribute.Strategy, variable: str | None = None) -> str:
    detail = "" if variable is None else f" Received a variable of one device only: {variable!r}."
    return (
        f"The {kind} {name!r} was not made under this {type(strategy).__name__}, so its variables would not be kept "
        f"alike on its {strategy.num_replicas_in_sync} replicas. Make it inside `with strategy.scope():`, with the "
        f"same strategy object as the rest of the model.{detail}"
    )


def _watch_result(metric: keras.Metric) -> None:
    """Wraps the ``result`` of the metric's class, for steps that read metrics themselves."""
    owner = next(cls for cls in type(metric).__mro__ if "result" in vars(cls))
    wrap(owner, "result", _read_across_replicas)


def _read_across_replicas(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
    share = shares.current()
    if share is None or share.num_replicas == 1 or not share.in_trainer:
        return original(owner, *args, **kwargs)
    # Read by one replica, the metric would be that of its rows.
    return tf.distribute.get_replica_context().merge_call(lambda _: original(owner, *args, **kwargs))


def _maybe_symbolic_build(
    original: Callable[..., Any], model: Any, iterator: Any = None, data_batch: Any = None
) -> Any:
    if engine_of(model.distribute_strategy) is None or iterator is None:
        return original(model, iterator=iterator, data_batch=data_batch)
    # Keras draws a batch to learn its shape and dtype. A generator that can be read only once has lost it then.
    specs = _replica_specs(iterator._distributed_dataset.element_spec)
    return original(model, data_batch=specs)


def _replica_specs(element_spec: Any) -> Any:
    def one(spec: Any) -> Any:
        spec = spec._value_specs[0] if isinstance(spec, PerReplicaSpec) else spec
        return None if isinstance(spec, (tf.OptionalSpec, tf.NoneTensorSpec)) else spec

    return keras.tree.map_structure(one, element_spec)
