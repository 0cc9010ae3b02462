"""Executes the programs of all ranks without devices: the operations that never end.

A rank starts its next operation when the one before has ended. A collective ends when all its members have started it.
A send ends when its receiver has started the receive, as between GPUs; or at once, as between processes whose messages
are stored. Members match if kind, contents, and bytes are the same. Every rank is executed, also those that run the
same program. The time grows linearly with the number of all operations.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from strategies.planning.dry_run.operations import Operation, OperationKind, Program
from strategies.planning.dry_run.placement import Placement


@dataclass(frozen=True)
class Execution:
    """The result of an execution.

    Attributes:
        ends: for each rank, the operations that it has ended: all of its program, unless it waits forever.
        waiting: by rank, the operation for which it waits forever.
        num_operations: the operations of all ranks.
    """

    ends: tuple[int, ...]
    waiting: dict[int, Operation]
    num_operations: int

    @property
    def is_complete(self) -> bool:
        """True if no rank waits forever."""
        return not self.waiting


def members_of(operation: Operation, rank: int, placement: Placement) -> tuple[int, ...]:
    """Returns the ranks that take part in an operation of a rank, the sender of a message first."""
    if operation.kind is OperationKind.COMPUTE:
        return (rank,)
    group = placement.group(rank, operation.axis)
    return group if operation.ends is None else tuple(group[end] for end in operation.ends)


def execute(programs: Sequence[Program], placement: Placement, *, stores_messages: bool = False) -> Execution:
    """Executes the programs.

    Args:
        programs: the program of each rank.
        placement: the ranks and their groups.
        stores_messages: True if a send ends at once.
    """
    numbers: dict[object, int] = {}
    lowered = {key: _Steps.create(each, numbers) for key, each in {id(each): each for each in programs}.items()}
    steps = [lowered[id(program)] for program in programs]
    # Of each rank, by route: the number of the members' channel, and of the members.
    channels: list[list[tuple[int, int]]] = []
    for rank, own in enumerate(steps):
        members = [members_of(each, rank, placement) for each in own.distinct]
        channels.append([(numbers.setdefault(each, len(numbers)), len(each)) for each in members])
    number = len(programs)
    position = [0] * number
    waiting: dict[tuple[int, int], list[int]] = {}
    stored: Counter[tuple[int, int]] = Counter()
    ready = deque(range(number))
    while ready:
        rank = ready.popleft()
        own, places = steps[rank], channels[rank]
        at = position[rank]
        while at < len(own.forms):
            form = own.forms[at]
            if form < 0:
                at += 1
                continue
            channel, size = places[own.routes[at]]
            key = channel, form
            if stores_messages and own.messages[at]:
                if own.messages[at] > 0:
                    stored[key] += 1
                    ready.extend(waiting.pop(key, ()))
                elif stored[key]:
                    stored[key] -= 1
                else:
                    waiting[key] = [rank]
                    break
                at += 1
                continue
            arrived = waiting.setdefault(key, [])
            arrived.append(rank)
            if len(arrived) < size:
                break
            del waiting[key]
            at += 1
            for member in arrived:
                if member != rank:
                    position[member] += 1
                    ready.append(member)
        position[rank] = at
    blocked = {rank: programs[rank][at] for rank, at in enumerate(position) if at < len(programs[rank])}
    return Execution(tuple(position), blocked, sum(map(len, programs)))


@dataclass(frozen=True)
class _Steps:
    """A program as numbers, one of each list for each operation.

    Attributes:
        forms: the number of what must be equal on all members; -1 for a computation.
        routes: the number of the axis and ends, a position in `distinct`.
        messages: 1 for a send, -1 for a receive, else 0.
        distinct: an operation of each axis and ends.
    """

    forms: list[int]
    routes: list[int]
    messages: list[int]
    distinct: list[Operation]

    @classmethod
    def create(cls, program: Program, numbers: dict[object, int]) -> _Steps:
        """Returns the numbers of a program; those of `forms` are added to `numbers`, which all programs share."""
        forms, routes, messages = [], [], []
        known: dict[object, int] = {}
        distinct: list[Operation] = []
        for each in program:
            computes = each.kind is OperationKind.COMPUTE
            forms.append(-1 if computes else numbers.setdefault(each.form, len(numbers)))
            route = known.setdefault((each.axis, each.ends), len(known))
            if route == len(distinct):
                distinct.append(each)
            routes.append(route)
            messages.append({OperationKind.SEND: 1, OperationKind.RECEIVE: -1}.get(each.kind, 0))
        return cls(forms, routes, messages, distinct)
