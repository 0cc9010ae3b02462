"""The load of experts as a metric in the logs."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_ext.expert.layer import MixtureOfExperts


class ExpertLoad(keras.metrics.Metric):
    """The largest number of choices of an expert over that of an even load: from 1 to the number of experts.

    Every replica adds the counts of all of them, which a quotient of sums does not show.

    Args:
        num_experts: number of experts.
        name: of the metric.
    """

    def __init__(self, num_experts: int, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self.counts = self.add_variable((num_experts,), "zeros", name="counts")

    def update_state(self, counts: Any) -> None:
        """Adds the choices of each expert in a global batch, `[num_experts]`."""
        self.counts.assign_add(ops.cast(counts, self.dtype))

    def result(self) -> Any:
        """Returns the load; 0 before the first batch."""
        return self.counts.shape[0] * ops.max(self.counts) / ops.maximum(ops.sum(self.counts), 1.0)


def track_expert_load(model: Any) -> None:
    """Adds to the logs of a model how unevenly each `MixtureOfExperts` of it is used, as ``<name of layer>_load``.

    It is the number of choices of the most chosen expert over that of an even load, over all replicas and all batches
    since the epoch began: 1 if all experts have as many tokens, ``num_experts / top_k`` if all tokens take the same.
    Progress bar, ``History``, ``CSVLogger`` and ``TensorBoard`` have it as any metric, and ``val_<name>_load`` is that
    of validation. Tokens that a mask leaves out do not count; those that a capacity drops do. The share of each expert
    is what `keras_ext.ExpertLoadHistory` keeps and writes.

    Each layer then sums as many numbers as it has experts over the replicas in each step; where it has a loss or a
    bias, it does so anyway. Call it in the strategy's scope, before a checkpoint is restored and before `fit`; of a
    model that is made of another, such as by `parallelize`, on the new one. A pipeline over several processes refuses
    layers with metrics.

    Args:
        model: with a `MixtureOfExperts` in it; of one that is not built yet, call it afterwards.

    Raises:
        ValueError: there is none.

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
    # Steps that have been traced know nothing of it.
    model.train_function = model.test_function = model.predict_function = None
