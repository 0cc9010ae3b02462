"""Differences between a model under a strategy and the same model on one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A layer whose numbers under a strategy differ from those of one device.

    Attributes:
        layer: its path, or its name if it has none.
        difference: one sentence: how it differs from one device.
        fix: one sentence: how to make it equal.

    Example:

        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activity_regularizer="l2")])
        assert strategy.check(model) == ()
    """

    layer: str
    difference: str
    fix: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.difference} {self.fix}"
