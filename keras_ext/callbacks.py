"""Callbacks for training with many replicas."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


class LearningRateWarmup(keras.callbacks.Callback):
    """Raises the learning rate from that of one device to that of all replicas, step by step, over some epochs.

    With n replicas, a global batch is n times that of one device, and the model is compiled with n times the learning
    rate. At the start that rate is too large. This callback begins with about 1/n of the compiled rate and adds the
    same amount at every step; at the last step of epoch `warmup_epochs` it reaches the compiled rate. After that, and
    on one device, it does not set the rate. The schedule is that of Horovod's ``LearningRateWarmupCallback``.

    With ``steps_per_execution``, all steps of an execution use the rate of its first step. The logs of each epoch get
    the ``learning_rate`` of its end.

    Args:
        warmup_epochs: number of epochs of the warm-up.
        target_learning_rate: the learning rate of all replicas, reached at the end; None means the optimizer's when
            ``fit`` begins. Pass it if the optimizer's rate may be one of the warm-up, as in a model that was saved
            during the warm-up.
        momentum_correction: True to rescale the past updates in the momentum of SGD and RMSprop whenever the rate
            changes, as if they had been made with the new rate.
        steps_per_epoch: number of steps of an epoch; None means the number that ``fit`` finds, which requires data of
            known length.
        verbose: 1 to print a line at the end of the warm-up.

    Example:

        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.01 * strategy.num_replicas_in_sync), "mse")
        model.fit(np.ones((8, 3)), np.ones((8, 1)), epochs=3, callbacks=[keras_ext.LearningRateWarmup(2)])

    Raises:
        ValueError: an argument out of range; in ``fit``, an optimizer whose learning rate is a schedule, or data of
            unknown length without `steps_per_epoch`.

    Source: Goyal et al., arXiv:1706.02677, section 2.2, and section 3 on momentum.
    """

    def __init__(
        self,
        warmup_epochs: int = 5,
        *,
        target_learning_rate: float | None = None,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("warmup_epochs", warmup_epochs), ("steps_per_epoch", steps_per_epoch)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number from 1. Received: {name}={value!r}.")
        if target_learning_rate is not None and not target_learning_rate > 0:
            raise ValueError(
                f"target_learning_rate must be above 0. Received: target_learning_rate={target_learning_rate!r}."
            )
        self.verbose = verbose
        self._warmup_epochs = warmup_epochs
        self._target_learning_rate = target_learning_rate
        self._momentum_correction = momentum_correction
        self._steps_per_epoch = steps_per_epoch
        self._seen: Any = None
        self._full_rate = 0.0
        self._num_steps = 0
        self._num_replicas = 1
        self._epoch = 0

    def set_model(self, model: Any) -> None:
        """Stores the model and its learning rate, before other callbacks may restore another rate."""
        super().set_model(model)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and optimizer is not self._seen and _is_settable(optimizer):
            # Once per optimizer: a second `fit` may begin in the middle of the warm-up.
            self._seen = optimizer
            self._full_rate = self._target_learning_rate or _rate_of(optimizer)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that the optimizer's rate can be set, and finds the number of steps."""
        strategy = getattr(self.model, "distribute_strategy", None)
        self._num_replicas = 1 if strategy is None else int(strategy.num_replicas_in_sync)
        optimizer = self.model.optimizer
        if not _is_settable(optimizer):
            raise ValueError(
                "LearningRateWarmup sets the learning rate itself, and that of this optimizer follows a schedule. "
                "Compile with a number, or build the warm-up into the schedule (keras.optimizers.schedules.CosineDecay "
                f"has `warmup_target` and `warmup_steps`). Received: {type(optimizer).__name__} {optimizer.name!r}."
            )
        steps = self._steps_per_epoch or (self.params or {}).get("steps")
        if not steps:
            raise ValueError(
                "LearningRateWarmup has to know how many steps an epoch has, which `fit` does not know for this data. "
                "Write LearningRateWarmup(..., steps_per_epoch=...), or fit(..., steps_per_epoch=...). Received: "
                f"steps_per_epoch={self._steps_per_epoch}."
            )
        self._num_steps = int(steps)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stores the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the learning rate of the step."""
        if self._epoch < self._warmup_epochs and self._num_replicas > 1:
            # Counted to the step's end, so that the last step of each epoch has a round number.
            num_epochs = min(self._epoch + (batch + 1) / self._num_steps, self._warmup_epochs)
            growth = num_epochs * (self._num_replicas - 1) / self._warmup_epochs
            self._set(self._full_rate / self._num_replicas * (growth + 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the full rate after the last epoch of the warm-up, and logs the rate."""
        if epoch == self._warmup_epochs - 1 and self._num_replicas > 1:
            # With several steps per execution, perhaps no execution began with the epoch's last step.
            self._set(self._full_rate)
            if self.verbose:
                print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to {self._full_rate:g}.")
        if logs is not None:
            logs["learning_rate"] = _rate_of(self.model.optimizer)

    def _set(self, rate: float) -> None:
        optimizer = self.model.optimizer
        ratio = rate / _rate_of(optimizer)
        optimizer.learning_rate = rate
        # The optimizer inside the wrapper that scales losses.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if self._momentum_correction and optimizer.built and getattr(optimizer, "momentum", 0) and ratio != 1:
            # `momentum` itself is a constant of the compiled step; scaling what it multiplies does the same.
            for velocity in getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", []):
                velocity.assign(velocity * ratio)


def _is_settable(optimizer: Any) -> bool:
    return isinstance(optimizer.learning_rate, keras.Variable)


def _rate_of(optimizer: Any) -> float:
    return float(np.asarray(keras.ops.convert_to_numpy(optimizer.learning_rate)))
