"""A callback that records the load of each expert, for TensorBoard and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.expert.tracking import ExpertLoad
from strategies import layer_api


class ExpertLoadHistory(keras.callbacks.Callback):
    """Writes each expert's share of the choices to TensorBoard, and keeps the shares of each epoch in `history`.

    For each layer tracked by `track_expert_load`, the shares of an epoch, over all replicas and batches, add up to 1.
    TensorBoard shows them as ``expert_load/<layer>/<expert>``, next to the metrics of the epoch, for training and for
    validation. The logs, and therefore the progress bar, have only each layer's largest load.

    With several processes, each passes both callbacks to `fit`, because reading the loads is a collective; rank 0
    writes. Callbacks that evaluate the model at the end of an epoch must come after this one, because an evaluation
    resets the counts.

    Args:
        tensorboard: the TensorBoard callback that is also passed to `fit`; the shares are written to its files. None to
            keep them in `history` only.

    Attributes:
        history: lists of arrays with one share per expert: by layer name, one array for each epoch since `fit` began;
            by ``val_<name>``, one for each epoch that was validated.

    Raises:
        ValueError: `track_expert_load` has not been called, two mixtures have the same name, or `tensorboard` has not
            been passed to `fit`.

    Example:

        model = keras.Sequential([keras.Input((16, 32)), keras_ext.MixtureOfExperts(8, 64, name="experts")])
        keras_ext.track_expert_load(model)
        model.compile("adam", "mse")
        board = keras.callbacks.TensorBoard("logs", write_graph=False)
        loads = keras_ext.ExpertLoadHistory(board)
        model.fit(np.ones((4, 16, 32)), np.ones((4, 16, 32)), verbose=0, callbacks=[board, loads])
        print(loads.history["experts"][-1])
    """

    def __init__(self, tensorboard: keras.callbacks.TensorBoard | None = None) -> None:
        super().__init__()
        self.history: dict[str, list[np.ndarray]] = {}
        self._board = tensorboard
        self._metrics: dict[str, ExpertLoad] = {}
        # The training shares of this epoch once validation has begun, because it counts in the same metrics; else None.
        self._trained: dict[str, np.ndarray] | None = None
        self._validated: dict[str, np.ndarray] = {}
        self._in_epoch = False

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finds the tracked layers of the model."""
        self.history, self._metrics = {}, metrics_of(self.model)
        if not self._metrics:
            raise ValueError(
                "Nothing keeps the load of experts: call keras_ext.track_expert_load(model) before `fit`. Received: "
                f"{self.model.name!r}."
            )
        # Checked on rank 0 only: on other ranks, `fit` leaves out callbacks that write files.
        if self._writes and getattr(self._board, "model", None) is not self.model:
            raise ValueError(
                "The TensorBoard that shares of experts are written to is to be a callback of the same `fit`, as in "
                f"callbacks=[board, keras_ext.ExpertLoadHistory(board)]. Received: {self._board!r}."
            )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Drops the shares of the epoch before."""
        self._trained, self._validated, self._in_epoch = None, {}, True

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Keeps the shares of training, before validation resets the counts."""
        if self._in_epoch and self._trained is None:
            self._trained = self._shares()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Keeps the shares of validation."""
        if self._in_epoch:
            self._validated = self._shares()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Appends the shares of this epoch to `history`, and writes them to TensorBoard."""
        self._in_epoch = False
        trained = self._shares() if self._trained is None else self._trained
        for prefix, found in (("", trained), ("val_", self._validated)):
            for name, shares in found.items():
                self.history.setdefault(prefix + name, []).append(shares)
            if found and self._writes:
                scalars = {
                    f"expert_load/{name}/{expert}": float(share)
                    for name, shares in found.items()
                    for expert, share in enumerate(shares)
                }
                layer_api.write_scalars(self._board, scalars, epoch, of_validation=bool(prefix))

    @property
    def _writes(self) -> bool:
        strategy = getattr(self.model, "distribute_strategy", None)
        return self._board is not None and bool(getattr(strategy, "is_chief", True))

    def _shares(self) -> dict[str, np.ndarray]:
        """Returns the shares that the metrics have counted, by layer name. All processes call it together."""
        counts = layer_api.values_of(self.model, [metric.counts for metric in self._metrics.values()])
        return {name: own / max(own.sum(), 1.0) for name, own in zip(self._metrics, counts, strict=True)}


def metrics_of(model: Any) -> dict[str, ExpertLoad]:
    """Returns the metric of each layer that `track_expert_load` tracks, by layer name.

    Raises:
        ValueError: two mixtures have the same name.
    """
    mixtures = [layer for layer in model._flatten_layers() if isinstance(layer, MixtureOfExperts)]
    names = [layer.name for layer in mixtures]
    if len(set(names)) < len(names):
        raise ValueError(
            "Mixtures of experts are distinguished by their names in logs and in TensorBoard: give each its own, as in "
            f"MixtureOfExperts(..., name='experts_3'). Received: {names}."
        )
    return {layer.name: metric for layer in mixtures for metric in layer.metrics if isinstance(metric, ExpertLoad)}
