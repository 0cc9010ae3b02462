"""Micro-batches that a pipeline can concatenate again, for a loss that looks at all rows of a replica at once.

Under GPipe's schedule all micro-batches run forward before the first backward pass begins, so a loss that is neither a
sum nor a mean over rows can be computed once, from all of them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from strategies.batches import shares


class NeedsAllMicrobatchesError(Exception):
    """A loss looks at all rows of a replica at once, and was given those of one micro-batch.

    It is raised inside :func:`joinable_microbatches` only.
    """


_are_joinable: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_joinable", default=False)


@contextlib.contextmanager
def joinable_microbatches() -> Iterator[None]:
    """Context manager: a loss over several rows raises :class:`NeedsAllMicrobatchesError`, and the caller joins them.

    Example, in a pipeline whose schedule computes all micro-batches forward first:

        try:
            with layer_api.joinable_microbatches():
                loss = loss_of(first_microbatch)
        except layer_api.NeedsAllMicrobatchesError:
            loss = loss_of(joined(microbatches))
    """
    token = _are_joinable.set(True)
    try:
        yield
    finally:
        _are_joinable.reset(token)


def check_needs_no_others() -> None:
    """Checks that a loss that looks at several rows has all rows of the replica.

    Raises:
        NeedsAllMicrobatchesError: it has only one of several micro-batches, which the caller can join.
    """
    if _are_joinable.get() and shares.num_microbatches() > 1:
        raise NeedsAllMicrobatchesError
