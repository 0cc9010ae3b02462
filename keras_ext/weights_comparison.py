"""A check, while training runs, that all replicas and processes hold the same weights."""

from __future__ import annotations

from typing import Any

import keras

from strategies import layer_api


class WeightsComparison(keras.callbacks.Callback):
    """Compares the weights of all replicas every `every_steps` steps; stops training everywhere on a mismatch.

    ``fit`` itself compares processes at the end of each epoch. In long epochs, this callback detects a memory error, or
    a program that sets weights on one rank or one device only, earlier; the error names the last step after which all
    were equal. Each comparison reads all copies of the weights of this process once, and sends eight bytes per
    variable. A part of a weight is compared between the devices that hold this part. Under another package's strategy
    it does nothing.

    To compare the training itself with that of one device, use ``strategy.check(model, data)``.

    Args:
        every_steps: the number of steps between two comparisons, counted over all epochs of a call of ``fit``. An
            execution of several steps (``steps_per_execution``) is not interrupted.

    Example:

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        check = keras_ext.WeightsComparison(every_steps=500)
        model.fit(np.ones((8, 3)), np.ones((8, 1)), callbacks=[check], verbose=0)

    Raises:
        ValueError: an argument out of range; in ``fit``, on all ranks, weights that differ, with their path and the
            ranks or devices.
    """

    def __init__(self, every_steps: int) -> None:
        super().__init__()
        if not isinstance(every_steps, int) or every_steps < 1:
            raise ValueError(f"every_steps must be a whole number from 1. Received: every_steps={every_steps!r}.")
        self._every_steps = every_steps
        self._epoch = self._before = self._done = 0
        self._last_equal = ""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts from 0."""
        self._before = self._done = 0
        self._last_equal = ""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Continues the count of earlier epochs."""
        self._epoch, self._before = epoch, self._done

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares the weights, if the count has reached the next multiple of `every_steps`."""
        step = layer_api.finished_steps(self.params, batch)
        last, self._done = self._done, self._before + step
        if self._done // self._every_steps > last // self._every_steps:
            when = f"after step {step} of epoch {self._epoch + 1}"
            layer_api.compare_weights(self.model, when, self._last_equal)
            self._last_equal = when
