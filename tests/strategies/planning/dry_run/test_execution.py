"""Programs of all schedules and meshes end; operations without partners do not."""

from __future__ import annotations

from collections import Counter

import pytest

from strategies.planning.dry_run.execution import execute, members_of
from strategies.planning.dry_run.operations import Operation, OperationKind, Program
from strategies.planning.dry_run.placement import Placement
from strategies.schedules import SCHEDULES
from tests.strategies.planning.dry_run.jobs import dry_run

SEND, RECEIVE, SUM = OperationKind.SEND, OperationKind.RECEIVE, OperationKind.ALL_REDUCE
TWO = Placement.create({"pipe": 2}, host_size=2)


def message(kind: OperationKind, source: int, what: str = "x") -> Operation:
    return Operation(kind, what, "pipe", (source, 1 - source), 8.0)


@pytest.mark.parametrize("stores_messages", [False, True])
@pytest.mark.parametrize(("data", "pipe", "tensor", "number"), [(1, 2, 1, 1), (2, 4, 2, 4), (1, 3, 2, 7), (2, 2, 1, 8)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_schedules_end(
    schedule: str, data: int, pipe: int, tensor: int, number: int, stores_messages: bool
) -> None:
    for shard in (None, "optimizer", "weights"):
        run = dry_run(
            data,
            pipe,
            tensor,
            num_microbatches=number,
            schedule=schedule,
            shard=shard,
            sequence_parallel=tensor > 1,
            recompute="full" if number == 4 else None,
        )
        done = execute(run.program_of_rank, run.placement, stores_messages=stores_messages)
        assert done.is_complete
        assert done.ends == tuple(map(len, run.program_of_rank))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_send_has_a_receive_and_members_call_the_same_in_one_order(schedule: str) -> None:
    run = dry_run(2, 2, 2, schedule=schedule, shard="optimizer", sequence_parallel=True)
    sent: Counter[object] = Counter()
    calls: dict[tuple[tuple[int, ...], int], list[object]] = {}
    for rank, program in enumerate(run.program_of_rank):
        for each in program:
            members = members_of(each, rank, run.placement)
            if each.ends is not None:
                assert rank == members[each.kind is RECEIVE]
                sent[members, each.form] += 1 if each.kind is SEND else -1
            if each.axis:
                calls.setdefault((members, rank), []).append(each.form)
    assert sent
    assert not any(sent.values())
    for (group, _), forms in calls.items():
        assert all(calls[group, member] == forms for member in group)


def test_messages_that_are_stored_need_no_order() -> None:
    programs: list[Program] = [
        (message(SEND, 0), message(RECEIVE, 1)),
        (message(SEND, 1), message(RECEIVE, 0)),
    ]
    assert execute(programs, TWO, stores_messages=True).is_complete
    waiting = execute(programs, TWO).waiting
    assert waiting == {0: programs[0][0], 1: programs[1][0]}
    # A message is not stored twice.
    twice: list[Program] = [(message(SEND, 0),), (message(RECEIVE, 0), message(RECEIVE, 0))]
    assert execute(twice, TWO, stores_messages=True).waiting == {1: twice[1][1]}


@pytest.mark.parametrize("stores_messages", [False, True])
def test_a_rank_that_skips_a_collective_stops_its_group(stores_messages: bool) -> None:
    placement = Placement.create({"data": 4}, host_size=2)
    program = tuple(Operation(SUM, f"bucket {number}", "data", num_bytes=8.0) for number in range(3))
    programs = [program, program, (program[0], program[2]), program]
    done = execute(programs, placement, stores_messages=stores_messages)
    assert done.ends == (1, 1, 1, 1)
    assert done.waiting == {0: program[1], 1: program[1], 2: program[2], 3: program[1]}
    assert done.num_operations == 11


def test_computations_wait_for_nobody() -> None:
    compute = Operation(OperationKind.COMPUTE, "0F0", work=2.0)
    assert execute([(compute, compute), ()], TWO).ends == (2, 0)
