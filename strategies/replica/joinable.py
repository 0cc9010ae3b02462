"""Micro-batches that a pipeline can join again, for what looks at all rows of a replica at once.

Under GPipe's schedule all micro-batches are computed forward before the first backward pass begins, so a loss that is
neither a sum nor a mean over rows can be computed once, from all of them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from strategies.batches import shares


class NeedsAllMicrobatchesError(Exception):
    """A loss looks at all rows of a replica at once, and was given those of one micro-batch.

    Raised inside of :func:`joinable_microbatches` only.
    """


_are_joinable: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_joinable", default=False)


@contextlib.contextmanager
def joinable_microbatches() -> Iterator[None]:
    """Inside, a loss that looks at several rows raises :class:`NeedsAllMicrobatchesError`: the caller joins the rows.

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
    """Called by what looks at several rows, and has those of one of several micro-batches.

    Raises:
        NeedsAllMicrobatchesError: the caller can join them.
    """
    if _are_joinable.get() and shares.num_microbatches() > 1:
        raise NeedsAllMicrobatchesError
