"""How the classifier is trained: loss, learning rate and optimizer."""

from __future__ import annotations

import math
from typing import Any

import keras
from common.options import OptionError
from keras import ops

#: The batch size for which learning rates are given (Goyal et al., arXiv:1706.02677).
REFERENCE_BATCH = 256

OPTIMIZERS = ("sgd", "adamw", "lamb")
DECAYS = ("cosine", "steps")


@keras.saving.register_keras_serializable(package="imagenet")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of logits against class numbers, of which a part `label_smoothing` is spread over all classes.

    The mean is over the rows that weigh anything: a picture that could not be decoded has weight 0.
    """

    def __init__(self, label_smoothing: float = 0.0, name: str = "crossentropy", **kwargs: Any) -> None:
        super().__init__(name=name, **({"reduction": "mean_with_sample_weight"} | kwargs))
        self.label_smoothing = label_smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns one value for each row."""
        one_hot = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), ops.shape(y_pred)[-1], dtype=y_pred.dtype)
        return keras.losses.categorical_crossentropy(
            one_hot, y_pred, from_logits=True, label_smoothing=self.label_smoothing
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="imagenet")
class SkippedRows(keras.metrics.Metric):
    """Counts the rows of weight 0: pictures that could not be decoded."""

    def __init__(self, name: str = "skipped", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts those of a batch."""
        if sample_weight is not None:
            self.count.assign_add(ops.cast(ops.sum(ops.cast(ops.equal(sample_weight, 0), "float32")), self.count.dtype))

    def result(self) -> Any:
        """The number of them."""
        return ops.convert_to_tensor(self.count)


@keras.saving.register_keras_serializable(package="imagenet")
class WarmupThenSteps(keras.optimizers.schedules.LearningRateSchedule):
    """Rises from 0 in equal steps, then falls to a tenth at each boundary.

    Args:
        learning_rate: the highest.
        warmup_steps: number of steps in which it is reached.
        boundaries: steps after which it is a tenth of what it was.
    """

    def __init__(self, learning_rate: float, warmup_steps: int, boundaries: list[int]) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.boundaries = boundaries

    def __call__(self, step: Any) -> Any:
        """The rate of a step."""
        step = ops.cast(step, "float32")
        rate = self.learning_rate * ops.minimum(1.0, (step + 1) / max(1, self.warmup_steps))
        for boundary in self.boundaries:
            rate = ops.where(step >= boundary, rate * 0.1, rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "boundaries": self.boundaries,
        }


def learning_rate(rate: float, batch_size: int, *, decay: str, warmup_steps: int, num_steps: int) -> Any:
    """The schedule: linear in the batch size, warmed up, then falling.

    Args:
        rate: for batches of `REFERENCE_BATCH` images.
        batch_size: images in one update of the weights.
        decay: "cosine" to 0, or "steps": a tenth after 1/3, 2/3 and 8/9 of the steps (He et al.: epochs 30, 60, 80).
        warmup_steps: number of steps in which it rises. Keras counts steps also where several make one update.
        num_steps: of the whole training.
    """
    highest = rate * batch_size / REFERENCE_BATCH
    warmup = min(warmup_steps, num_steps - 1)
    if decay == "steps":
        return WarmupThenSteps(highest, warmup, [math.ceil(num_steps * part) for part in (1 / 3, 2 / 3, 8 / 9)])
    return keras.optimizers.schedules.CosineDecay(
        0.0 if warmup else highest,
        num_steps - warmup,
        warmup_target=highest if warmup else None,
        warmup_steps=warmup,
    )


def make_optimizer(
    name: str, schedule: Any, *, momentum: float, weight_decay: float, accumulation: int = 1
) -> keras.Optimizer:
    """The optimizer; weights decay, but not norms and biases.

    Keras decays weights apart from the gradient, by `learning rate * weight_decay` at each update. What is added to the
    loss instead, as in the papers, goes through the momentum and comes to 1 / (1 - momentum) times as much.

    Raises:
        OptionError: an unknown name.
    """
    steps = None if accumulation == 1 else accumulation
    common: dict[str, Any] = {"weight_decay": weight_decay or None, "gradient_accumulation_steps": steps}
    if name == "sgd":
        optimizer = keras.optimizers.SGD(schedule, momentum=momentum, nesterov=True, **common)
    elif name == "adamw":
        optimizer = keras.optimizers.AdamW(schedule, **common | {"weight_decay": weight_decay})
    elif name == "lamb":
        optimizer = keras.optimizers.Lamb(schedule, **common)
    else:
        raise OptionError(f"--optimizer: expected one of {OPTIMIZERS}, received {name!r}.")
    if weight_decay:
        optimizer.exclude_from_weight_decay(var_names=[r"bias", r"norm", r"gamma", r"beta", r"/scale"])
    return optimizer
