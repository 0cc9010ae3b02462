"""Runs the functions that Keras makes of steps, of an iterator, as calls of the trainer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks import split_batches
from strategies._keras_hooks.counting import Counters
from strategies._keras_hooks.keras_versions import DRAWS_IN_STEP
from strategies._tf_internals import Function
from strategies.batches import shares
from strategies.batches.agreed_dataset import AgreedIterator
from strategies.batches.drawn_dataset import DrawnIterator
from strategies.batches.prefetch import ReadAheadIterator
from strategies.batches.shares import NotAlikeError
from strategies.engine.engine import engine_of
from strategies.steps.context import TrainerCall, called_by_trainer, trainer_call
from strategies.steps.graph_import import without_collections
from strategies.steps.graph_optimization import StepOptimization

_logger = logging.getLogger(__name__)

#: Runs one step, or a few, on elements of an iterator. Returns logs, or outputs.
Step = Callable[[Any], Any]


def as_trainer_call(
    model: keras.Model, function: Step, make_again: Callable[[], Step], combination: shares.Combination
) -> Step:
    """Returns ``function``, run as a call of the trainer (`TrainerCall`); callbacks run outside of it.

    Where batches come from an `AgreedIterator`, `DrawnIterator` or `ReadAheadIterator`, they are drawn before each
    step. The first local replica is traced for all, until it turns out that their programs differ: then each replica is
    traced.

    Args:
        model: the model.
        function: the function that Keras made of one of the model's steps.
        make_again: makes it again, for another trace: a ``tf.function`` may create variables in its first trace only.
        combination: how the trainer combines the outputs of replicas.
    """
    engine = engine_of(model.distribute_strategy)
    if engine is None:
        return function
    steps: list[tuple[tf.TypeSpec, Step]] = []
    counters = Counters(model)
    traces_once = engine.layout.num_local > 1
    optimization = StepOptimization()
    has_devices = traces_once or engine.parts.mesh.size > 1

    def in_trainer(step: Callable[[], Any], draws_batches: bool) -> Any:
        nonlocal function, traces_once
        with optimization.running() if has_devices else contextlib.nullcontext():
            if traces_once:
                try:
                    call = TrainerCall(combination, draws_batches, traces_once=True, optimization=optimization)
                    with called_by_trainer(call):
                        return step()
                except NotAlikeError as reason:
                    _logger.debug("%r: each replica is traced, as %s.", model.name, reason)
                    function, traces_once = make_again(), False
                    steps.clear()
                    optimization.note_replicas(are_optimized=False)
            with called_by_trainer(TrainerCall(combination, draws_batches)):
                return step()

    def call_step(element: Any, element_spec: Any) -> Any:
        step = next((step for spec, step in steps if spec == element_spec), None)
        if step is not None:
            return step(element)
        step = _step_of(function, element_spec, model.run_eagerly)
        steps.append((element_spec, step))
        with without_collections():
            return step(element)

    def run(data: Any) -> Any:
        one_by_one = isinstance(data, (AgreedIterator, DrawnIterator, ReadAheadIterator))
        draws_batches = model.steps_per_execution > 1 and not one_by_one
        num_replicas = model.distribute_strategy.num_replicas_in_sync
        with split_batches.explained(num_replicas):
            if not one_by_one:
                # A generator of *_on_batch has one batch, which a second trace needs, too.
                data = list(data) if inspect.isgenerator(data) else data
                return in_trainer(lambda: function(data), draws_batches)
            try:
                first = next(data)
            except StopIteration:
                if _counts_the_end(model):
                    counters.count()
                raise
            measured: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if not steps:
                measured = counters.measured()
            # As in Keras: runs a few steps and returns the outputs of the last.
            with measured:
                outputs = in_trainer(lambda: call_step(first, data.element_spec), draws_batches)
            for _ in range(1, model.steps_per_execution):
                try:
                    element = next(data)
                except StopIteration:
                    break
                outputs = in_trainer(functools.partial(call_step, element, data.element_spec), draws_batches)
            return outputs

    @functools.wraps(function)
    def call(data: Any) -> Any:
        outputs = run(data)
        # Messages say after which step a process is.
        position = engine.member.position
        engine.member.position = dataclasses.replace(position, step=position.step + model.steps_per_execution)
        return outputs

    return call


def traced_by_caller(step: Step) -> Step:
    """Returns a ``tf.function`` of one step that belongs to the graph that calls it, if that graph holds one step.

    It need not be traced as a function of its own, called with all variables, and copied into the caller by TensorFlow.
    """
    if not isinstance(step, Function):
        return step

    @functools.wraps(step.python_function)
    def run(data: Any) -> Any:
        in_caller = tf.inside_function() and not trainer_call().draws_batches
        return step.python_function(data) if in_caller else step(data)

    return run


def _counts_the_end(model: keras.Model) -> bool:
    """Returns True if Keras, on one device, begins a step before it finds that no batch is left: see `counting`."""
    # A step that XLA compiles begins when all of its inputs are there.
    return DRAWS_IN_STEP and model.steps_per_execution == 1 and not model.run_eagerly and not model.jit_compile


def _step_of(function: Step, element_spec: tf.TypeSpec, run_eagerly: bool) -> Step:
    """Returns Keras' function of an iterator as a function of an element.

    Called with tensors, it would first be traced for the static shape of the first batch. Keras weights losses
    differently where the number of rows is static, so that they would differ from those of a dataset.
    """

    def one(element: Any) -> Any:
        return function([element])

    return one if run_eagerly else tf.function(one, input_signature=[element_spec], autograph=False)
