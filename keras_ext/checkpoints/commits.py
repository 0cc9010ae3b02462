"""Commits of elastic training: the checkpoints of runs whose workers come and go, in memory."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import strategies
from keras_ext.checkpoints.callback import Checkpoints, seeds_of
from keras_ext.checkpoints.position import TrainingPosition
from strategies import layer_api


class Commits(Checkpoints):
    """Keeps in the memory of all workers what training needs to go on when workers are lost or have come.

    It keeps what :class:`Checkpoints` saves, and is used in the same way, in a function under
    :func:`strategies.elastic.run`: `restore`, `fit` from the returned position on, and among the callbacks the last.
    Workers that have come are let in at commits. The first commit is made as training begins.

    A commit copies weights and slots to the host and asks the workers whether hosts have changed.

    Args:
        state: what the training function was called with.
        steps_per_epoch: of a whole epoch.
        every_steps: after how many steps of an epoch to commit, beside at its end; None for at its end only.

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
        self._place = "its commits"
        self._state = state

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Commits the initial weights, so that a loss before the first steps does not draw others."""
        if self._state.value is None:
            self._save(TrainingPosition())

    def _save(self, position: TrainingPosition) -> None:
        model = self.model
        state = self._state_at(position)
        # Copies: of some variables values are views.
        values = [np.array(value) for value in layer_api.values_of(model, _kept(model))]
        self._state.commit({"state": state, "values": values})

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
    """The variables of the model and its optimizer, without the seeds, which a state has.

    What devices hold in parts is whole here: the next devices may be more, or fewer.
    """
    apart = {id(variable) for variable in seeds_of(model)}
    return layer_api.joined([variable for variable in layer_api.state_of(model) if id(variable) not in apart])
