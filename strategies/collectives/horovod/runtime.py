"""Horovod in this process: its start, its threads, its process sets, its shutdown."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from strategies.collectives.horovod.process_sets import (
    Ranks,
    check_agreement,
    check_coordinates,
    check_promised_world,
    check_running,
    check_world,
    process_sets,
)
from strategies.topology.devices import is_gpu
from strategies.topology.mesh import DeviceMesh

_logger = logging.getLogger(__name__)

#: The environment variable with the seconds that Gloo waits for a process that has not ended, but does not answer.
GLOO_VARIABLE = "HOROVOD_GLOO_TIMEOUT_SECONDS"
# The limit that horovodrun sets if its user sets none; and about 24 days, for no limit.
_GLOO_SECONDS, _NEVER_SECONDS = "30", 2**21
_THREADS = Path("/proc/self/task")


def start(
    *meshes: DeviceMesh,
    channel_axes: Sequence[str] = ("pipe",),
    all_pairs: bool = False,
    timeout_seconds: float | None = None,
) -> int:
    """Initialises Horovod with the process sets that collectives over `meshes` need; all processes call it alike.

    Horovod takes process sets when it starts. One is created for every group along an axis that is neither one
    process nor all of them, and one for every pair of positions with a channel: each costs its members a short
    exchange per cycle of Horovod, busy or not. If Horovod runs already, it is used as it is, provided that it has
    these sets; with HOROVOD_DYNAMIC_PROCESS_SETS=1 the missing ones are added.

    Args:
        meshes: every mesh that `HorovodCollectives` will be made for, one coordinate per process.
        channel_axes: the axes along which `Collectives.channel` will be used.
        all_pairs: whether channels join any two positions of those axes. If not, they join neighbours, among
            them the last position and the first; on axes of up to three positions these are any two.
        timeout_seconds: how long Gloo waits for a process that has not ended, but does not answer; 0 for no limit, None
            for Horovod's default. HOROVOD_GLOO_TIMEOUT_SECONDS takes precedence if it is set to anything but 30, the
            number that horovodrun sets by itself.

    Returns:
        This process' rank.

    Raises:
        ValueError: a mesh that is not one coordinate for each process of Horovod, process sets that a running
            Horovod lacks, an unknown axis, an initialisation that failed.
    """
    for mesh in meshes:
        check_coordinates(mesh)
    needed = process_sets(meshes, channel_axes, all_pairs=all_pairs)
    if not hvd.is_initialized():
        # Checked before, too: after a failed initialisation Horovod accepts no other, and its error says little.
        check_promised_world(meshes, os.environ)
        if timeout_seconds is not None and not has_own_gloo_limit():
            # Our own limit expires first: its error says who is missing, and where.
            limit = math.ceil(timeout_seconds) + 5 if timeout_seconds else _NEVER_SECONDS
            os.environ[GLOO_VARIABLE] = str(limit)
        try:
            # The first thread is the one that computes and sends; it must be able to preempt others.
            with network_threads_yield(num_others=1):
                hvd.init(process_sets=[hvd.ProcessSet(list(ranks)) for ranks in needed])
        except ValueError as error:
            raise ValueError(
                f"Horovod did not start; what it wrote above says why. All processes must name the same meshes, "
                f"of as many coordinates as there are processes. Received: {[mesh.axes for mesh in meshes]}."
            ) from error
    for mesh in meshes:
        check_world(mesh, hvd.size())
    if os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "0") != "0":
        for ranks in needed:
            if ranks not in running_sets():
                with network_threads_yield():
                    hvd.add_process_set(list(ranks))
    check_running(needed, running_sets())
    return int(hvd.rank())


def gathered(value: Any) -> list[Any]:
    """Returns the values of all processes, by rank, exchanged in host memory on any device. All processes call it."""
    with tf.init_scope(), tf.device("CPU:0"):
        values: list[Any] = hvd.allgather_object(value)
    return values


@contextlib.contextmanager
def network_threads_yield(num_others: int = 0) -> Iterator[None]:
    """Context manager: threads started in the block, except the first `num_others`, do not preempt others. Linux only.

    The network thread of Gloo (Horovod 0.28.1) wakes up when a peer sends. If Horovod's own thread holds the lock of
    that connection at this moment, the network thread does not block on the lock: it polls epoll, which returns
    immediately, until the scheduler preempts it. If both share a core, because the process is pinned to one or the
    others are busy, the network thread has preempted the very thread that it waits for, and spins for its whole time
    slice: 2 to 3 ms for each exchange (measured on Linux 6.18, one core per process: an all-reduce of 140 kB took
    4.3 ms, here 1.2 ms).

    With Linux' policy SCHED_BATCH, which any thread may adopt, a thread that wakes up does not preempt others. The
    network thread then runs when the core is free, or in its turn. If there are enough cores, this has no cost.
    """
    before = _thread_ids()
    yield
    # Thread ids ascend in the order of creation.
    for thread in sorted(_thread_ids() - before)[num_others:]:
        # The thread may have ended, or a container may forbid the call: then exchanges are only slower.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _thread_ids() -> set[int]:
    return {int(entry.name) for entry in _THREADS.iterdir()} if _THREADS.is_dir() else set()


def has_own_gloo_limit() -> bool:
    """Returns True if the user has set Gloo's timeout, to another number than horovodrun sets by itself."""
    return os.environ.get(GLOO_VARIABLE, _GLOO_SECONDS) != _GLOO_SECONDS


def implementation(device: str) -> str:
    """Returns the name of the library that reduces tensors of a device, as Horovod was built and started.

    Between GPUs it is NCCL if Horovod was built with it; otherwise tensors pass through the hosts.
    """
    if is_gpu(device) and hvd.nccl_built():
        return "NCCL"
    return "MPI" if hvd.mpi_enabled() else "Gloo"


class _Session:
    """The time from one start of Horovod to its end; in an elastic job a process sees several.

    Horovod is process-wide, so this object has to be, too. Watchdogs of an earlier session must not end the next one.
    """

    def __init__(self) -> None:
        self._number = 0

    def end(self) -> None:
        """Disables all functions that :meth:`ender` has returned before."""
        self._number += 1

    def ender(self) -> Callable[[str], None]:
        """Returns a function of a reason, which shuts Horovod down on all processes, in this session only."""
        number = self._number

        def shut_down(why: str) -> None:
            if number == self._number:
                # Horovod's own error does not say why.
                _logger.error(why)
                hvd.shutdown()

        return shut_down


SESSION = _Session()


class _Instances:
    """Numbers the instances of the collectives, equally on all processes.

    Horovod's queues are process-wide, so this counter has to be, too. Processes that joined later, after a failure,
    have created fewer instances: all agree on the next number that no process has used.
    """

    def __init__(self) -> None:
        self._next = 0

    def agree(self, mesh: DeviceMesh, rank: int) -> int:
        """Returns the number of a new instance; raises on all processes if the arguments of any one are wrong."""
        with tf.init_scope():
            announced: list[tuple[int, DeviceMesh, int]] = hvd.allgather_object((self._next, mesh, rank))
        numbers, meshes, ranks = zip(*announced, strict=True)
        self._next = max(numbers) + 1
        check_agreement(meshes, ranks)
        return self._next - 1


INSTANCES = _Instances()


def running_sets() -> dict[Ranks, int]:
    """Returns the id of every process set that Horovod has now, by ranks."""
    # Horovod has no public list of them; 0.28.1 is its last release.
    registered = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    return {tuple(ranks): number for number, ranks in registered.items()}


def find_set(ranks: tuple[int, ...]) -> Any:
    """Returns Horovod's object for the existing process set of these ranks."""
    if len(ranks) == hvd.size():
        return hvd.global_process_set
    found = hvd.ProcessSet(list(ranks))
    found.process_set_id = running_sets()[tuple(sorted(ranks))]
    return found
