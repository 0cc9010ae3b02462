"""Adds the messages between devices to a schedule. Pure: tables in, tables out."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.schedules.schedule import Action, Kind, Schedule


def with_messages(schedule: Schedule) -> Schedule:
    """Returns a table of computations with the sends and receives between devices added.

    A device sends a result to another device right after it computes it, and receives a value right before it uses it.
    Neighbouring stages on one device need no messages.
    """
    devices = []
    for k, actions in enumerate(schedule.devices):
        lowered: list[Action] = []
        for action in actions:
            if action.kind is Kind.BACKWARD_WEIGHT:
                lowered.append(action)
                continue
            forward = action.kind is Kind.FORWARD
            step = 1 if forward else -1
            source, target = action.stage - step, action.stage + step
            if 0 <= source < schedule.num_stages and schedule.device_of(source) != k:
                kind = Kind.RECEIVE_FORWARD if forward else Kind.RECEIVE_BACKWARD
                lowered.append(Action(action.stage, kind, action.microbatch))
            lowered.append(action)
            if 0 <= target < schedule.num_stages and schedule.device_of(target) != k:
                kind = Kind.SEND_FORWARD if forward else Kind.SEND_BACKWARD
                lowered.append(Action(action.stage, kind, action.microbatch))
        devices.append(tuple(lowered))
    return replace(schedule, devices=tuple(devices))


@dataclass(frozen=True)
class Traffic:
    """The values that processes send each other for each micro-batch, by the stage after whose passes they are sent.

    Each value is sent once from the stage that computes it to each process that uses it, and each of these processes
    sends one gradient back.

    Attributes:
        process_of: the process that holds each stage.
        forward: for each stage, by receiving process: the values that are sent after the stage's forward pass.
        backward: for each stage, by receiving process: the values of that process whose gradients are complete, and
            sent back, after the stage's backward pass.
    """

    process_of: tuple[int, ...]
    forward: tuple[Mapping[int, tuple[Hashable, ...]], ...]
    backward: tuple[Mapping[int, tuple[Hashable, ...]], ...]

    @property
    def last(self) -> int:
        """The process that holds the last stage, and computes the loss."""
        return self.process_of[-1]

    @classmethod
    def create(
        cls,
        made: Sequence[Sequence[Hashable]],
        taken: Sequence[Sequence[Hashable]],
        outputs: Sequence[Hashable],
        process_of: Sequence[int],
        outputs_to: Collection[int],
    ) -> Traffic:
        """Returns the traffic between stages.

        Args:
            made: for each stage, the values that it computes and that other stages use, or that are outputs.
            taken: for each stage, the values of earlier stages that it uses, and others that all processes have.
            outputs: the model's outputs, of the last stage or of earlier ones.
            process_of: the process that holds each stage.
            outputs_to: processes that use the outputs, after the last stage.
        """
        origin = {value: k for k, own in enumerate(made) for value in own}
        # For each value, the processes that use it, each with the first of its stages that does. In the backward pass
        # this stage is the last one, so the process' gradient of the value is complete after it.
        takers: dict[Hashable, dict[int, int]] = {value: {} for value in origin}
        for k, own in enumerate(taken):
            for value in own:
                if value in origin:
                    takers[value].setdefault(process_of[k], k)
        for value in outputs:
            for process in outputs_to if value in origin else ():
                takers[value].setdefault(process, len(made) - 1)
        forward: list[dict[int, tuple[Hashable, ...]]] = [{} for _ in made]
        backward: list[dict[int, tuple[Hashable, ...]]] = [{} for _ in made]
        for value, k in origin.items():
            for process, first in sorted(takers[value].items()):
                if process != process_of[k]:
                    forward[k][process] = (*forward[k].get(process, ()), value)
                    if process_of[first] == process:
                        owner = process_of[k]
                        backward[first][owner] = (*backward[first].get(owner, ()), value)
        return cls(tuple(process_of), tuple(forward), tuple(backward))
