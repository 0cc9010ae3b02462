"""Records a few steps when somebody who watches the job asks for a trace (``strategies.status --trace``).

Every `fit` of a job that is watched has the callback. The ranks do not wait for each other: the server names a step
that no rank has reached, and each rank that finds the request in time begins with it, or with the first execution after
it: an execution of several steps that is running cannot be recorded any more.
"""

from __future__ import annotations

import logging
from typing import Any

import keras

from strategies import monitoring
from strategies._keras_hooks.fit_exits import at_exit_of_fit
from strategies.tracing.recording import StepRecorder, recorder_of

_logger = logging.getLogger(__name__)


class RequestedTraces(keras.callbacks.Callback):
    """Answers requests for traces with the record of this rank.

    Nothing that fails here reaches the training.

    Args:
        reporter: delivers the records.
    """

    def __init__(self, reporter: monitoring.Reporter) -> None:
        super().__init__()
        self._reporter = reporter
        # Set by the reporter's thread.
        self._asked: monitoring.TraceRequest | None = None
        self._request: monitoring.TraceRequest | None = None
        self._recorder: StepRecorder | None = None
        self._epoch = self._first_batch = self._end = 0
        # The finished steps when the running execution began, and when the one before it did.
        self._total = self._before = -1

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Takes requests from now on."""
        self._total = -1
        self._reporter.on_trace_request = self._note
        at_exit_of_fit(self._leave)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the epoch, for the record."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins to record at the step of a request, and notes that a step begins."""
        self._before, self._total = self._total, self._reporter.progress.total_steps
        self._first_batch = batch
        if self._asked is not None:
            self._begin()
        if self._recorder is not None:
            self._recorder.step_began(self._total, self._epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes that a step has ended; delivers the record after the last one."""
        if self._recorder is None:
            return
        # Keras counts the last execution of an epoch as a whole one.
        last = min(batch + 1, (self.params or {}).get("steps") or batch + 1)
        done = self._total + last - self._first_batch
        self._recorder.step_ended(done - 1)
        if done >= self._end:
            self._deliver()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Delivers what there is; requests of steps that will not run are refused."""
        if self._recorder is not None:
            self._deliver()
        self._leave()

    def _leave(self) -> None:
        """Takes no more requests, and refuses those that are not answered; `fit` may have raised an error."""
        self._reporter.on_trace_request = None
        recorder, request = self._recorder, self._request
        self._recorder = self._request = None
        if recorder is not None and request is not None:
            recorder.drop()
            self._reporter.deliver_error(request.id, "the training failed during the steps of the trace")
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self._reporter.deliver_error(asked.id, "the training ended before the steps of the trace")

    def _note(self, request: monitoring.TraceRequest) -> None:
        if self._recorder is not None or self._asked is not None:
            self._reporter.deliver_error(request.id, "this rank records another trace")
        else:
            self._asked = request

    def _begin(self) -> None:
        request = self._asked
        if request is None or self._total < request.start_step:
            return
        self._asked = None
        if self._before >= request.start_step:
            # Other ranks may have begun with the execution before this one.
            self._reporter.deliver_error(request.id, f"this rank was already at step {self._total}")
            return
        try:
            recorder = recorder_of(self.model)
            recorder.begin()
        except Exception as error:
            self._refuse(request, error)
            return
        self._request, self._recorder, self._end = request, recorder, self._total + request.num_steps

    def _deliver(self) -> None:
        recorder, request = self._recorder, self._request
        self._recorder = self._request = None
        if recorder is None or request is None:
            return
        try:
            self._reporter.deliver(request.id, recorder.end().to_text())
        except Exception as error:
            self._refuse(request, error)

    def _refuse(self, request: monitoring.TraceRequest, error: Exception) -> None:
        _logger.warning("A trace was requested and could not be recorded: %s: %s", type(error).__name__, error)
        self._reporter.deliver_error(request.id, f"{type(error).__name__}: {error}")
