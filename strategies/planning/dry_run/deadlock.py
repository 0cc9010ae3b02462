"""Explains an execution that does not end: the ranks that wait, a cycle of them, and members that differ.

The idea is that of `strategies.control_plane.waits`, which looks at the ranks of a running job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategies.planning.dry_run.execution import Execution, members_of
from strategies.planning.dry_run.operations import Operation, Program
from strategies.planning.dry_run.placement import Placement

_MOST_SHOWN = 8


@dataclass(frozen=True)
class Wait:
    """A rank that waits forever.

    Attributes:
        rank: the rank.
        operation: what it has started.
        position: the position of the operation in its program.
        missing: the members that have not started it.
    """

    rank: int
    operation: Operation
    position: int
    missing: tuple[int, ...]


@dataclass(frozen=True)
class Deadlock:
    """Ranks that wait forever.

    Attributes:
        waits: by rank.
        ended: ranks that have ended their programs.
        cycle: ranks that each wait for the next, and the last for the first; or a chain to a rank that has ended,
            or that waits in another operation of the same group.
    """

    waits: Mapping[int, Wait]
    ended: frozenset[int]
    cycle: tuple[int, ...]

    @property
    def is_cycle(self) -> bool:
        """True if the last rank of `cycle` waits for the first."""
        return self.cycle[-1] in self.waits and self.cycle[0] in self.waits[self.cycle[-1]].missing

    def mismatches(self) -> list[tuple[Wait, Wait]]:
        """Returns pairs of ranks that wait for each other in different operations of one group."""
        found = []
        for wait in self.waits.values():
            for rank in wait.missing:
                peer = self.waits.get(rank)
                is_pair = peer is not None and wait.rank < rank and wait.rank in peer.missing
                if peer is not None and is_pair and wait.operation.ends is peer.operation.ends is None:
                    found.append((wait, peer))
        return found

    def __str__(self) -> str:
        shown = self.cycle[:_MOST_SHOWN]
        lines = [f"{len(self.waits)} ranks wait forever."]
        for rank in shown:
            if rank in self.ended:
                lines.append(f"  rank {rank} has ended its step")
            else:
                wait = self.waits[rank]
                lines.append(
                    f"  rank {rank} waits for {_ranks(wait.missing)} in operation {wait.position} of its step, "
                    f"{wait.operation}"
                )
        if len(self.cycle) > len(shown):
            lines.append(f"  and {len(self.cycle) - len(shown)} more ranks")
        elif self.is_cycle:
            lines.append(f"  so each waits for the next one, and rank {self.cycle[-1]} for rank {self.cycle[0]}")
        for one, other in self.mismatches()[:1]:
            lines.append(
                f"Ranks {one.rank} and {other.rank} call different operations of one group along "
                f"{one.operation.axis!r}: {one.operation}, and {other.operation}."
            )
        return "\n".join(lines)


def deadlock_of(execution: Execution, programs: Sequence[Program], placement: Placement) -> Deadlock | None:
    """Returns the ranks that wait forever; None if the execution has ended.

    Args:
        execution: of the programs.
        programs: the program of each rank.
        placement: the ranks and their groups.
    """
    if execution.is_complete:
        return None
    waits = {}
    for rank, operation in execution.waiting.items():
        members = members_of(operation, rank, placement)
        missing = tuple(
            each
            for each in members
            if each != rank and (each not in execution.waiting or execution.waiting[each].form != operation.form)
        )
        waits[rank] = Wait(rank, operation, execution.ends[rank], missing)
    ended = frozenset(rank for rank in range(len(programs)) if rank not in waits)
    return Deadlock(waits, ended, _cycle(waits))


def _cycle(waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """Returns ranks that each wait for the next: a cycle, or a chain that ends at a rank that does not wait."""
    path: list[int] = []
    rank = min(waits)
    while rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank].missing[0]
    return tuple(path[path.index(rank) :]) if rank in path else (*path, rank)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
