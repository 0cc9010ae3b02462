"""``jit_compile``: XLA compiles the forward pass, the loss and the gradients of each replica.

Keras passes the whole step to XLA, which fails under every strategy with more than one device: XLA compiles for one
device, and the step's reductions run between devices. Here Keras' own steps pass XLA only the computation of one
replica (`steps.compiled_replica`). Reductions, clipping, optimizer and metrics stay outside, as they are without XLA.
With a single replica on a single device, the whole step is compiled, as Keras does. As there, each number of rows is
compiled once.

Steps that a model overrides, and steps that XLA cannot compile, run as without `jit_compile`; the log says so once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import TensorFlowTrainer, Trainer, model_supports_jit
from strategies._keras_hooks.gradients import for_optimizer
from strategies._keras_hooks.wrapping import overrides
from strategies.batches import shares
from strategies.engine.engine import Engine, engine_of
from strategies.steps.compiled_replica import NotCompilableError, compute

_logger = logging.getLogger(__name__)

#: Tensor metadata that metrics read from a model's outputs.
_METADATA = ("_keras_mask", "_keras_logits")

_STEPS = ("train_step", "test_step", "predict_step")

# `_chosen`: models whose `jit_compile` was "auto". `_logged`: the reasons that were logged for a model.
_chosen: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_logged: weakref.WeakKeyDictionary[keras.Model, set[str]] = weakref.WeakKeyDictionary()


def note_request(model: keras.Model, jit_compile: bool | str) -> None:
    """Records the ``jit_compile`` given to ``compile``: unless it was "auto", running uncompiled causes a warning."""
    _logged.pop(model, None)
    engine = engine_of(model.distribute_strategy)
    unsupported = engine.reason_against_xla if engine is not None and jit_compile else None
    if jit_compile == "auto":
        _chosen.add(model)
        if unsupported is not None:
            _log_reason(model, unsupported)
    else:
        _chosen.discard(model)
        if unsupported is not None:
            _logger.warning("jit_compile: model %r may end the process, as %s.", model.name, unsupported)


def choose(model: keras.Model, engine: Engine) -> bool:
    """Returns the choice for ``jit_compile="auto"``: on GPUs, unless a layer or a GPU does not support XLA."""
    return engine.computes_on_gpus and model_supports_jit(model) and engine.reason_against_xla is None


def choose_if_never_compiled(model: keras.Model, engine: Engine) -> None:
    """Sets ``jit_compile`` of a model without ``compile``, which predicts: Keras would choose XLA on every device."""
    if model._jit_compile is None:
        note_request(model, "auto")
        model.jit_compile = choose(model, engine)


@contextlib.contextmanager
def not_by_keras(model: keras.Model) -> Iterator[None]:
    """Context manager: functions that Keras makes of steps under our strategies are not compiled by Keras."""
    engine = engine_of(model.distribute_strategy)
    if engine is None or not model.jit_compile:
        yield
        return
    reason = None if is_whole(model) else _known_reason(model, engine)
    if reason is not None:
        _log_reason(model, reason)
    model._jit_compile = False
    try:
        yield
    finally:
        model._jit_compile = True


def is_whole(model: keras.Model) -> bool:
    """Returns True if steps are compiled whole: there is one replica, on one device."""
    engine = engine_of(model.distribute_strategy)
    if engine is None or engine.central is not None:
        return False
    return engine.layout.num_replicas == 1 and engine.parts.mesh.size == 1


def whole(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the step, compiled with its updates and metrics where steps are compiled whole.

    Keras would compile the caller of `Strategy.run`, which contains the clocks of `steps.waiting`: XLA has no such
    ops. Call outside of :func:`not_by_keras`.
    """
    if not (is_whole(model) and model.jit_compile) or model.run_eagerly:
        return step
    compiled = tf.function(step, reduce_retracing=True, autograph=False, jit_compile=True)

    # `Strategy.run` would call a tf.function outside of the replica, and so compile it for the first device.
    @functools.wraps(step)
    def on_device_of_replica(data: Any) -> Any:
        return compiled(data)

    return on_device_of_replica


def train_step(original: Callable[[Any], Any], model: keras.Model, data: Any) -> Any:
    """Runs Keras' training step with each replica's own computation compiled; runs ``original`` if it cannot."""
    if not _is_compiled(model) or not model.trainable_weights:
        return original(data)

    def replica(x: Any, y: Any, sample_weight: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = _called(model, x, training=True)
            loss = model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=True)
            scaled = loss if model.optimizer is None else model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_weights)
        return _for_metrics(model, predicted), loss, gradients

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    try:
        outputs, loss, gradients = _computed(model, replica, (x, y, sample_weight))
    except NotCompilableError as reason:
        _log_reason(model, reason)
        return original(data)
    _track(model, x, loss)
    weights = model.trainable_weights
    model.optimizer.apply_gradients(zip(for_optimizer(model.optimizer, gradients, weights), weights, strict=True))
    return model.compute_metrics(x, y, _with_metadata(outputs), sample_weight=sample_weight)


def test_step(original: Callable[[Any], Any], model: keras.Model, data: Any) -> Any:
    """Runs Keras' test step as :func:`train_step` runs the training step."""
    if not _is_compiled(model):
        return original(data)

    def replica(x: Any, y: Any, sample_weight: Any) -> Any:
        predicted = _called(model, x, training=False)
        loss = model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=False)
        return _for_metrics(model, predicted), loss

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    try:
        outputs, loss = _computed(model, replica, (x, y, sample_weight))
    except NotCompilableError as reason:
        _log_reason(model, reason)
        return original(data)
    _track(model, x, loss)
    return model.compute_metrics(x, y, _with_metadata(outputs), sample_weight=sample_weight)


def predict_step(original: Callable[[Any], Any], model: keras.Model, data: Any) -> Any:
    """Runs Keras' predict step as :func:`train_step` runs the training step."""
    if not _is_compiled(model):
        return original(data)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    try:
        [predicted] = _computed(model, lambda x: [_called(model, x, training=False)], (x,))
        return predicted
    except NotCompilableError as reason:
        _log_reason(model, reason)
        return original(data)


def _is_compiled(model: keras.Model) -> bool:
    """Returns True if XLA is to compile the replica's part of this step, and no reason against it is known."""
    share, engine = shares.current(), engine_of(model.distribute_strategy)
    if share is None or engine is None or not share.in_trainer or not model.jit_compile or tf.executing_eagerly():
        return False
    if is_whole(model) or _known_reason(model, engine) is not None:
        return False
    if not model.built:
        _log_reason(model, "it is not built before its first step")
    return bool(model.built)


def _known_reason(model: keras.Model, engine: Engine) -> str | None:
    if engine.central is not None:
        return "its variables are on a device of their own"
    if engine.parts.mesh.size > 1:
        return "a replica of it is spread over several devices"
    if any(overrides(model, TensorFlowTrainer, name) for name in _STEPS):
        return f"{type(model).__name__} has a step of its own"
    if overrides(model, Trainer, "compute_metrics"):
        return f"{type(model).__name__} has a compute_metrics of its own, which may use what its layers keep"
    return None


def _log_reason(model: keras.Model, reason: object) -> None:
    """Logs on rank 0 that the model runs uncompiled, once per model and reason."""
    engine, text = engine_of(model.distribute_strategy), str(reason)
    logged = _logged.setdefault(model, set())
    if engine is None or not engine.should_checkpoint or text in logged:
        return
    logged.add(text)
    level = logging.INFO if model in _chosen else logging.WARNING
    _logger.log(level, "jit_compile: model %r runs uncompiled, as %s.", model.name, text)


def _computed(model: keras.Model, function: Callable[..., Any], arguments: Any) -> Any:
    engine = engine_of(model.distribute_strategy)
    return compute(function, arguments, on_gpu=engine is not None and engine.computes_on_gpus)


def _called(model: keras.Model, x: Any, *, training: bool) -> Any:
    return model(x, training=training) if model._call_has_training_arg else model(x)


def _track(model: keras.Model, x: Any, loss: tf.Tensor) -> None:
    first = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    model._loss_tracker.update_state(loss, sample_weight=tf.shape(first)[0])


def _for_metrics(model: keras.Model, predicted: Any) -> Any:
    """Returns the outputs and their metadata for metrics; None without metrics, so that XLA need not write outputs."""
    if model._compile_metrics is None:
        return None
    metadata = [[getattr(leaf, name, None) for name in _METADATA] for leaf in keras.tree.flatten(predicted)]
    return predicted, metadata


def _with_metadata(outputs: Any) -> Any:
    if outputs is None:
        return None
    predicted, metadata = outputs
    for leaf, values in zip(keras.tree.flatten(predicted), metadata, strict=True):
        for name, value in zip(_METADATA, values, strict=True):
            if value is not None:
                setattr(leaf, name, value)
    return predicted
