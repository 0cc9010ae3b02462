"""The means of losses, one for each output of several, that Keras updates wherever it computes a loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from keras import ops


class LossTrackers:
    """Holds the updates of a model's means of losses while micro-batches are computed, and makes one of them.

    Args:
        model: compiled.
    """

    def __init__(self, model: Any) -> None:
        self._loss = getattr(model, "_compile_loss", None)
        # By metric: what it was told of each micro-batch.
        self._told: dict[int, tuple[Any, list[Any]]] = {}

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Inside, nothing is updated."""
        changed: list[Any] = []

        def hold(metric: Any) -> None:
            def told(value: Any, sample_weight: Any = None) -> None:
                self._told.setdefault(id(metric), (metric, []))[1].append(value)

            metric.update_state = told
            changed.append(metric)

        for metric in self._loss.metrics if self._loss is not None else ():
            hold(metric)
        try:
            yield
        finally:
            for metric in changed:
                del metric.update_state

    def update(self, shares: Sequence[Any], num_rows: Any) -> None:
        """Updates with the batch's losses: the micro-batches' ones, weighed.

        Args:
            shares: of each micro-batch in the rows of the batch.
            num_rows: of the batch; int, or a tensor where it is not known beforehand: Keras weighs by it only if it is.
        """
        for metric, values in self._told.values():
            total = sum(value * ops.cast(share, value.dtype) for value, share in zip(values, shares, strict=True))
            metric.update_state(total, sample_weight=num_rows if isinstance(num_rows, int) else None)
