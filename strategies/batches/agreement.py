"""Exchanges numbers about datasets between processes; processes that hold parts of one replica must have equal ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from strategies.collectives.descriptions import carrying
from strategies.collectives.process_group import ProcessGroup


@dataclass(frozen=True)
class Agreement:
    """Gathers numbers from all processes of a job, with one collective per call.

    Args:
        job: all processes; the processes of one replica have consecutive ranks.
        num_together: the number of processes that hold one replica together; 1 where each process holds whole replicas.
    """

    job: ProcessGroup
    num_together: int = 1

    @property
    def position(self) -> int:
        """The position, along the mesh axis "data", of this process' replicas."""
        return self.job.rank // self.num_together

    @property
    def num_positions(self) -> int:
        """The number of processes, or of groups of processes that hold one replica, along the mesh axis "data"."""
        return self.job.num_processes // self.num_together

    def exchange(self, what: str, *numbers: int) -> list[list[int]]:
        """Returns the numbers at each position along the mesh axis "data". All processes call it.

        Args:
            what: the name of the numbers in the error.
            numbers: this process' numbers; every process passes the same count.

        Raises:
            ValueError: on all processes, if the processes of one replica pass different numbers.
        """
        return self.by_position(what, self.gathered(what, *numbers))

    def gathered(self, what: str, *numbers: int) -> np.ndarray:
        """Returns the numbers of each process, ``[processes, numbers]``. All call it with equally many numbers."""
        own = tf.constant([[int(number) for number in numbers]], tf.int64)
        with carrying(what):
            by_rank: np.ndarray = self.job.gather(own, equal_sizes=True).numpy()
        return by_rank

    def by_position(self, what: str, by_rank: np.ndarray) -> list[list[int]]:
        """Returns the numbers at each position along the mesh axis "data", given each process' numbers."""
        num_numbers = by_rank.shape[1]
        by_position = by_rank.reshape(self.num_positions, self.num_together, num_numbers)
        if (by_position != by_position[:, :1]).any():
            raise ValueError(
                "Processes that hold parts of one replica have to be given the same dataset: it may depend on the "
                "position along the mesh axis 'data' (input_context.input_pipeline_id), not on the rank. Received, by "
                f"rank, {what}: {by_rank.squeeze(1).tolist() if num_numbers == 1 else by_rank.tolist()}."
            )
        numbers_by_position: list[list[int]] = by_position[:, 0].tolist()
        return numbers_by_position
