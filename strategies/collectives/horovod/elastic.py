"""Elastic Horovod: goes on with the processes that are left, or have come, from what was committed last.

`horovodrun --host-discovery-script` starts processes anew and deals out ranks; those that run on leave Horovod and
join it again, in the same process. Horovod has that for tf.keras 2 (`horovod.tensorflow.elastic`), which does not fit
Keras 3 and takes the error of a grouped all-reduce for one of the program (0.28.1). Here are its own parts from below
that: the loop, and the notice of new hosts.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.elastic import State, run_fn
from horovod.common.exceptions import HorovodInternalError

from strategies.collectives.horovod.runtime import GLOO_VARIABLE, SESSION, has_own_gloo_limit
from strategies.collectives.horovod.threads import network_threads_yield
from strategies.control_plane import DistributedError

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# As long as the driver of horovodrun waits for hosts.
_SECONDS_TO_COME = 600


class ElasticMemory(State):
    """The last commit of this process, and the number of its commits. Horovod calls the methods.

    Attributes:
        value: anything that can be pickled; None before the first commit.
        num_commits: of the run, those before this process came included.
    """

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.value: Any = None
        self.num_commits = 0

    def keep(self, value: Any) -> None:
        """Keeps a value as the last commit, and lets workers in that have come since; all processes call it.

        Raises:
            HostsUpdatedInterrupt: on all processes, if hosts have come or gone: `run_elastic` begins anew.
        """
        self.value, self.num_commits = value, self.num_commits + 1
        self.check_host_updates()

    def sync(self) -> None:
        """Gives all processes the newest commit: one that has come has none, others may not have reached the last."""
        _lost_peers_told(self._take_newest)

    def _take_newest(self) -> None:
        numbers = hvd.allgather_object(self.num_commits)
        newest = max(numbers)
        if min(numbers) < newest:
            self.value = hvd.broadcast_object(self.value, root_rank=numbers.index(newest))
            self.num_commits = newest

    def save(self) -> None:
        """Nothing: `keep` has kept it."""

    def restore(self) -> None:
        """Nothing: what is restored is `value`."""


def run_elastic(function: Callable[[], _Result], memory: ElasticMemory) -> _Result:
    """Calls `function` again, over other processes, whenever one was lost or has come, until it returns.

    Args:
        function: trains, from the memory's value on. It makes its strategy and its model itself, each time.
        memory: holds what `function` keeps.
    """

    def attempt(_: ElasticMemory) -> _Result:
        _publish_ranks()
        return _lost_peers_told(function)

    if not has_own_gloo_limit():
        # It limits the wait for workers that come, which start TensorFlow first: after half a minute, all would end.
        os.environ[GLOO_VARIABLE] = str(_SECONDS_TO_COME)
    if not hvd.is_initialized():
        with network_threads_yield(num_others=1):
            hvd.init()
    result: _Result = run_fn(attempt, _join_again)(memory)
    return result


def _lost_peers_told(function: Callable[[], _Result]) -> _Result:
    """Turns the error of any of Horovod's ops into the one after which Horovod's loop goes on.

    This is the only place that decides it. Whatever the op, its kernel's name or Horovod's own message is in the error
    (seen: UnknownError of HorovodGroupedAllreduce, of HorovodAllreduce and HorovodBroadcast).
    """
    try:
        return function()
    except (tf.errors.OpError, DistributedError) as error:
        if isinstance(error, tf.errors.OpError) and "orovod" not in f"{error.message}{error.node_def}":
            raise
        _logger.warning("Another process was lost. Going on without it, from the last commit. (%s)", _short(error))
        raise HorovodInternalError(_short(error)) from None


def _short(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]


def _join_again() -> None:
    """Leaves Horovod and joins it again, with the processes that there are then."""
    # Nobody waits any more for collectives that the function had made: its watchdogs must not end the new session.
    SESSION.end()
    hvd.shutdown()
    gc.collect()
    # Until the launcher has dealt out ranks and all others have come; a new process starts TensorFlow first.
    with network_threads_yield(num_others=1):
        hvd.init()


def _publish_ranks() -> None:
    """Writes Horovod's numbers into the environment, where Python has those that the process was started with."""
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        os.environ[f"HOROVOD_{name.upper()}"] = str(getattr(hvd, name)())
