"""Images per second in the steady state, from Keras' own callbacks."""

import time
from typing import Any

import keras


class Throughput(keras.callbacks.Callback):
    """Measures training alone, without what happens once: building, tracing, and filling the input pipeline.

    The first epoch is left out, and validation. Of a run of one epoch only the first step is left out.

    Args:
        num_images: Images in one epoch.
        batch_size: Images in one step, the last excepted.
    """

    def __init__(self, num_images: int, batch_size: int) -> None:
        super().__init__()
        self._num_images = num_images
        self._batch_size = batch_size
        self._images = 0
        self._seconds = 0.0
        self._epoch_start: float | None = None
        self._num_epoch_images = 0

    @property
    def images_per_second(self) -> float:
        """Images per second of training so far; 0 when too little was run to tell."""
        return self._images / self._seconds if self._seconds else 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock, save in the first epoch: there the end of the first step does."""
        if epoch == 1:
            self._images, self._seconds = 0, 0.0
        self._epoch_start = None if epoch == 0 else time.perf_counter()
        self._num_epoch_images = self._num_images

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock of the first epoch."""
        if self._epoch_start is None and self._num_epoch_images > 0:
            self._epoch_start = time.perf_counter()
            self._num_epoch_images -= self._batch_size

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock: validation begins."""
        self._stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock where there is no validation."""
        self._stop()

    def _stop(self) -> None:
        if self._epoch_start is not None and self._num_epoch_images > 0:
            self._images += self._num_epoch_images
            self._seconds += time.perf_counter() - self._epoch_start
        self._epoch_start = None
