"""Threads of TensorFlow in a process that shares its node with others."""

from __future__ import annotations

import contextlib
import logging
import os

import tensorflow as tf

from strategies.topology.cluster import Cluster
from strategies.topology.cores import Threads, own_cores, threads_are_given, usable_cores

_logger = logging.getLogger(__name__)


def limit_threads(cluster: Cluster, has_started: bool) -> None:
    """Sets the number of TensorFlow's threads to this process' share of its node's cores, unless the user has set it.

    By default each process starts a thread for every core: two processes on two cores then take twice as long for a
    step of a small network, since their threads compete. Nothing is changed if the process is alone on its node, or if
    a number is set, in the environment or with ``tf.config.threading``. One log line reports the result.

    Args:
        cluster: the processes of the job.
        has_started: whether TensorFlow's runtime is initialised, after which the number of its threads is fixed.
    """
    threading = tf.config.threading
    is_set = threading.get_intra_op_parallelism_threads() or threading.get_inter_op_parallelism_threads()
    if cluster.local_size == 1 or is_set or threads_are_given(os.environ):
        return
    cores = usable_cores()
    parents = cores
    # The parent may have ended, or belong to another user.
    with contextlib.suppress(OSError):
        parents = usable_cores(os.getppid())
    own = own_cores(cores, parents, cluster.local_rank, cluster.local_size)
    threads = Threads.for_cores(len(own))
    if has_started:
        _logger.info(
            "%d processes share %d cores, but TensorFlow was initialised before the strategy was constructed, and "
            "keeps its threads. For %d intra-op threads construct the strategy first, or set "
            "TF_NUM_INTRAOP_THREADS=%d.",
            cluster.local_size,
            len(cores),
            threads.intra_op,
            threads.intra_op,
        )
        return
    threading.set_intra_op_parallelism_threads(threads.intra_op)
    threading.set_inter_op_parallelism_threads(threads.inter_op)
    _logger.info(
        "%d processes share %d cores: TensorFlow uses %d intra-op and %d inter-op threads in each. Set "
        "TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS, OMP_NUM_THREADS or tf.config.threading to change this.",
        cluster.local_size,
        len(cores),
        threads.intra_op,
        threads.inter_op,
    )


def computing_threads() -> int:
    """Returns the number of threads within one operation of this process: those that were set, or one for each core."""
    given = os.environ.get("TF_NUM_INTRAOP_THREADS") or tf.config.threading.get_intra_op_parallelism_threads()
    return int(given) or len(usable_cores())
