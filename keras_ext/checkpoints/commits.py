"""Commits of elastic training: in-memory checkpoints of runs that lose and gain workers."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np

import strategies
from keras_ext.checkpoints.callback import Checkpoints, seeds_of
from keras_ext.checkpoints.position import TrainingPosition
from strategies import layer_api


class Commits(Checkpoints):
    """Keeps the state of training in the memory of all workers, to resume when workers are lost or added.

    It keeps what :class:`Checkpoints` saves, and is used in the same way, in a function under
    :func:`strategies.elastic.run`: `restore`, then `fit` from the returned position on, as the last callback. New
    workers join at commits. The first commit is made when training begins.

    A commit copies weights and slots to the host, and checks on all workers whether hosts have changed.

    Args:
        state: the argument of the training function.
        steps_per_epoch: the number of steps of a whole epoch.
        every_steps: the number of steps after which to commit within an epoch; None to commit only at its end.

    Example, here without Horovod; ``train`` is called once:

        @strategies.elastic.run
        def train(state):
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
            commits = keras_ext.Commits(state, steps_per_epoch=4, every_steps=2)
            position = commits.restore(model)
            x, y = np.ones((8, 3)), np.ones((8, 1))
            model.fit(x, y, batch_size=2, initial_epoch=position.epoch, epochs=2, callbacks=[commits], verbose=0)

        train()

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self, state: strategies.elastic.State, steps_per_epoch: int, *, every_steps: int | None = None
    ) -> None:
        super().__init__("", steps_per_epoch, every_steps=every_steps)
        self._origin = "its commits"
        self._state = state

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Commits the initial weights, so that they are not drawn again if a worker is lost before the first commit."""
        if self._state.value is None:
            self._save(TrainingPosition())

    def _save(self, position: TrainingPosition) -> None:
        model = self.model
        state = self._state_at(position)
        # Copies, as the values of some variables are views.
        values = [np.array(value) for value in layer_api.values_of(model, _kept(model))]
        self._state.commit({"state": state, "values": values})

    def _load_on_all(self, model: keras.Model) -> dict[str, Any]:
        def load() -> str:
            return json.dumps(self._load(model))

        text = strategies.load_on_all(model.distribute_strategy, load, layer_api.state_of(model))
        state: dict[str, Any] = json.loads(text)
        return state

    def _load(self, model: keras.Model) -> dict[str, Any]:
        if self._state.value is None:
            return {}
        state: dict[str, Any] = self._state.value["state"]
        values = [*self._state.value["values"], *state["seeds"]]
        variables = [*_kept(model), *seeds_of(model)]
        shapes = [np.shape(value) for value in values], [tuple(variable.shape) for variable in variables]
        if shapes[0] != shapes[1]:
            raise ValueError(
                "Make the same model in each call of the training function, with the same optimizer. Received: "
                f"variables of the shapes {shapes[1]}, and before {shapes[0]}."
            )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.asarray(value, variable.dtype))
        return state


def _kept(model: keras.Model) -> list[Any]:
    """Returns the variables of the model and its optimizer, without the seeds, which the state contains.

    Shards are joined to whole weights: the number of devices may change.
    """
    apart = {id(variable) for variable in seeds_of(model)}
    return layer_api.joined([variable for variable in layer_api.state_of(model) if id(variable) not in apart])
