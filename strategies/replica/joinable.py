"""Micro-batches that a pipeline can concatenate again, for a loss that looks at all rows of a replica at once.

Under GPipe's schedule all micro-batches run forward before the first backward pass begins, so a loss that is neither a
sum nor a mean over rows can be computed once, from all of them.
"""

from __future__ import annotations

import contextlib

from strategies.batches.row_context import changing_rows, row_context


class NeedsAllMicrobatchesError(Exception):
    """A loss looks at all rows of a replica at once, and was given those of one micro-batch.

    It is raised inside :func:`joinable_microbatches` only.
    """


def joinable_microbatches() -> contextlib.AbstractContextManager[None]:
    """Context manager: a loss over several rows raises :class:`NeedsAllMicrobatchesError`, and the caller joins them.

    Example, in a pipeline whose schedule computes all micro-batches forward first:

        try:
            with layer_api.joinable_microbatches():
                loss = loss_of(first_microbatch)
        except layer_api.NeedsAllMicrobatchesError:
            loss = loss_of(joined(microbatches))
    """
    return changing_rows(are_joinable=True)


def check_needs_no_others() -> None:
    """Checks that a loss that looks at several rows has all rows of the replica.

    Raises:
        NeedsAllMicrobatchesError: it has only one of several micro-batches, which the caller can join.
    """
    rows = row_context()
    if rows.are_joinable and rows.num_microbatches > 1:
        raise NeedsAllMicrobatchesError
