"""Explains errors of collectives by what the other processes report, and reports this process' own to them.

An error that TensorFlow or Horovod raises because another process has exited names neither that process nor the step,
and comes with the traceback of the whole step. The user gets an error that names both.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator
from dataclasses import replace

import tensorflow as tf

from strategies.control_plane import Member, Position
from strategies.topology.rank_end import leave_traceback

_logger = logging.getLogger(__name__)

# Errors that no other process causes.
_LOCAL_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
)


@contextlib.contextmanager
def explained(member: Member, what: str = "") -> Iterator[None]:
    """Context manager: turns an error of a collective into a :class:`DistributedError` that names the process at fault.

    Args:
        member: this process in its job.
        what: the content of the collective; given where only the backend itself compares the ranks' tensors.
    """
    try:
        yield
    except tf.errors.OpError as error:
        reason = _reason(member, error, what)
        if reason is None:
            raise
        path = leave_traceback(member.rank, "".join(traceback.format_exception(error)))
        if path is not None:
            _logger.warning("The traceback of rank %d is in %s", member.rank, path)
        raise member.lost(f"{reason} (Here: rank {member.rank}, {member.position}.)") from None


@contextlib.contextmanager
def calling(member: Member, call: str) -> Iterator[None]:
    """Context manager: records that this process runs a method of a model, and reports an error that ends it."""
    before = member.position
    if before.call:
        # A nested call, such as `fit` evaluating.
        member.position = Position(f"{call} inside of {before.call}", before.epoch, 0)
    else:
        member.forget_failure()
        member.preemption.end_if_asked()
        member.position = Position(call)
    try:
        with explained(member):
            yield
    except BaseException as error:
        # The callback that made a nested call may handle its error.
        if not before.call:
            member.note_failure(error)
            member.preemption.drop_saver()
            if isinstance(error, SystemExit):
                member.wait_for_answers(error)
        raise
    finally:
        member.position = before if before.call else replace(member.position, call="", last_call=call)


@contextlib.contextmanager
def merge_errors_explained() -> Iterator[None]:
    """Context manager: explains the error of replicas that synchronize in a tf.cond, tf.while_loop or tf.function.

    Raises:
        ValueError: with what to write instead, in place of TensorFlow's error, which names internal functions.
    """
    try:
        yield
    except RuntimeError as error:
        if "`merge_call` called while defining" not in str(error):
            raise
        raise ValueError(
            "A step needs all replicas of this process inside of a tf.cond, a tf.while_loop or a tf.function of its "
            "own, where they cannot synchronize: it applies gradients there, reads a metric's result, sums over "
            "replicas or gathers rows. To apply the gradients of several steps at once, leave that to Keras, as by "
            "optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=4), in place of a tf.cond around "
            "apply_gradients. Else do it in every step, outside, and choose by tf.where: of gradients that are "
            "zero, of what is logged; and leave @tf.function to compile and fit."
        ) from error


def _reason(member: Member, error: tf.errors.OpError, what: str) -> str | None:
    if isinstance(error, _LOCAL_ERRORS) or member.store is None:
        return None
    if what and "Mismatched" in str(error):
        # The error comes from Horovod, which compares sizes itself.
        return (
            f"The ranks run different programs: in {what}, {str(error.message).rpartition('}} ')[2].split(' [Op')[0]}"
        )
    return member.explanation()
