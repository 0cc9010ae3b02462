"""Compares between processes whatever must be equal on all of them: a difference is an error on every process.

Processes exchange numbers of a fixed count: a digest of lines of text, checksums, lengths. All of them see the numbers
of all, so that they reach the same verdict. Texts follow only if digests differ, for the error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from strategies.collectives.descriptions import carrying
from strategies.collectives.process_group import ProcessGroup
from strategies.collectives.strings import gather_texts
from strategies.topology.agreement import differences


@dataclass(frozen=True)
class Agreement:
    """Compares lines and numbers between the processes of a job, with one collective per comparison.

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

    def compare(self, what: str, lines: Sequence[str], remedy: Callable[[Sequence[str]], str]) -> None:
        """Compares lines between all processes. All processes call it.

        Args:
            what: the name of the lines, for messages about processes that wait.
            lines: the lines that have to be equal, most informative for the user first.
            remedy: returns what all processes have to do alike, for the error, given the lines that differ.

        Raises:
            ValueError: on all processes, with each rank's lines that others do not have.
        """
        text = json.dumps(list(lines))
        # Of 62 bits, which an int64 holds.
        digest = int(hashlib.sha1(text.encode()).hexdigest(), 16) % 2**62
        if len({*map(tuple, self.gathered(what, digest))}) > 1:
            with carrying(what):
                lines_by_rank = [json.loads(each) for each in gather_texts(text, self.job)]
            common = set(lines_by_rank[0]).intersection(*lines_by_rank[1:])
            differing = [line for each in lines_by_rank for line in each if line not in common]
            raise ValueError(f"{remedy(differing)} {differences(lines_by_rank)}")

    def exchange(self, what: str, *numbers: int) -> list[list[int]]:
        """Returns the numbers at each position along the mesh axis "data". All processes call it.

        Args:
            what: the name of the numbers in the error.
            numbers: this process' numbers; every process passes the same count.

        Raises:
            ValueError: on all processes, if the processes of one replica pass different numbers.
        """
        return self.by_position(what, self.gathered(what, *numbers))

    def gathered(self, what: str, *numbers: int) -> list[list[int]]:
        """Returns the numbers of each process, by rank. All call it with equally many numbers."""
        own = tf.constant([[int(number) for number in numbers]], tf.int64)
        with carrying(what):
            by_rank: list[list[int]] = self.job.gather(own, equal_sizes=True).numpy().tolist()
        return by_rank

    def by_position(self, what: str, by_rank: Sequence[list[int]]) -> list[list[int]]:
        """Returns the numbers at each position along the mesh axis "data", given each process' numbers."""
        by_position = [by_rank[rank] for rank in range(0, len(by_rank), self.num_together)]
        if any(numbers != by_position[rank // self.num_together] for rank, numbers in enumerate(by_rank)):
            lines_by_rank = [[f"{what}: {', '.join(map(str, numbers))}"] for numbers in by_rank]
            raise ValueError(
                "Processes that hold parts of one replica have to be given the same dataset: it may depend on the "
                "position along the mesh axis 'data' (input_context.input_pipeline_id), not on the rank. "
                f"{differences(lines_by_rank)}"
            )
        return by_position
