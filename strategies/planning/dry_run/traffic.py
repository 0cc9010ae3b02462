"""The bytes that ranks send each other in a step: by axis, inside hosts and between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategies.planning.dry_run.execution import members_of
from strategies.planning.dry_run.operations import Operation, OperationKind, Program
from strategies.planning.dry_run.placement import Placement


@dataclass(frozen=True)
class Traffic:
    """Bytes of a step. A collective is a ring in the order of its members: each rank sends to the next.

    Attributes:
        inside: bytes between the ranks of a host, by axis.
        between: bytes between hosts, by axis.
        links: bytes from one host to another, by both.
        groups_of_host: for each host, the number of groups of each axis that cross hosts and have a rank there.
    """

    inside: Mapping[str, float]
    between: Mapping[str, float]
    links: Mapping[tuple[int, int], float]
    groups_of_host: Mapping[int, Mapping[str, int]]

    @property
    def busiest(self) -> tuple[tuple[int, int], float] | None:
        """The pair of hosts with the most bytes from the first to the second; None without bytes between hosts."""
        return max(self.links.items(), key=lambda item: (item[1], item[0])) if self.links else None

    def leaving(self) -> dict[int, float]:
        """Returns the bytes that leave each host that sends any."""
        found: Counter[int] = Counter()
        for (source, _), num_bytes in self.links.items():
            found[source] += num_bytes  # type: ignore[assignment]
        return dict(found)


def traffic_of(programs: Sequence[Program], placement: Placement) -> Traffic:
    """Returns the bytes that all ranks send.

    Args:
        programs: the program of each rank.
        placement: the ranks and their groups.
    """
    summaries = {key: _by_route(each) for key, each in {id(each): each for each in programs}.items()}
    inside: dict[str, float] = defaultdict(float)
    between: dict[str, float] = defaultdict(float)
    links: dict[tuple[int, int], float] = defaultdict(float)
    for rank, program in enumerate(programs):
        host = placement.host(rank)
        for operation, operations in summaries[id(program)]:
            members = members_of(operation, rank, placement)
            num_bytes = sum(each.bytes_sent(len(members)) * number for each, number in operations.items())
            target = placement.host(members[(members.index(rank) + 1) % len(members)])
            if not num_bytes:
                continue
            (inside if target == host else between)[operation.axis] += num_bytes
            if target != host:
                links[host, target] += num_bytes
    groups: dict[int, Counter[str]] = defaultdict(Counter)
    for axis in placement.mesh.axis_names:
        for group in placement.groups(axis):
            hosts = {placement.host(rank) for rank in group}
            for host in hosts if len(hosts) > 1 else ():
                groups[host][axis] += 1
    return Traffic(dict(inside), dict(between), dict(links), {host: dict(each) for host, each in groups.items()})


def _by_route(program: Program) -> list[tuple[Operation, Counter[Operation]]]:
    """Returns the operations that send to the same members, each with its number, and one of them before these."""
    found: dict[tuple[object, ...], Counter[Operation]] = {}
    for each in program:
        if each.kind is not OperationKind.COMPUTE:
            plain = Operation(each.kind, "", each.axis, each.ends, each.num_bytes)
            found.setdefault((each.axis, each.ends), Counter())[plain] += 1
    return [(next(iter(operations)), operations) for operations in found.values()]
