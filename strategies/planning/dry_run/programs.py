"""The program of each position along "pipe": all operations of a training step, in the order in which they start.

All ranks go through the actions of all stages in one order, that of the schedule's table. The ranks of an action's
stage compute it and send its results; the ranks that use them receive at the same point of the order. This is how
`keras_ext.pipeline` traces a step, and between GPUs collectives and messages of a rank run in the order of tracing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from strategies.planning.dry_run.gradients import ReplicaExchange
from strategies.planning.dry_run.job import Job
from strategies.planning.dry_run.operations import Operation, OperationKind, Program
from strategies.planning.dry_run.passes import operations_of
from strategies.planning.dry_run.stage_sizes import StageSizes
from strategies.schedules import Action, Kind, Traffic


def programs_of(job: Job) -> tuple[Program, ...]:
    """Returns the programs by position along "pipe". Ranks that differ along other axes only run the same program.

    Raises:
        ValueError: the schedule's table cannot run; the message shows it, with the fault marked.
    """
    order = job.schedule.order()
    stages = [StageSizes(job, stage) for stage in range(job.schedule.num_stages)]
    return tuple(tuple(_program(job, position, order, stages)) for position in range(job.layout.num_stages))


def _program(job: Job, position: int, order: Sequence[Action], stages: Sequence[StageSizes]) -> Iterator[Operation]:
    schedule, traffic = job.schedule, traffic_of(job)
    own = [sizes for sizes in stages if traffic.process_of[sizes.stage] == position]
    exchange = ReplicaExchange(job, own)
    yield from exchange.before_passes()
    for action in order:
        if traffic.process_of[action.stage] == position:
            gathers = functools.partial(exchange.before_part, action=action)
            yield from operations_of(action, stages[action.stage], gathers)
            if action.kind is schedule.kinds[-1]:
                yield from exchange.after_backward(action)
        if action.kind in (Kind.FORWARD, schedule.backward):
            yield from _messages(action, position, traffic, stages[action.stage])
    if stages[-1].has_copied_table:
        yield from _table_messages(position, traffic, stages)
    yield from exchange.after_passes()


def traffic_of(job: Job) -> Traffic:
    """Returns the values that stages send each other: each uses the outputs of the one before."""
    schedule = job.schedule
    number = schedule.num_stages
    process_of = [schedule.device_of(stage) for stage in range(number)]
    taken = [[] if stage == 0 else [stage - 1] for stage in range(number)]
    return Traffic.create([[stage] for stage in range(number)], taken, [number - 1], process_of, [process_of[-1]])


def _messages(action: Action, position: int, traffic: Traffic, sizes: StageSizes) -> Iterator[Operation]:
    """Yields the messages after an action that a position sends or receives."""
    source = traffic.process_of[action.stage]
    is_forward = action.kind is Kind.FORWARD
    targets = (traffic.forward if is_forward else traffic.backward)[action.stage]
    for target, values in sorted(targets.items()):
        if position in (source, target):
            kind = OperationKind.SEND if position == source else OperationKind.RECEIVE
            what = f"{'activations' if is_forward else 'gradients'} after {action}"
            yield Operation(kind, what, "pipe", (source, target), sizes.boundary_bytes * len(values))


def _table_messages(position: int, traffic: Traffic, stages: Sequence[StageSizes]) -> Iterator[Operation]:
    """Yields the exchange of the gradients of the table of tokens between the first and the last stage."""
    ends = sorted({traffic.process_of[0], traffic.process_of[-1]})
    for source, target in (ends, ends[::-1]):
        if position in ends:
            kind = OperationKind.SEND if position == source else OperationKind.RECEIVE
            what, size = f"gradients of the table of tokens at position {source}", 4.0 * stages[0].table_parameters
            yield Operation(kind, what, "pipe", (source, target), size)
