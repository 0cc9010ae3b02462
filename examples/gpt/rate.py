"""The learning rate, update by update."""

from typing import Any

import keras
import numpy as np
from keras import ops


class WarmUpThenCosine(keras.optimizers.schedules.LearningRateSchedule):
    """Rises evenly to `peak`, then falls to 0 along half a cosine.

    Keras shows a schedule batches; where several make an update, this counts updates.

    Args:
        peak: the highest rate, that of update `warmup_updates`.
        num_updates: after which the rate is 0.
        warmup_updates: before the peak; at most half of all.
        batches_per_update: the optimizer's `gradient_accumulation_steps`.
    """

    def __init__(self, peak: float, num_updates: int, warmup_updates: int = 0, batches_per_update: int = 1) -> None:
        super().__init__()
        self.peak = peak
        self.num_updates = num_updates
        self.warmup_updates = min(warmup_updates, num_updates // 2)
        self.batches_per_update = batches_per_update

    def __call__(self, step: Any) -> Any:
        """The rate of batch `step`, a tensor."""
        update = ops.cast(ops.floor_divide(step, self.batches_per_update), "float32")
        rising = (update + 1.0) / (self.warmup_updates + 1.0)
        part = (update - self.warmup_updates) / max(1, self.num_updates - self.warmup_updates)
        falling = 0.5 * (1.0 + ops.cos(np.pi * ops.clip(part, 0.0, 1.0)))
        return self.peak * ops.where(update < self.warmup_updates, rising, falling)

    def get_config(self) -> dict[str, Any]:
        """What it was made with."""
        return {
            "peak": self.peak,
            "num_updates": self.num_updates,
            "warmup_updates": self.warmup_updates,
            "batches_per_update": self.batches_per_update,
        }
