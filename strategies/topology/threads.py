"""The threads of TensorFlow in a process that shares its node with others."""

from __future__ import annotations

import contextlib
import logging
import os

import tensorflow as tf

from strategies.topology.cluster import Cluster
from strategies.topology.cores import Threads, own_cores, threads_are_given, usable_cores

_logger = logging.getLogger(__name__)


def deal_threads(cluster: Cluster, has_started: bool) -> None:
    """Gives TensorFlow as many threads as this process has cores of its node, unless the user has said how many.

    Left alone, each process starts a thread for every core: two processes on two cores then take twice as long for a
    step of a small network, since the threads of one keep those of the other waiting. Does nothing for a process that
    has its node for itself, nor where a number is set, in the environment or with ``tf.config.threading``. One line of
    the log says what was done.

    Args:
        cluster: who shares the node.
        has_started: whether TensorFlow's runtime has, after which the number of its threads is fixed.
    """
    threading = tf.config.threading
    is_set = threading.get_intra_op_parallelism_threads() or threading.get_inter_op_parallelism_threads()
    if cluster.local_size == 1 or is_set or threads_are_given(os.environ):
        return
    cores = usable_cores()
    parents = cores
    # The parent may be gone, or be none of ours.
    with contextlib.suppress(OSError):
        parents = usable_cores(os.getppid())
    own = own_cores(cores, parents, cluster.local_rank, cluster.local_size)
    threads = Threads.for_cores(len(own))
    if has_started:
        _logger.info(
            "%d processes share %d cores, and TensorFlow had started here before the strategy was made: it keeps its "
            "threads. For %d within an operation, make the strategy first, or set TF_NUM_INTRAOP_THREADS=%d.",
            cluster.local_size,
            len(cores),
            threads.intra_op,
            threads.intra_op,
        )
        return
    threading.set_intra_op_parallelism_threads(threads.intra_op)
    threading.set_inter_op_parallelism_threads(threads.inter_op)
    _logger.info(
        "%d processes share %d cores: TensorFlow's threads here are %d within an operation and %d for operations side "
        "by side. TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS, OMP_NUM_THREADS or tf.config.threading change that.",
        cluster.local_size,
        len(cores),
        threads.intra_op,
        threads.inter_op,
    )
