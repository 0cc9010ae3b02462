"""Units: the groups of sharded weights that are gathered by one message."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from strategies import planning
from strategies.collectives.bucket_slices import Slice, SlicedBucket
from strategies.replica.owners import coordinates_of
from strategies.sharding.row_variables import RowShardedVariable
from strategies.sharding.variables import ShardedVariable


class Gone:
    """Name, shape, dtype and bounds of a weight, for use after the weight itself has been deleted."""

    def __init__(self, variable: ShardedVariable) -> None:
        self.name, self.shape, self.dtype, self.bounds = variable.name, variable.shape, variable.dtype, variable.bounds


class Unit:
    """Weights that are gathered together."""

    def __init__(self, devices: tuple[str, ...], *, is_small: bool) -> None:
        #: The devices of the weights, one for each local replica.
        self.devices = devices
        #: True if the weights, once gathered, stay in memory until the step's end.
        self.is_small = is_small
        self.num_bytes = 0
        self._members: list[tuple[weakref.ref[ShardedVariable], Gone]] = []

    def add(self, variable: ShardedVariable, num_bytes: int) -> None:
        """Adds a weight to the unit."""
        variable.unit = self
        self._members.append((weakref.ref(variable), Gone(variable)))
        self.num_bytes += num_bytes

    @property
    def members(self) -> list[ShardedVariable | Gone]:
        """The weights; a `Gone` for each deleted one, since processes do not delete a weight at the same time."""
        return [form if (variable := each()) is None else variable for each, form in self._members]


class Units:
    """The units of a strategy's weights, in the order of their creation.

    Args:
        bucket_bytes: the maximum size of one message.
    """

    def __init__(self, bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes
        # By dtype, devices, coordinates and size (small or not): the unit to which new weights are added.
        self._last: dict[Any, Unit] = {}

    def add(self, variable: ShardedVariable) -> None:
        """Adds a new weight to the last unit of its kind, or to a new one if that is full."""
        devices = tuple(component.device for component in variable.values)
        # The weights that a model had before it was cut must not share a unit with those of its stages: a gather would
        # initialize them.
        coordinates = frozenset(coordinates_of(variable).items())
        key = (variable.dtype.name, devices, coordinates)
        num_bytes = int(variable.shape.num_elements() or 0) * variable.dtype.size
        if isinstance(variable, RowShardedVariable):
            # Steps never gather it.
            Unit(devices, is_small=False).add(variable, num_bytes)
            return
        is_small = planning.is_small(num_bytes, self._bucket_bytes)
        unit = self._last.get((key, is_small))
        if unit is None or not planning.has_room(unit.num_bytes, num_bytes, self._bucket_bytes):
            unit = self._last[key, is_small] = Unit(devices, is_small=is_small)
        unit.add(variable, num_bytes)


def bucket_of(variables: Sequence[Any], num_owners: int, positions: Sequence[int] | None = None) -> SlicedBucket:
    """Returns the shards of weights as one bucket.

    Args:
        variables: sharded TensorFlow variables.
        num_owners: the number of owners of each variable.
        positions: the variables' positions in the list to which the slices refer; None for their order.
    """
    numbers = range(len(variables)) if positions is None else positions
    slices = [
        Slice(i, owner, *variable.bounds[owner])
        for owner in range(num_owners)
        for i, variable in zip(numbers, variables, strict=True)
        if variable.bounds[owner][0] < variable.bounds[owner][1]
    ]
    return SlicedBucket(tuple(slices), num_owners)
