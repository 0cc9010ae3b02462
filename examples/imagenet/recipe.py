"""The training recipe of the classifier: loss, learning rate and optimizer."""

from __future__ import annotations

from typing import Any

import keras
from common.options import OptionError
from common.rate import Decay, WarmUpThenDecay
from keras import ops

#: The batch size for which learning rates are given (Goyal et al., arXiv:1706.02677).
REFERENCE_BATCH = 256

#: Default peak rates by optimizer, for `REFERENCE_BATCH` images. LAMB's is relative to the norm of a layer's weights.
RATES = {"sgd": 0.1, "adamw": 3e-4, "lamb": 6e-4}


@keras.saving.register_keras_serializable(package="imagenet")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of logits and class numbers, with label smoothing.

    The mean is weighted: an image that could not be decoded has weight 0.
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
        """Returns the constructor's arguments."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="imagenet")
class SkippedRows(keras.metrics.Metric):
    """Counts the rows of weight 0: images that could not be decoded."""

    def __init__(self, name: str = "skipped", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the number of rows of weight 0 in a batch."""
        if sample_weight is not None:
            self.count.assign_add(ops.cast(ops.sum(ops.cast(ops.equal(sample_weight, 0), "float32")), self.count.dtype))

    def result(self) -> Any:
        """Returns the count."""
        # Not the variable itself, which convert_to_tensor would return: it is reset to 0 before Keras reads the logs.
        return ops.cast(self.count, self.dtype)


def learning_rate(
    name: str,
    rate: float | None,
    batch_size: int,
    *,
    decay: Decay,
    warmup_steps: int,
    num_steps: int,
    accumulation: int = 1,
) -> WarmUpThenDecay:
    """Returns the schedule: warm-up, then decay, with a peak proportional to the images of an update.

    Args:
        name: name of the optimizer.
        rate: peak rate for `REFERENCE_BATCH` images; None for the default of the optimizer.
        batch_size: images in one step.
        decay: "cosine" to 0, or "steps" by a factor of ten.
        warmup_steps: number of steps of linear warm-up.
        num_steps: number of steps of the whole training.
        accumulation: steps per update.

    Raises:
        OptionError: an unknown optimizer.
    """
    if name not in RATES:
        raise OptionError(f"--optimizer: expected one of {tuple(RATES)}, received {name!r}.")
    highest = (RATES[name] if rate is None else rate) * batch_size * accumulation / REFERENCE_BATCH
    num_updates = max(1, num_steps // accumulation)
    return WarmUpThenDecay(highest, num_updates, warmup_steps // accumulation, decay, accumulation)


def make_optimizer(
    name: str, schedule: Any, *, momentum: float, weight_decay: float, accumulation: int = 1
) -> keras.Optimizer:
    """Returns the optimizer, with weight decay of all weights except norms and biases.

    Keras' weight decay is decoupled: each update subtracts `learning rate * weight_decay` times the weight. A penalty
    in the loss, as in the papers, passes through the momentum and has 1 / (1 - momentum) times the effect.

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
        raise OptionError(f"--optimizer: expected one of {tuple(RATES)}, received {name!r}.")
    if weight_decay:
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer
