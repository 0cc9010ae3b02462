"""The time in which a pipeline's devices wait for each other, from the schedule's own table."""

from __future__ import annotations

import functools

from strategies.planning.layout import ScheduleName
from strategies.schedules import SCHEDULES, Kind

# The wait at the beginning and at the end of a batch does not depend on the number of micro-batches beyond this
# multiple of the number of devices.
_ROUNDS = 3


@functools.lru_cache(maxsize=256)
def bubble_passes(schedule: ScheduleName, num_devices: int, num_chunks: int, num_microbatches: int) -> float:
    """Returns the wait of a device in a batch, in units of its forward and backward pass of a micro-batch.

    That of 1F1B is (p - 1) / v (arXiv:2104.04473, section 2.2), with p devices and v chunks. The tables of zero-bubble
    schedules are simulated, with equally long forward passes and halves of backward passes, as in their papers
    (arXiv:2401.10241, arXiv:2405.15362).

    Args:
        schedule: its name.
        num_devices: the devices of the pipeline.
        num_chunks: chunks of each device's layers, with "1f1b".
        num_microbatches: the micro-batches of a batch.
    """
    if num_devices == 1:
        return 0.0
    if schedule == "1f1b":
        return (num_devices - 1) / num_chunks
    simulated = min(num_microbatches, _ROUNDS * num_devices)
    table = SCHEDULES[schedule](num_devices, simulated)
    length = max(end for _, end in table.times(lambda action: 1 if action.kind in _PASSES else 0).values())
    # Three passes of each stage on a device are its forward and backward pass.
    return float(length / (3 * table.num_stages // num_devices) - simulated)


_PASSES = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
