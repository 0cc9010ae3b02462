"""Runs a job dry: its ranks, their programs, the execution of these, and the findings.

The contract is tested by the tests of its parts, with `tests/strategies/planning/dry_run/test_real_order.py`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from strategies.planning.dry_run.deadlock import Deadlock, deadlock_of
from strategies.planning.dry_run.execution import Execution, execute
from strategies.planning.dry_run.imbalance import PositionSizes, imbalances, position_sizes
from strategies.planning.dry_run.job import Job
from strategies.planning.dry_run.operations import Program
from strategies.planning.dry_run.placement import Placement
from strategies.planning.dry_run.programs import programs_of
from strategies.planning.dry_run.traffic import Traffic, traffic_of
from strategies.topology.crossings import warning


@dataclass(frozen=True)
class DryRun:
    """A training step of all ranks, without devices. Make one with `DryRun.create`.

    Attributes:
        job: the job.
        placement: its ranks.
        programs: the program of each position along "pipe".

    Example:

        job = Job.create(Transformer(8, 64, 4), Layout(num_data=2, num_stages=2), batch_size=8)
        run = DryRun.create(job)
        assert run.deadlock is None and run.placement.num_ranks == 4
    """

    job: Job
    placement: Placement
    programs: tuple[Program, ...] = field(repr=False)

    @classmethod
    def create(cls, job: Job) -> DryRun:
        """Returns the dry run of a job.

        Raises:
            ValueError: the schedule's table cannot run; the message shows it, with the fault marked.
        """
        return cls(job, Placement.create(job.mesh, job.layout.host_size), programs_of(job))

    @functools.cached_property
    def program_of_rank(self) -> tuple[Program, ...]:
        """The program of each rank."""
        ranks = range(self.placement.num_ranks)
        return tuple(self.programs[self.placement.position(rank, "pipe")] for rank in ranks)

    @functools.cached_property
    def execution(self) -> Execution:
        """The execution in which each send waits for its receive."""
        return execute(self.program_of_rank, self.placement)

    @functools.cached_property
    def deadlock(self) -> Deadlock | None:
        """The ranks that wait forever; None if there are none."""
        return deadlock_of(self.execution, self.program_of_rank, self.placement)

    @functools.cached_property
    def traffic(self) -> Traffic:
        """The bytes that ranks send each other."""
        return traffic_of(self.program_of_rank, self.placement)

    @functools.cached_property
    def positions(self) -> tuple[PositionSizes, ...]:
        """The sizes by position along "pipe"."""
        return position_sizes(self.job)

    @functools.cached_property
    def imbalances(self) -> tuple[str, ...]:
        """A sentence for each imbalance, and for layers that are split over hosts."""
        crossing = warning(self.placement.mesh, self.placement.hosts)
        found = imbalances(self.job, self.positions, self.traffic.leaving())
        return (*found, *([] if crossing is None else [crossing]))
