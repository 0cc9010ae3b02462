"""The rows that the running code computes: all rows of a replica, those of a micro-batch, or rows that are analysed.

One frozen value holds what is known of them. It is entered by the functions of ``row_marks``, ``shares`` and
``replica.joinable``, and found by the code that asks how a tensor depends on rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection
from typing import Any

from strategies.frozen_context import FrozenContext


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The numbers of rows that are known beforehand.

    Attributes:
        of_replica: the numbers of rows that one replica has at a time.
        of_all: the numbers of rows that the batch has on all replicas.
    """

    of_replica: Collection[int] = ()
    of_all: Collection[int] = ()


@dataclasses.dataclass(frozen=True)
class RowContext:
    """The rows that the running code computes.

    Attributes:
        sizes: the numbers of rows while eager tensors of this thread are marked, else None.
        analysis: the `RowDependence` of a model that is traced only to analyse its outputs; None if none is.
        microbatches: the `RowDependence` on the rows of the micro-batches that are being computed; None if the replica
            computes all rows at once.
        num_microbatches: the number of micro-batches that the replica's rows are split into.
        are_joinable: whether the caller can join the micro-batches, for a loss that needs all of them.
    """

    sizes: Sizes | None = None
    analysis: Any = None
    microbatches: Any = None
    num_microbatches: int = 1
    are_joinable: bool = False


_context = FrozenContext("keras_strategies_rows", RowContext())


def row_context() -> RowContext:
    """Returns the rows that the running code computes."""
    return _context.get()


def changing_rows(**changed: Any) -> contextlib.AbstractContextManager[None]:
    """Context manager: the attributes of the row context given as arguments have other values."""
    return _context.changing(**changed)
