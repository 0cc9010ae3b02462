"""Measures a training step of a pipeline: the time of each pass of each stage."""

from __future__ import annotations

import json
import time
from typing import Any

import keras
import numpy as np

from keras_ext.pipeline.timeline import Timeline
from strategies import layer_api
from strategies.schedules import Action, Kind

#: The number of steps that are run. Among those with the most micro-batches, without the first of them, the one of
#: median length is returned.
NUM_STEPS = 6

#: The times at which actions began (False) and ended (True).
_Times = dict[tuple[Action, bool], float]


class _Recorder(keras.callbacks.Callback):
    """A callback that records the start and end of the actions of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[_Times] = []
        self._now: _Times = {}

    def note(self, action: Action, has_ended: bool) -> None:
        """Records the time; any thread may call this."""
        self._now[action, has_ended] = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append(self._now)
        self._now = {}


def measured_timeline(model: Any, dataset: Any) -> Timeline:
    """Runs some training steps of a `PipelineModel`, restores its state, and returns the timeline of one step.

    See `PipelineModel.pipeline_timeline`.
    """
    if not model.compiled:
        raise ValueError("A timeline is that of training steps: compile the model first. Received: no optimizer.")
    state = [*layer_api.state_of(model), *model.metrics_variables]
    variables = [variable for variable in state if not layer_api.is_remote(variable)]
    before = [np.array(variable) for variable in variables]
    steps_per_execution, history = model.steps_per_execution, getattr(model, "history", None)
    # If this is called during `fit`, as by a callback, that `fit` continues with its own traced step.
    train_function = model.train_function
    recorder = _Recorder()
    model._on_action, model.train_function, model.steps_per_execution = recorder.note, None, 1
    try:
        model.fit(dataset, steps_per_epoch=_num_steps(dataset), shuffle=False, verbose=0, callbacks=[recorder])
    finally:
        model._on_action, model.train_function, model.steps_per_execution = None, train_function, steps_per_execution
        model.history = history
        known = {id(variable): value for variable, value in zip(variables, before, strict=True)}
        for variable in (*model.variables, *model.optimizer.variables, *model.metrics_variables):
            # Variables that the first step has created are metrics, which begin with zeros.
            if not layer_api.is_remote(variable):
                variable.assign(known.get(id(variable), np.zeros(variable.shape, variable.dtype)))
    if not recorder.steps:
        raise ValueError(f"There is no step to measure. Received a data set without a batch: {dataset!r}.")
    recorded, error = _merged(model, recorder.steps)
    most = max(map(len, recorded))
    steps = [step for step in recorded if len(step) == most]
    steps = sorted(steps[1:] or steps, key=lambda step: max(step.values()) - min(step.values()))
    step = steps[len(steps) // 2]
    start = min(step.values())
    times = {action: (step[action, False] - start, step[action, True] - start) for action, is_end in step if is_end}
    schedule = model.schedule(1 + max(action.microbatch for action in times))
    return Timeline(schedule, model.device_names(schedule), times, measured=True, clock_error=error)


def _merged(model: Any, steps: list[_Times]) -> tuple[list[_Times], float]:
    """Returns the steps with the times of all processes of this replica, by rank 0's clock, and the largest error."""
    parts = model._parts
    if not parts.crosses("pipe"):
        return steps, 0.0
    offset, error = layer_api.clock_offset(parts)
    own_steps = [
        [
            [action.stage, action.kind.value, action.microbatch, is_end, at + offset]
            for (action, is_end), at in own.items()
        ]
        for own in steps
    ]
    texts = layer_api.from_all_ranks(model, json.dumps([own_steps, error]))
    merged: list[_Times] = [{} for _ in steps]
    for rank, text in enumerate(texts):
        if rank in parts.owners:
            theirs, its_error = json.loads(text)
            error = max(error, its_error)
            for step, own in zip(merged, theirs, strict=True):
                step |= {(Action(k, Kind(kind), i), is_end): at for k, kind, i, is_end, at in own}
    return merged, error


def _num_steps(dataset: Any) -> int:
    """Returns `NUM_STEPS`, or the size of the data set if it is smaller: Keras warns if data ends early."""
    count = getattr(dataset, "num_batches", None)
    try:
        count = len(dataset) if count is None else count
    except TypeError:
        return NUM_STEPS
    return min(NUM_STEPS, count)
