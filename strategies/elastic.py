"""Training that continues when workers are lost or added, under `horovodrun` with a host discovery script."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import keras

_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")


class State:
    """The committed state of an elastic training; :func:`run` makes it and passes it to the training function.

    :class:`keras_ext.Commits` writes it and restores from it. A program that does not train with ``fit`` may use it,
    too.

    Attributes:
        num_starts: the number of calls of the function in this process, including this one.
    """

    def __init__(self, memory: Any = None) -> None:
        self._memory = memory
        self._value: Any = None
        self.num_starts = 0

    @property
    def value(self) -> Any:
        """The last committed value, from whichever process; None before the first commit."""
        return self._value if self._memory is None else self._memory.value

    def commit(self, value: Any) -> None:
        """Stores a picklable value in memory, and admits new workers. All processes call it at the same point.

        If hosts were added or removed, it does not return: the function is called again, on the new set of processes.
        """
        if self._memory is None:
            self._value = value
        else:
            self._memory.keep(value)


def run(
    function: Callable[Concatenate[State, _Rest], _Result],
) -> Callable[_Rest, _Result]:
    """Decorates a training function, so that it survives the loss and the arrival of workers.

    The function makes its strategy and its model itself: it is called again, in the same process, each time the workers
    change. Batches are global, so the numbers stay those of one device, whatever the number of workers. Training
    continues from the last commit, and repeats the steps after it; nothing is read from a disk.

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

    If a worker is lost, horovodrun ends the other workers of its host, and does not use that host again, or only after
    ``--blacklist-cooldown-range``. New workers are admitted at the next commit; they first start Python and TensorFlow,
    and the others wait for them. If the last worker is lost, so are the commits: save checkpoints as well. Without a
    host discovery script the function is called once.

    Args:
        function: takes the `State` as its first argument, which callers leave out.

    Returns:
        A function that takes the other arguments and returns the result of the last call of `function`.
    """

    @functools.wraps(function)
    def elastic(*args: _Rest.args, **kwargs: _Rest.kwargs) -> _Result:
        def call(state: State) -> _Result:
            if state.num_starts:
                # Frees the old model, and restarts the numbers in layer names, as in a worker that has just started.
                keras.utils.clear_session()
            state.num_starts += 1
            return function(state, *args, **kwargs)

        if os.environ.get("HOROVOD_ELASTIC", "0") == "0":
            return call(State())
        # Imported only here: the program may run without Horovod.
        from strategies.collectives import horovod

        memory = horovod.ElasticMemory()
        state = State(memory)
        return horovod.run_elastic(lambda: call(state), memory)

    return elastic
