"""The positions of stages on the mesh axis "pipe". Pure: no TensorFlow."""

from __future__ import annotations

from enum import Enum


class StagePlacement(Enum):
    """The order in which stages are placed on p devices, here p = 3 with two stages each.

        device       0      1      2
        loop         0 3    1 4    2 5      stage k is on device k % p
        vee          2 3    1 4    0 5      to the first device and back

    In both, the last stage is on the last device, where the loss is computed.
    """

    LOOP = "loop"
    VEE = "vee"

    def position_of(self, stage: int, num_positions: int) -> int:
        """Returns the position of a stage, from 0, on an axis of this many devices."""
        turn, position = divmod(stage, num_positions)
        goes_down = self is StagePlacement.VEE and turn % 2 == 0
        return num_positions - 1 - position if goes_down else position
