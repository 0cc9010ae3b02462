"""A metric of the load of experts, for the logs."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_ext.expert.layer import MixtureOfExperts


class ExpertLoad(keras.metrics.Metric):
    """The load of the most chosen expert relative to an even load: from 1 to the number of experts.

    Every replica adds the counts of the global batch; the number of replicas cancels out in the result.

    Args:
        num_experts: number of experts.
        name: the name of the metric.
    """

    def __init__(self, num_experts: int, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self.counts = self.add_variable((num_experts,), "zeros", name="counts")

    def update_state(self, counts: Any) -> None:
        """Adds the choices of each expert in a global batch, `[num_experts]`."""
        self.counts.assign_add(ops.cast(counts, self.dtype))

    def result(self) -> Any:
        """Returns the relative load; 0 before the first batch."""
        return self.counts.shape[0] * ops.max(self.counts) / ops.maximum(ops.sum(self.counts), 1.0)


def track_expert_load(model: Any) -> None:
    """Adds a metric ``<layer name>_load`` to a model's logs for each `MixtureOfExperts`: how uneven its load is.

    The metric is the load of the most chosen expert relative to an even load, over all replicas and all batches since
    the epoch began: 1 if all experts have the same number of tokens, ``num_experts / top_k`` if all tokens choose the
    same experts. It is in the progress bar, ``History``, ``CSVLogger`` and ``TensorBoard`` like any metric, with
    ``val_<layer name>_load`` for validation. Masked tokens do not count; choices that a capacity drops do.
    `keras_ext.ExpertLoadHistory` records the share of each expert.

    In each step, each layer all-reduces one number per expert over the replicas; a layer with a loss, a router bias or
    a capacity does so anyway. Call this function in the strategy's scope, before a checkpoint is restored and before
    `fit`. If a model is converted, as by `parallelize`, call it on the new model. A pipeline over several processes
    refuses layers with metrics.

    Args:
        model: a built model that contains a `MixtureOfExperts`.

    Raises:
        ValueError: the model contains none.

    Example:

        model = keras.Sequential([keras.Input((16, 32)), keras_ext.MixtureOfExperts(8, 64, name="experts")])
        keras_ext.track_expert_load(model)
        model.compile("adam", "mse")
        logs = model.fit(np.ones((4, 16, 32)), np.ones((4, 16, 32)), verbose=0).history
        print(logs["experts_load"])
    """
    mixtures = [layer for layer in model._flatten_layers() if isinstance(layer, MixtureOfExperts)]
    if not mixtures:
        raise ValueError(
            "No layer has a load: there is no keras_ext.MixtureOfExperts. Received: "
            f"{model.name!r} with {sorted({type(layer).__qualname__ for layer in model._flatten_layers()})}."
        )
    for layer in mixtures:
        layer.track_load(ExpertLoad(layer.num_experts, f"{layer.name}_load"))
    # Functions that have already been traced do not update the new metric.
    model.train_function = model.test_function = model.predict_function = None
