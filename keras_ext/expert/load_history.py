"""The load of each expert, for TensorBoard and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.expert.tracking import ExpertLoad
from strategies import layer_api


class ExpertLoadHistory(keras.callbacks.Callback):
    """Writes each expert's share of the choices to TensorBoard, and keeps them by epoch, as ``History`` keeps logs.

    For each layer of which `track_expert_load` keeps the load, the shares of the choices of an epoch, over all
    replicas and batches, add up to 1. TensorBoard has them as ``expert_load/<layer>/<expert>``, beside the metrics of
    the epoch, for training and for validation. The logs, and with them the progress bar, have each layer's largest load
    only.

    Of several processes all have both callbacks, as they read the loads together; rank 0 writes. Callbacks that
    evaluate the model at the end of an epoch come behind this one: an evaluation counts anew.

    Args:
        tensorboard: the callback that is given to `fit` as well, in whose files the shares are written. None to keep
            them in `history` only.

    Attributes:
        history: by the name of the layer, an array of one share for each expert for each epoch since `fit` began, and
            by ``val_<name>`` one for each epoch that was validated.

    Raises:
        ValueError: `track_expert_load` has not been called, two mixtures have one name, or `fit` has not been given the
            other callback.

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
        # Those of training, while those of validation are counted by the same metrics; None outside of epochs.
        self._trained: dict[str, np.ndarray] | None = None
        self._validated: dict[str, np.ndarray] = {}
        self._in_epoch = False

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finds the layers."""
        self.history, self._metrics = {}, metrics_of(self.model)
        if not self._metrics:
            raise ValueError(
                "Nothing keeps the load of experts: call keras_ext.track_expert_load(model) before `fit`. Received: "
                f"{self.model.name!r}."
            )
        # On rank 0 only: the others' `fit` leaves callbacks out that write files.
        if self._writes and getattr(self._board, "model", None) is not self.model:
            raise ValueError(
                "The TensorBoard that shares of experts are written to is to be a callback of the same `fit`, as in "
                f"callbacks=[board, keras_ext.ExpertLoadHistory(board)]. Received: {self._board!r}."
            )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Begins anew."""
        self._trained, self._validated, self._in_epoch = None, {}, True

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Keeps the shares of training: validation counts from 0."""
        if self._in_epoch and self._trained is None:
            self._trained = self._shares()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Keeps the shares of validation."""
        if self._in_epoch:
            self._validated = self._shares()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Keeps and writes the shares of this epoch."""
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
        """Returns what the metrics have counted, by the name of the layer. All processes call this together."""
        counts = layer_api.values_of(self.model, [metric.counts for metric in self._metrics.values()])
        return {name: own / max(own.sum(), 1.0) for name, own in zip(self._metrics, counts, strict=True)}


def metrics_of(model: Any) -> dict[str, ExpertLoad]:
    """Returns the metric of each layer of which `track_expert_load` keeps the load, by the name of the layer."""
    mixtures = [layer for layer in model._flatten_layers() if isinstance(layer, MixtureOfExperts)]
    names = [layer.name for layer in mixtures]
    if len(set(names)) < len(names):
        raise ValueError(
            "Mixtures of experts are told apart by their names in logs and in TensorBoard: give each its own, as in "
            f"MixtureOfExperts(..., name='experts_3'). Received: {names}."
        )
    return {layer.name: metric for layer in mixtures for metric in layer.metrics if isinstance(metric, ExpertLoad)}
