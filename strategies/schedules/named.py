"""The available schedules as tables of actions: GPipe, three kinds of 1F1B, and zero-bubble ones. Pure: no TensorFlow.

With p = 3 devices and m = 4 micro-batches, GPipe

    device 0  0 1 2 3 . . . . 0 0 1 1 2 2 3 3
    device 1  . 0 1 2 3 . . 0 0 1 1 2 2 3 3 .        forward: one tick, backward: two

fills and drains once, and holds the activations of all micro-batches. 1F1B alternates as soon as it can, and holds
those of at most p micro-batches. Both idle for (p - 1) / (m + p - 1) of the time. Interleaved 1F1B, with v stages on
each device, has v times less idle time and v times more messages. 1F1B waits once per micro-batch for messages; eager
1F1B has about twice as many micro-batches in flight, so that it does not wait if a message takes less time than a pass.

ZB-H1 splits backward passes. The stage before waits only for the gradients of a stage's inputs, in parentheses; those
of its weights, in square brackets, fill the time in which 1F1B waits:

    device 0   0   1   2   .   .  (0) [0]  3  (1) [1] (2) [2] (3) [3]
    device 1   .   0   1   .  (0)  2  (1) [0]  3  (2) [1] (3) [2] [3]
    device 2   .   .   0  (0)  1  (1)  2  (2) [0]  3  (3) [1] [2] [3]     all take one tick

It holds the activations of at most p micro-batches on each device, as the first device does in 1F1B, and idles for
(p - 1) / (3 m + p - 1) of the time. ZB-V and V-Half, which `v_shaped` makes, have two stages on each device.

Sources: Huang et al., arXiv:1811.06965 (GPipe); Narayanan et al., arXiv:1806.03377 and arXiv:2104.04473 (1F1B,
interleaved); Zhuang et al., arXiv:2211.05322 (eager 1F1B); Qi et al., arXiv:2401.10241 (ZB-H1).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from strategies.schedules.schedule import Action, Kind, Schedule
from strategies.schedules.v_shaped import v_shaped


def gpipe(num_devices: int, num_microbatches: int) -> Schedule:
    """Returns GPipe's schedule: all micro-batches forward, then all backward (arXiv:1811.06965)."""
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    devices = [
        tuple(Action(k, kind, i) for kind in (Kind.FORWARD, Kind.BACKWARD) for i in range(num_microbatches))
        for k in range(num_devices)
    ]
    return Schedule("gpipe", num_devices, num_microbatches, tuple(devices))


def one_forward_one_backward(num_devices: int, num_microbatches: int) -> Schedule:
    """Returns the 1F1B schedule: backward passes run as early as possible, to hold few activations (arXiv:1806.03377).

    On device k of p, p - 1 - k warm-up forwards come first, then one forward and one backward alternate.
    """
    return _one_stage_each("1f1b", num_devices, num_microbatches, 1)


def eager_one_forward_one_backward(num_devices: int, num_microbatches: int) -> Schedule:
    """Returns 1F1B with up to twice as many micro-batches in flight, to hide messages (arXiv:2211.05322)."""
    return _one_stage_each("eager_1f1b", num_devices, num_microbatches, 2)


def interleaved(num_devices: int, num_microbatches: int, stages_per_device: int = 2) -> Schedule:
    """Returns 1F1B with several stages on each device: k, k + p, k + 2 p, ... (arXiv:2104.04473, section 2.2).

    A device runs its stages in turn, each for p micro-batches, or a few more if p does not divide their number.
    """
    _check(num_devices=num_devices, num_microbatches=num_microbatches, stages_per_device=stages_per_device)
    num_turns = max(1, num_microbatches // num_devices)
    # A turn never has fewer than p micro-batches, unless the batch has: a stage would wait for an action that its own
    # device has not begun.
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


def zero_bubble_h1(num_devices: int, num_microbatches: int) -> Schedule:
    """Returns ZB-H1: 1F1B whose backward passes are split, at the memory of 1F1B's first stage (arXiv:2401.10241).

    Device k runs the weights' backward pass of a micro-batch k micro-batches after the inputs' one. So the last
    devices, which hold fewer micro-batches in 1F1B, have some of these passes left to fill the end of the batch.
    """
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    devices = []
    for k in range(num_devices):
        forward = [Action(k, Kind.FORWARD, i) for i in range(num_microbatches)]
        inputs = [Action(k, Kind.BACKWARD_INPUT, i) for i in range(num_microbatches)]
        weights = [Action(k, Kind.BACKWARD_WEIGHT, i) for i in range(num_microbatches)]
        actions: list[Action] = []
        for action in _alternating(forward, inputs, num_devices - 1 - k):
            actions.append(action)
            if action.kind is Kind.BACKWARD_INPUT and action.microbatch >= k:
                actions.append(weights[action.microbatch - k])
        devices.append((*actions, *weights[max(0, num_microbatches - k) :]))
    return Schedule("zb_h1", num_devices, num_microbatches, tuple(devices))


def zero_bubble_v(num_devices: int, num_microbatches: int) -> Schedule:
    """Returns ZB-V, with two stages on each device and the memory of 1F1B's first stage on all (arXiv:2401.10241)."""
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    return v_shaped("zb_v", num_devices, num_microbatches, 2 * num_devices)


def v_half(num_devices: int, num_microbatches: int) -> Schedule:
    """Returns V-Half, with two stages on each device and about half the memory of ZB-V (arXiv:2405.15362)."""
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    return v_shaped("v_half", num_devices, num_microbatches, min(num_devices + 2, 2 * num_devices))


def _one_stage_each(name: str, num_devices: int, num_microbatches: int, ahead: int) -> Schedule:
    """Returns 1F1B in which each device runs `ahead` warm-up forwards per downstream device, then alternates."""
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    devices = []
    for k in range(num_devices):
        forward = [Action(k, Kind.FORWARD, i) for i in range(num_microbatches)]
        backward = [Action(k, Kind.BACKWARD, i) for i in range(num_microbatches)]
        devices.append(_alternating(forward, backward, ahead * (num_devices - 1 - k)))
    return Schedule(name, num_devices, num_microbatches, tuple(devices))


#: The schedules by the names that `PipelineModel` accepts.
SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "eager_1f1b": eager_one_forward_one_backward,
    "interleaved_1f1b": interleaved,
    "zb_h1": zero_bubble_h1,
    "zb_v": zero_bubble_v,
    "v_half": v_half,
}


def _alternating(forward: Sequence[Action], backward: Sequence[Action], num_first: int) -> tuple[Action, ...]:
    """Returns `num_first` forward actions, then forward and backward in turn, then the remaining backward actions."""
    num_first = min(num_first, len(forward))
    actions = list(forward[:num_first])
    for i, action in enumerate(forward[num_first:]):
        actions += [action, backward[i]]
    return tuple(actions + list(backward[len(forward) - num_first :]))


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a positive number. Received: {name}={number!r}.")
