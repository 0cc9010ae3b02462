"""A callback that records some steps of all ranks into one file."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import keras

from strategies import layer_api
from strategies.tracing.job_trace import JobTrace

_logger = logging.getLogger(__name__)


class JobTimeline(keras.callbacks.Callback):
    """Records some steps of training: what each rank computes, and when it waits, as one file for Perfetto.

    The file has a group of tracks for each rank: its steps, the time in which it waits for batches, the passes of
    pipeline stages, computing, and each collective from when the rank entered it to when it had the result. All times
    are by the clock of rank 0; arrows join the same collective on all its ranks. Open it at https://ui.perfetto.dev.

    TensorFlow's profiler records the step as it is traced already, so the step is not traced anew, and weights and logs
    do not change. Before and after the recorded steps nothing is measured. The recorded steps run somewhat slower. At
    their end the ranks send their records to rank 0, which writes the file and prints a summary.

    All ranks need the callback, with the same arguments. While TensorBoard's profiler runs (``profile_batch``), only
    steps are recorded, and the summary says so. Collectives called outside of the training step may be missing.

    Args:
        path: the file that rank 0 writes, such as ``"timeline.json"``. Missing folders are created.
        first_step: the first step that is recorded, counted from 0 from the beginning of ``fit``, over its epochs. The
            first execution traces the step; leave it out.
        num_steps: the number of steps that are recorded. With ``steps_per_execution``, whole executions are recorded.
        verbose: 0 to print nothing.

    Attributes:
        trace: the recorded trace, on rank 0, once it is written; else None.

    Example:

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        timeline = keras_ext.JobTimeline("timeline.json", first_step=2, num_steps=2)
        model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=2, callbacks=[timeline], verbose=0)
        print(timeline.trace)

    Raises:
        ValueError: an argument out of range; in ``fit``, a strategy of another package with several replicas, or a
            path that rank 0 cannot write, on all ranks.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, first_step: int = 10, num_steps: int = 5, verbose: int = 1
    ) -> None:
        super().__init__()
        if not isinstance(first_step, int) or first_step < 0:
            raise ValueError(f"first_step must be a whole number from 0. Received: first_step={first_step!r}.")
        if not isinstance(num_steps, int) or not 1 <= num_steps <= layer_api.MAX_STEPS:
            raise ValueError(
                f"num_steps must be a whole number from 1 to {layer_api.MAX_STEPS}: a profile of many steps does not "
                f"fit into memory. Received: num_steps={num_steps!r}."
            )
        self._path = Path(path)
        self._first, self._num_steps, self._verbose = first_step, num_steps, verbose
        #: The recorded trace.
        self.trace: JobTrace | None = None
        self._recorder: Any = None
        self._is_done = False
        self._epoch = self._before = self._done = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts from 0."""
        self._is_done, self._recorder = False, None
        self._epoch = self._before = self._done = 0
        # Refused now, not after the first steps.
        layer_api.recorder_of(self.model)
        layer_api.at_exit_of_fit(self._drop)
        error = self._path_error() if layer_api.rank_of(self.model)[0] == 0 else ""
        # All ranks raise it: one that trained on would wait for rank 0.
        error = layer_api.texts_of_job(self.model, error)[0]
        if error:
            raise ValueError(error)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Continues the count of earlier epochs."""
        self._epoch, self._before = epoch, self._done

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins to record, or notes that a step begins."""
        if self._is_done:
            return
        step = self._before + batch
        if self._recorder is None and step + self._steps_per_execution > self._first:
            self._recorder = layer_api.recorder_of(self.model)
            self._recorder.compare_clocks()
            self._recorder.begin()
        if self._recorder is not None:
            self._recorder.step_began(step, self._epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes that a step has ended; writes the file after the last one."""
        # Keras counts the last execution of an epoch as a whole one.
        ended = min(batch + 1, (self.params or {}).get("steps") or batch + 1)
        self._done = self._before + ended
        if self._recorder is not None:
            self._recorder.step_ended(self._done - 1)
            if self._done >= self._first + self._num_steps:
                self._write()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Writes what there is if training ends earlier; logs a warning if that is nothing."""
        if self._recorder is not None:
            self._write()
        elif not self._is_done and layer_api.rank_of(self.model)[0] == 0:
            _logger.warning(
                "JobTimeline recorded nothing: the training ended after %d steps, before first_step=%d. Choose a "
                "smaller first_step.",
                self._done,
                self._first,
            )

    def _path_error(self) -> str:
        """Returns why the file cannot be written, before steps are recorded for it; empty if it can be."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.is_dir():
                raise IsADirectoryError("it is a folder")
            with tempfile.TemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            return f"JobTimeline cannot write its file: {error}. Give the path of a file. Received: path={self._path}."
        return ""

    def _drop(self) -> None:
        """Ends a profile that runs when `fit` raises an error: another could not begin in this process."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.drop()

    @property
    def _steps_per_execution(self) -> int:
        return int(getattr(self.model, "steps_per_execution", 1) or 1)

    def _write(self) -> None:
        record, self._recorder, self._is_done = self._recorder.end(), None, True
        texts = layer_api.texts_of_job(self.model, record.to_text())
        if layer_api.rank_of(self.model)[0] == 0:
            self.trace = JobTrace.from_texts(texts)
            self.trace.write(self._path)
            if self._verbose:
                print(f"\n{self.trace}\nWrote {self._path}; open it at https://ui.perfetto.dev.", flush=True)
