"""Checks that processes that hold parts of one replica read the same first batch in ``fit``, ``evaluate``, ``predict``.

Otherwise each would compute with other rows, without any error. So all processes exchange a checksum of that batch, and
a difference ends the step on all of them before it begins. Later batches are not checked. For the ``*_on_batch``
methods, the first call with each model is checked.

The contract is tested in ``tests/strategies/processes/spanning_refusals.py``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup

_REFUSAL = "Processes that hold parts of one replica read different batches"
_MESSAGE = (
    f"{_REFUSAL}. All of them have to be given the same rows, labels and weights, in the same order: inputs may depend "
    "on the position along the mesh axis 'data' (input_context.input_pipeline_id), not on the rank. Shuffle with a "
    "seed, or call keras.utils.set_random_seed with the same number on all ranks. Received: on ranks {} a first batch "
    "that differs from that of the first rank of their replica."
)


class SameBatches:
    """Compares batches between processes.

    Args:
        job: the group of all processes; the processes of one replica have consecutive ranks.
        num_together: the number of processes that hold the parts of one replica.
    """

    def __init__(self, job: ProcessGroup, num_together: int) -> None:
        self._job = job
        self._num_together = num_together
        with tf.device("CPU:0"):
            self._is_due = tf.Variable(False, trainable=False, name="compare_batches")

    def begin(self) -> None:
        """Requests that the next batch be compared. All processes call it."""
        self._is_due.assign(True)

    def compared(self, batch: Any) -> tuple[Any, tf.Tensor | None]:
        """Compares a batch, if it is due.

        Args:
            batch: a nest.

        Returns:
            The same nest, whose tensors depend on the comparison, and the comparison's bool scalar; None if the code
            runs eagerly or the nest has no tensors.
        """
        flat = tf.nest.flatten(batch, expand_composites=True)
        chosen = [i for i, each in enumerate(flat) if tf.is_tensor(each)]
        if not chosen:
            return batch, None
        with tf.device("CPU:0"):
            done = tf.cond(self._is_due, lambda: self._compare([flat[i] for i in chosen]), lambda: tf.constant(True))
        with tf.control_dependencies([done]):
            for i in chosen:
                flat[i] = tf.identity(flat[i])
        together = tf.nest.pack_sequence_as(batch, flat, expand_composites=True)
        return together, None if tf.executing_eagerly() else done

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Context manager: turns TensorFlow's error of a failed comparison into a ``ValueError`` of ours."""
        try:
            yield
        except tf.errors.OpError as error:
            found = re.search(rf"{_REFUSAL}.*?of their replica\.", str(error))
            if found is None:
                raise
            raise ValueError(found[0]) from None

    def _compare(self, tensors: list[tf.Tensor]) -> tf.Tensor:
        contents = tf.strings.join([tf.io.serialize_tensor(each) for each in tensors], separator="/")
        own = tf.strings.to_hash_bucket_fast(contents, 2**62)
        table = tf.reshape(self._job.gather(tf.reshape(own, [1]), equal_sizes=True), [-1, self._num_together])
        differs = tf.reshape(tf.not_equal(table, table[:, :1]), [-1])
        is_same = tf.logical_not(tf.reduce_any(differs))
        others = tf.strings.format(_MESSAGE, tf.reshape(tf.where(differs), [-1]), summarize=-1)
        with tf.control_dependencies([tf.debugging.Assert(is_same, [others]), self._is_due.assign(False)]):
            return tf.identity(is_same)
