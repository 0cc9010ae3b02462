"""Keras' own training step: across processes, the sums of metrics are sent in the message of the gradients.

Keras applies gradients, then updates the metrics and reads them. In this order, the sums of metrics would be a second
message, because their terms do not exist yet when the gradients are reduced. So the update is deferred until metrics
are read, and their sums are sent in its last bucket. Nothing in between may use what is updated: the update is deferred
only in Keras' own ``train_step`` with Keras' own metrics, which see predictions and targets only. Steps and metrics of
a user's own run in the order in which they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks import compiled_steps, distributed_optimizers, gradients
from strategies._keras_hooks.addresses import BaseOptimizer, Trainer, reduction_metrics
from strategies._keras_hooks.wrapping import overrides
from strategies.batches import shares
from strategies.engine.engine import engine_of


def run(original: Callable[[Any], Any], model: keras.Model, data: Any) -> Any:
    """Runs Keras' training step of a replica.

    Args:
        original: Keras' own ``train_step`` of the model.
        model: the model.
        data: the replica's rows.
    """
    with gradients.in_keras_step(model):
        return _step(original, model, data)


def _step(original: Callable[[Any], Any], model: keras.Model, data: Any) -> Any:
    engine = engine_of(tf.distribute.get_strategy())
    share = shares.current()
    if engine is None or engine.layout.num_processes == 1 or share is None or not share.in_trainer:
        return compiled_steps.train_step(original, model, data)
    if share.in_inner_function or not _metrics_see_no_weights(model):
        return compiled_steps.train_step(original, model, data)
    with distributed_optimizers.may_defer_update(model.optimizer):
        logs = compiled_steps.train_step(original, model, data)
    # Without metrics, no read has finished the deferred update.
    tf.distribute.get_replica_context().merge_call(lambda _: engine.finish_update())
    return logs


def _metrics_see_no_weights(model: keras.Model) -> bool:
    """Returns True if ``apply_gradients`` and everything that ``train_step`` calls after it are Keras' own."""
    used = [(model, Trainer, "compute_metrics"), (model, Trainer, "get_metrics_result")]
    used += [(model.optimizer, BaseOptimizer, "apply_gradients")]
    if any(overrides(owner, base, name) for owner, base, name in used):
        return False
    compiled = model._compile_metrics
    given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
    return _is_keras_own(given)


def _is_keras_own(metric: Any) -> bool:
    if metric is None or isinstance(metric, str):
        return True
    if isinstance(metric, Mapping):
        # A dict of metrics by output. A dict with "class_name" is a configuration, perhaps of a user's class.
        return "class_name" not in metric and _is_keras_own(list(metric.values()))
    if isinstance(metric, (list, tuple)):
        return all(_is_keras_own(each) for each in metric)
    if isinstance(metric, reduction_metrics.MeanMetricWrapper) and not _is_of_keras(metric._fn):
        return False
    return _is_of_keras(type(metric) if isinstance(metric, keras.metrics.Metric) else metric)


def _is_of_keras(part: Any) -> bool:
    return str(getattr(part, "__module__", "")).startswith("keras.src.")
