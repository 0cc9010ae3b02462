"""Elastic Horovod: training resumes from the last commit when processes are lost or added.

`horovodrun --host-discovery-script` starts new processes and assigns ranks; the remaining ones leave Horovod and join
it again, in the same process. Horovod has this for tf.keras 2 (`horovod.tensorflow.elastic`), which does not fit Keras
3 and takes the error of a grouped all-reduce for an error of the program (0.28.1). This module uses the layer below
it: Horovod's loop, and its notification of new hosts.
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

from strategies.collectives.horovod.runtime import (
    GLOO_VARIABLE,
    SESSION,
    has_own_gloo_limit,
    network_threads_yield,
)
from strategies.control_plane import DistributedError

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# horovodrun's driver waits for hosts equally long.
_JOIN_SECONDS = 600


class ElasticMemory(State):
    """The last commit of this process, and the number of commits. Horovod calls `sync`, `save` and `restore`.

    Attributes:
        value: anything that can be pickled; None before the first commit.
        num_commits: the number of commits of the run, including those before this process joined.
    """

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.value: Any = None
        self.num_commits = 0

    def keep(self, value: Any) -> None:
        """Keeps a value as the last commit, and checks for changed hosts; all processes call it.

        Raises:
            HostsUpdatedInterrupt: on all processes, if hosts were added or lost; `run_elastic` then starts again.
        """
        self.value, self.num_commits = value, self.num_commits + 1
        self.check_host_updates()

    def sync(self) -> None:
        """Gives all processes the newest commit: a new process has none, others may not have reached the last one."""
        _raise_on_lost_peer(self._take_newest)

    def _take_newest(self) -> None:
        numbers = hvd.allgather_object(self.num_commits)
        newest = max(numbers)
        if min(numbers) < newest:
            self.value = hvd.broadcast_object(self.value, root_rank=numbers.index(newest))
            self.num_commits = newest

    def save(self) -> None:
        """Does nothing: `keep` has stored the value."""

    def restore(self) -> None:
        """Does nothing: the restored state is `value`."""


def run_elastic(function: Callable[[], _Result], memory: ElasticMemory) -> _Result:
    """Calls `function` until it returns, again over the new set of processes whenever one was lost or added.

    Args:
        function: trains, starting from the memory's value. It creates its strategy and its model on each call.
        memory: holds what `function` keeps.
    """

    def attempt(_: ElasticMemory) -> _Result:
        _publish_ranks()
        return _raise_on_lost_peer(function)

    if not has_own_gloo_limit():
        # It limits the wait for new workers, which start TensorFlow first: after half a minute, all would fail.
        os.environ[GLOO_VARIABLE] = str(_JOIN_SECONDS)
    if not hvd.is_initialized():
        with network_threads_yield(num_others=1):
            hvd.init()
    result: _Result = run_fn(attempt, _rejoin)(memory)
    return result


def _raise_on_lost_peer(function: Callable[[], _Result]) -> _Result:
    """Turns a DistributedError or an error of a Horovod op into HorovodInternalError: Horovod's loop continues then.

    Only this function decides that. The error of any Horovod op contains its kernel's name or Horovod's own message
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


def _rejoin() -> None:
    """Leaves Horovod and joins it again, with the processes that exist then."""
    # Collectives of the last call of the function are abandoned: its watchdogs must not end the new session.
    SESSION.end()
    hvd.shutdown()
    gc.collect()
    # Waits until the launcher has assigned ranks and all others have joined; a new process starts TensorFlow first.
    with network_threads_yield(num_others=1):
        hvd.init()


def _publish_ranks() -> None:
    """Writes Horovod's ranks and sizes to ``os.environ``, which still has those of the start of the process."""
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        os.environ[f"HOROVOD_{name.upper()}"] = str(getattr(hvd, name)())
