"""The definition of a measurement. Standard library only."""

from dataclasses import dataclass

#: The parts of the package that `--price` switches off.
ROW_WEIGHTS, AGREEMENT, LEDGER = "row weights", "agreement of batches", "ledger"


@dataclass(frozen=True)
class Workload:
    """One measurement, the same for all contenders.

    Attributes:
        model: a name in `models.MODELS`.
        batch_size: images in one step on all devices together.
        num_steps: number of measured steps, in one epoch.
        num_skipped: number of steps before them in the same epoch, not measured: they use up the batches that the
            pipeline prefetched while others were measured.
        num_rounds: number of measurements of each contender.
        jit_compile: whether XLA compiles the steps of plain Keras and of ours.
    """

    model: str
    batch_size: int
    num_steps: int
    num_skipped: int
    num_rounds: int
    jit_compile: bool = False


@dataclass(frozen=True)
class Job:
    """One strategy, as a job of processes or in one process.

    Attributes:
        row: the row in the tables.
        num_processes: the number of processes, with a device each; 1 for one process with two devices.
        parts: what can be switched off.
    """

    row: str
    num_processes: int
    parts: tuple[str, ...]
