"""Training that goes on when workers are lost and when workers come, under `horovodrun` with a script of hosts."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import keras

_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")


class State:
    """The memory of an elastic training; :func:`run` makes it and gives it to the training function.

    :class:`keras_ext.Commits` fills it and goes on from it. A program that does not train by ``fit`` may do so itself.

    Attributes:
        num_starts: how often the function was called in this process, this call included.
    """

    def __init__(self, memory: Any = None) -> None:
        self._memory = memory
        self._value: Any = None
        self.num_starts = 0

    @property
    def value(self) -> Any:
        """The last commit, of whichever process; None if there was none."""
        return self._value if self._memory is None else self._memory.value

    def commit(self, value: Any) -> None:
        """Keeps a value, which can be pickled, and lets in workers that have come. All processes call it alike.

        Where hosts have come or gone it does not return: the function is called again, over the new processes.
        """
        if self._memory is None:
            self._value = value
        else:
            self._memory.keep(value)


def run(
    function: Callable[Concatenate[State, _Rest], _Result],
) -> Callable[_Rest, _Result]:
    """Has a training function survive the loss and the arrival of workers; a decorator.

    The function makes its strategy and its model itself: it is called again, in the same process, each time that the
    workers change. Batches stay global, so that the numbers stay those of one device, whatever the number of workers.
    Steps since the last commit are run again, from it; nothing is read from a disk.

        # horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script ./hosts.sh python train.py
        @strategies.elastic.run
        def train(state):
            strategy = strategies.HorovodStrategy()
            with strategy.scope():
                model = make_model()
                model.compile("adam", "mse")
            commits = keras_ext.Commits(state, steps_per_epoch=100, every_steps=10)
            at = commits.restore(model)
            while at.epoch < 5:
                # Keras begins at the beginning of an epoch: the rest of one that was left gets a `fit` of its own.
                end = at.epoch + 1 if at.step else 5
                batches = batches_from(epoch=at.epoch, step=at.step)
                model.fit(batches, initial_epoch=at.epoch, epochs=end, steps_per_epoch=100 - at.step,
                          callbacks=[commits])
                at = commits.restore(model)

        train()

    A worker that is lost takes its host with it: horovodrun ends the host's other workers, and does not use it again,
    or only after ``--blacklist-cooldown-range``. Workers that come are let in at the next commit; they start Python and
    TensorFlow first, and the others wait for them. Everything is lost with the last worker: against that, save
    checkpoints. Without such a script the function is called once.

    Args:
        function: its first argument is the `State`; it is called without.

    Returns:
        A function that takes the other arguments and returns what the last call of the function returned.
    """

    @functools.wraps(function)
    def elastic(*args: _Rest.args, **kwargs: _Rest.kwargs) -> _Result:
        def call(state: State) -> _Result:
            if state.num_starts:
                # The old model goes, and names of layers begin anew, as they do in a worker that has just come.
                keras.utils.clear_session()
            state.num_starts += 1
            return function(state, *args, **kwargs)

        if os.environ.get("HOROVOD_ELASTIC", "0") == "0":
            return call(State())
        # Only here: the program may run without Horovod.
        from strategies.collectives import horovod

        memory = horovod.ElasticMemory()
        state = State(memory)
        return horovod.run_elastic(lambda: call(state), memory)

    return elastic
