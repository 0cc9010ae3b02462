"""The placement of ranks: host, device, coordinates and groups, by the code with which a job places them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategies.topology.axes import AXES
from strategies.topology.mesh import DeviceMesh
from strategies.topology.placement import mesh_over_processes


@dataclass(frozen=True)
class Placement:
    """The ranks of a job with one device each, which fill one host after the other, as launchers do.

    Attributes:
        mesh: the mesh over the ranks.
        host_size: the ranks of a host.

    Example:

        placement = Placement.create({"data": 2, "tensor": 4}, host_size=4)
        assert placement.host(5) == 1 and placement.device(5) == "GPU:1"
        assert placement.groups("data")[1] == (1, 5)
    """

    mesh: DeviceMesh
    host_size: int

    @classmethod
    def create(cls, axes: Mapping[str, int], host_size: int) -> Placement:
        """Returns the placement of as many ranks as the mesh has coordinates.

        Raises:
            ValueError: an unknown axis, or a size below 1.
        """
        if host_size < 1 or any(size < 1 for size in axes.values()):
            raise ValueError(f"Sizes are at least 1. Received: mesh={dict(axes)}, host_size={host_size}.")
        sizes = dict.fromkeys(AXES, 1) | dict(axes)
        return cls(mesh_over_processes(math.prod(sizes.values()), sizes, [""]), host_size)

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.mesh.size

    @property
    def hosts(self) -> Sequence[int]:
        """The host of each rank."""
        return [self.host(rank) for rank in range(self.num_ranks)]

    def host(self, rank: int) -> int:
        """Returns the number of a rank's host."""
        return rank // self.host_size

    def device(self, rank: int) -> str:
        """Returns the name of a rank's device on its host."""
        return f"GPU:{rank % self.host_size}"

    def position(self, rank: int, axis: str) -> int:
        """Returns the position of a rank along an axis."""
        return self._positions[axis][rank]

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Returns the groups of ranks along an axis."""
        return self._groups[axis]

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """Returns the group of a rank along an axis."""
        return self._group_of_rank[axis][rank]

    @functools.cached_property
    def _groups(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        return {axis: self.mesh.groups(axis) for axis in AXES}

    @functools.cached_property
    def _group_of_rank(self) -> dict[str, dict[int, tuple[int, ...]]]:
        return {axis: {rank: group for group in groups for rank in group} for axis, groups in self._groups.items()}

    @functools.cached_property
    def _positions(self) -> dict[str, dict[int, int]]:
        return {
            axis: {rank: position for group in groups for position, rank in enumerate(group)}
            for axis, groups in self._groups.items()
        }
