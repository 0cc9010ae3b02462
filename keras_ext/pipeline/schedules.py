"""The schedules that models can have, as tables of actions: GPipe, 1F1B, eager and interleaved. Pure: no TensorFlow.

With p = 3 devices and m = 4 micro-batches, GPipe

    device 0  0 1 2 3 . . . . 0 0 1 1 2 2 3 3
    device 1  . 0 1 2 3 . . 0 0 1 1 2 2 3 3 .        forward: one tick, backward: two

fills and drains once, and holds the activations of all micro-batches. 1F1B alternates as soon as it can, and holds
those of p at most. Both idle for (p - 1) / (m + p - 1) of the time. With v stages on each device, interleaved, idle
time is v times smaller, for v times the messages. Messages take time, for which 1F1B waits once with each micro-batch;
eager 1F1B has about twice as many micro-batches under way, so that it does not wait, as long as a message takes less
time than a pass.

Sources: Huang et al., arXiv:1811.06965 (GPipe); Narayanan et al., arXiv:1806.03377 and arXiv:2104.04473 (1F1B,
interleaved); Zhuang et al., arXiv:2211.05322 (eager 1F1B).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from keras_ext.pipeline.schedule import Action, Kind, Schedule


def gpipe(num_devices: int, num_microbatches: int) -> Schedule:
    """All micro-batches forward, then all backward (arXiv:1811.06965)."""
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    devices = [
        tuple(Action(k, kind, i) for kind in (Kind.FORWARD, Kind.BACKWARD) for i in range(num_microbatches))
        for k in range(num_devices)
    ]
    return Schedule("gpipe", num_devices, num_microbatches, tuple(devices))


def one_forward_one_backward(num_devices: int, num_microbatches: int) -> Schedule:
    """Each device goes backward as soon as a gradient comes, so that it holds few activations (arXiv:1806.03377)."""
    return _one_stage_each("1f1b", num_devices, num_microbatches, 1)


def eager_one_forward_one_backward(num_devices: int, num_microbatches: int) -> Schedule:
    """1F1B with up to twice as many micro-batches under way: messages have the time of a pass (arXiv:2211.05322)."""
    return _one_stage_each("eager_1f1b", num_devices, num_microbatches, 2)


def interleaved(num_devices: int, num_microbatches: int, stages_per_device: int = 2) -> Schedule:
    """1F1B with several stages on each device, k, k + p, k + 2 p and so on (arXiv:2104.04473, section 2.2).

    A device takes its stages in turn, for as many micro-batches as there are devices, or, where they do not divide, a
    few more.
    """
    _check(num_devices=num_devices, num_microbatches=num_microbatches, stages_per_device=stages_per_device)
    num_turns = max(1, num_microbatches // num_devices)
    # Never fewer, unless there are no more: a stage would wait for what its own device has not begun.
    bounds = [-(-num_microbatches * i // num_turns) for i in range(num_turns + 1)]
    turns = [range(start, end) for start, end in itertools.pairwise(bounds)]
    devices = []
    for k in range(num_devices):
        stages = [k + number * num_devices for number in range(stages_per_device)]
        forward = [Action(s, Kind.FORWARD, i) for turn in turns for s in stages for i in turn]
        backward = [Action(s, Kind.BACKWARD, i) for turn in turns for s in reversed(stages) for i in turn]
        num_first = 2 * (num_devices - 1 - k) + (stages_per_device - 1) * max(map(len, turns))
        devices.append(_alternating(forward, backward, num_first))
    return Schedule("interleaved_1f1b", num_devices * stages_per_device, num_microbatches, tuple(devices))


def _one_stage_each(name: str, num_devices: int, num_microbatches: int, ahead: int) -> Schedule:
    """1F1B; each device goes forward with `ahead` micro-batches for each device behind it before it goes backward."""
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    devices = []
    for k in range(num_devices):
        forward = [Action(k, Kind.FORWARD, i) for i in range(num_microbatches)]
        backward = [Action(k, Kind.BACKWARD, i) for i in range(num_microbatches)]
        devices.append(_alternating(forward, backward, ahead * (num_devices - 1 - k)))
    return Schedule(name, num_devices, num_microbatches, tuple(devices))


#: By the names that models take.
SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "eager_1f1b": eager_one_forward_one_backward,
    "interleaved_1f1b": interleaved,
}


def _alternating(forward: Sequence[Action], backward: Sequence[Action], num_first: int) -> tuple[Action, ...]:
    """`num_first` actions forward, then one forward and one backward in turn, then what is left backward."""
    num_first = min(num_first, len(forward))
    actions = list(forward[:num_first])
    for i, action in enumerate(forward[num_first:]):
        actions += [action, backward[i]]
    return tuple(actions + list(backward[len(forward) - num_first :]))


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a positive number. Received: {name}={number!r}.")
