"""Replaces parts of the package by ones that do nothing, in the process of a contender of `--price`.

Users have no switch for these parts, so methods are replaced, which type checkers refuse.
"""

from __future__ import annotations

from typing import Any

from strategies.batches.agreed_dataset import AgreedIterator
from strategies.collectives.ledger import Ledger


def never_agree() -> None:
    """Lets each process believe that all others have a batch with as many rows as its own."""

    def alone(iterator: AgreedIterator, have_more: bool, num_rows: int) -> tuple[list[list[int]], None]:
        return [[int(have_more), num_rows]] * iterator._agreement.num_positions, None

    AgreedIterator._exchange_state = alone  # type: ignore[method-assign, assignment]


def never_count() -> None:
    """Leaves collectives out of the ledger."""

    def nothing(ledger: Ledger, *_: Any, **__: Any) -> Any:
        return ledger._nothing

    Ledger.entry = nothing  # type: ignore[method-assign, assignment]
