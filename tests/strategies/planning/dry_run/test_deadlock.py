"""Planted deadlocks are found and explained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategies.control_plane.waits import Wait as RealWait
from strategies.control_plane.waits import can_go_on
from strategies.planning.dry_run import DryRun
from strategies.planning.dry_run.deadlock import Deadlock, deadlock_of
from strategies.planning.dry_run.execution import execute, members_of
from strategies.planning.dry_run.operations import MESSAGES, OperationKind, Program
from strategies.schedules import Action, Kind
from tests.strategies.planning.dry_run.jobs import dry_run, job


def planted(run: DryRun, rank: int, program: Program) -> Deadlock:
    """Returns the deadlock of a run in which one rank has another program, and which a real job would find, too."""
    programs = list(run.program_of_rank)
    programs[rank] = program
    done = execute(programs, run.placement)
    found = deadlock_of(done, programs, run.placement)
    assert found is not None
    # To a running job, a rank that has ended its step waits for the others.
    ranks = tuple(range(run.placement.num_ranks))
    waits = {each: [RealWait("end", ranks, "barrier")] for each in ranks} | {
        waiting: [RealWait(str(each.form), members_of(each, waiting, run.placement), str(each.form[0]))]
        for waiting, each in done.waiting.items()
    }
    assert not can_go_on(waits, run.placement.num_ranks)
    return found


def test_without_a_fault_there_is_none() -> None:
    run = dry_run(2, 2, 2)
    assert run.deadlock is None


def test_a_send_and_a_receive_in_the_wrong_order() -> None:
    run = dry_run(1, 2, 1)
    program = list(run.programs[1])
    send, receive = (
        next(n for n, each in enumerate(program) if each.kind is kind)
        for kind in (OperationKind.SEND, OperationKind.RECEIVE)
    )
    program[send], program[receive] = program[receive], program[send]
    found = planted(run, 1, tuple(program))
    assert found.cycle == (0, 1)
    assert found.is_cycle
    assert str(found).splitlines() == [
        "2 ranks wait forever.",
        "  rank 0 waits for rank 1 in operation 1 of its step, send of activations after 0F0 "
        "(2,048 bytes along 'pipe', from position 0 to 1)",
        "  rank 1 waits for rank 0 in operation 0 of its step, send of gradients after 1B0 "
        "(2,048 bytes along 'pipe', from position 1 to 0)",
        "  so each waits for the next one, and rank 1 for rank 0",
    ]


def test_a_rank_that_skips_an_all_reduce() -> None:
    run = dry_run(4, 1, 2)
    program = run.program_of_rank[3]
    skipped = next(n for n, each in enumerate(program) if each.axis == "data")
    found = planted(run, 3, program[:skipped] + program[skipped + 1 :])
    assert "rank 3 has ended its step" in str(found)
    assert "gradients of bucket 0" in str(found)
    assert not found.is_cycle
    assert 3 in found.ended


def test_members_that_call_different_collectives() -> None:
    run = dry_run(1, 1, 2)
    program = list(run.program_of_rank[1])
    at = next(n for n, each in enumerate(program) if each.axis == "tensor")
    program[at] = replace(program[at], kind=OperationKind.ALL_GATHER)
    found = planted(run, 1, tuple(program))
    [(one, other)] = found.mismatches()
    assert (one.rank, other.rank) == (0, 1)
    assert "Ranks 0 and 1 call different operations of one group along 'tensor': all_reduce" in str(found)
    program[at] = replace(run.program_of_rank[1][at], num_bytes=7.0)
    assert "(7 bytes along 'tensor')" in str(planted(run, 1, tuple(program)))


def test_a_cycle_through_several_ranks_names_some() -> None:
    run = dry_run(1, 12, 1, num_microbatches=2)
    found = planted(run, 5, tuple(each for each in run.program_of_rank[5] if each.kind not in MESSAGES))
    assert len(found.waits) == 11
    assert "rank 5 has ended its step" in str(found)


def test_a_schedule_with_swapped_actions_is_shown_with_the_fault_marked() -> None:
    given = job(1, 2, 1)
    first, *others = given.schedule.devices
    at = first.index(Action(0, Kind.BACKWARD, 0))
    swapped = (first[at], *first[:at], *first[at + 1 :])
    table = replace(given.schedule, devices=(swapped, *others))
    with pytest.raises(ValueError, match=r"cannot run: on device 0, 0B0 waits for 0F0") as raised:
        DryRun.create(replace(given, table=table))
    assert ">0B0<" in str(raised.value)
