"""The definition of a measurement. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One measurement, the same for all contenders.

    Attributes:
        model: "mlp" or "block".
        width: units between layers.
        batch_size: rows of one step.
        num_steps: number of steps per measurement.
        num_rounds: number of measurements of each contender.
    """

    model: str
    width: int
    batch_size: int
    num_steps: int
    num_rounds: int
