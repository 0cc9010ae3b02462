"""The device mesh: named axes over devices, processes, or both. Pure: numpy only."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.topology.axes import AXES, check_axis, forms_boxes, nearest_sizes, resolve_sizes


@dataclass(frozen=True)
class DeviceMesh:
    """A grid of coordinates, row-major, whose last axis varies fastest.

    Every coordinate has a flat index ``0 .. size - 1``, one process (`ranks[index]`) and one device of that
    process (`devices[index]`). Axes are in the given order: put the axis with the most communication (usually
    "tensor") last, so that its members are adjacent and inside one process.

    Create one with `from_devices` or `from_processes`. A mesh is a value: it compares and hashes by content.

    Args:
        axis_names: names from `AXES`, each at most once.
        axis_sizes: one positive size for each name.
        ranks: the owning process of each flat index.
        devices: the device name of each flat index, unique within its process.

    Example:

        mesh = strategies.DeviceMesh.from_devices(["GPU:0", "GPU:1", "GPU:2", "GPU:3"], {"data": -1, "tensor": 2})
        sizes = dict(zip(mesh.axis_names, mesh.axis_sizes))
        assert sizes == {"data": 2, "tensor": 2}
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.axis_names:
            check_axis(name)
        if len(self.axis_names) != len(self.axis_sizes) or len(set(self.axis_names)) != len(self.axis_names):
            raise ValueError(
                f"A mesh needs each axis once and one size for each. Received: {self.axis_names} with sizes "
                f"{self.axis_sizes}."
            )
        if not self.ranks or len(self.ranks) != self.size or len(self.devices) != self.size:
            raise ValueError(
                f"A mesh of sizes {self.axis_sizes} has {self.size} coordinates and needs a rank and a "
                f"device for each. Received: {len(self.ranks)} ranks and {len(self.devices)} devices."
            )
        members = list(zip(self.ranks, self.devices, strict=True))
        for member in members:
            if members.count(member) > 1:
                raise ValueError(
                    f"Device {member[1]!r} of process {member[0]} is named {members.count(member)} times in "
                    f"the mesh; name each device once. Received: {list(self.devices)}."
                )

    @staticmethod
    def axes_of(text: str) -> dict[str, int]:
        """Returns the axis sizes written as ``"data=2,pipe=2"`` on a command line.

        Raises:
            ValueError: malformed text, an unknown axis, or one that is named twice.
        """
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, _, size = (word.strip() for word in part.partition("="))
            if name not in AXES or name in sizes or not re.fullmatch("-1|[1-9][0-9]*", size):
                raise ValueError(f"expected axes of {AXES} with sizes, as in data=2,pipe=2, received {text!r}.")
            sizes[name] = int(size)
        return sizes

    @classmethod
    def from_devices(cls, devices: Sequence[str], axes: Mapping[str, int] | None = None) -> DeviceMesh:
        """Returns a mesh over the devices of this process.

        Args:
            devices: device names, in the order in which they fill the grid.
            axes: size of each axis, in the order of the grid; one of them may be -1, to be inferred.
                None means all on "data".

        Raises:
            ValueError: an unknown axis, a size that is not positive, two -1, sizes that do not multiply to
                the number of devices, a device named twice, no device.
        """
        if isinstance(devices, str):
            raise ValueError(f"Expected a sequence of device names. Received: the string {devices!r}.")
        if not devices:
            raise ValueError("A mesh needs at least one device. Received: no devices.")
        sizes = resolve_sizes(axes, len(devices))
        return cls(tuple(sizes), tuple(sizes.values()), (0,) * len(devices), tuple(devices))

    @classmethod
    def from_processes(
        cls,
        num_processes: int,
        axes: Mapping[str, int] | None = None,
        *,
        local_devices: Sequence[str] = ("",),
    ) -> DeviceMesh:
        """Returns a mesh over `num_processes` processes with `local_devices` each, filled process by process.

        Each process must own a box of the grid (`box`): consecutive flat indices that form a product of ranges.

        Args:
            num_processes: the world size.
            axes: as in `from_devices`; the sizes multiply to `num_processes * len(local_devices)`.
            local_devices: device names inside one process, equal in all; by default one unnamed device.

        Raises:
            ValueError: as `from_devices`, and if the coordinates of a process would not form a box.
        """
        if num_processes < 1 or not local_devices:
            raise ValueError(
                f"A mesh needs at least one process with at least one device. Received: "
                f"num_processes={num_processes}, local_devices={list(local_devices)}."
            )
        num_local = len(local_devices)
        sizes = resolve_sizes(axes, num_processes * num_local)
        if not forms_boxes(num_local, tuple(sizes.values())):
            raise ValueError(
                f"With {num_local} devices per process, filled in the order {tuple(sizes)}, a process would "
                f"own no box of the mesh {sizes}. Make the product of the last axes' sizes divide "
                f"{num_local}, or be divided by it: reorder the axes or change their sizes. Nearest sizes that fit: "
                f"{nearest_sizes(sizes, num_processes * num_local, num_local)}."
            )
        ranks = tuple(rank for rank in range(num_processes) for _ in local_devices)
        return cls(tuple(sizes), tuple(sizes.values()), ranks, tuple(local_devices) * num_processes)

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return math.prod(self.axis_sizes)

    @property
    def num_processes(self) -> int:
        """The number of processes that own a part of the mesh."""
        return len(set(self.ranks))

    @property
    def num_replicas(self) -> int:
        """The number of replicas of the model: the size of the data axis, times that of "expert"."""
        return self.axis_size("data") * self.axis_size("expert")

    def with_experts_as_data(self) -> DeviceMesh:
        """Returns the mesh with "expert" merged into "data": adjacent replicas share one set of experts.

        Every replica takes its own rows, also along "expert"; there only the experts' weights differ.

        Raises:
            ValueError: "expert" does not directly follow "data".

        Example:

            mesh = strategies.DeviceMesh.from_devices([f"GPU:{i}" for i in range(8)], {"data": 4, "expert": 2})
            assert mesh.with_experts_as_data().axes == {"data": 8}
        """
        if "expert" not in self.axis_names:
            return self
        names = list(self.axis_names)
        at = names.index("expert")
        sizes = list(self.axis_sizes)
        if "data" in names:
            if names.index("data") != at - 1:
                raise ValueError(
                    f"The mesh axis 'expert' divides what 'data' is in: name it directly after 'data', as in "
                    f"{{'data': 2, 'expert': 2, 'tensor': 2}}. Received: {self.axes}."
                )
            sizes[at - 1] *= sizes.pop(at)
            names.pop(at)
        else:
            names[at] = "data"
        return DeviceMesh(tuple(names), tuple(sizes), self.ranks, self.devices)

    def axis_size(self, axis: str) -> int:
        """Returns the size of `axis`: 1 if the mesh does not have it."""
        check_axis(axis)
        return self.axis_sizes[self.axis_names.index(axis)] if axis in self.axis_names else 1

    def coordinates(self, index: int) -> dict[str, int]:
        """Returns the position of a flat index on every axis."""
        self._check_index(index)
        position = np.unravel_index(index, self.axis_sizes)
        return {name: int(i) for name, i in zip(self.axis_names, position, strict=True)}

    def position(self, index: int, axis: str) -> int:
        """Returns the position of a flat index on one axis: 0 if the mesh does not have that axis."""
        check_axis(axis)
        return self.coordinates(index).get(axis, 0)

    def index(self, coordinates: Mapping[str, int]) -> int:
        """Returns the flat index at `coordinates`; every axis larger than 1 must be given."""
        for name, position in coordinates.items():
            if not 0 <= position < self.axis_size(name):
                raise ValueError(
                    f"Position {position} is outside axis {name!r} of size {self.axis_size(name)}. "
                    f"Received: {dict(coordinates)} in mesh {self.axes}."
                )
        missing = [name for name, size in self.axes.items() if size > 1 and name not in coordinates]
        if missing:
            raise ValueError(f"Add a position on {missing}. Received: {dict(coordinates)} in mesh {self.axes}.")
        flat = 0
        for name, size in self.axes.items():
            flat = flat * size + coordinates.get(name, 0)
        return flat

    def index_of(self, device: str, rank: int = 0) -> int:
        """Returns the flat index of a device of a process."""
        for index, member in enumerate(zip(self.ranks, self.devices, strict=True)):
            if member == (rank, device):
                return index
        raise ValueError(f"Device {device!r} of process {rank} is not in the mesh. It has: {list(self.devices)}.")

    @property
    def axes(self) -> dict[str, int]:
        """Name and size of every axis, outermost first."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Returns all groups of flat indices that differ only along `axis`, each in the order of that axis.

        Groups are ordered by their first member; every flat index is in exactly one. An axis the mesh does
        not have gives groups of one.
        """
        check_axis(axis)
        if axis not in self.axis_names:
            return tuple((index,) for index in range(self.size))
        grid = np.arange(self.size).reshape(self.axis_sizes)
        rows = np.moveaxis(grid, self.axis_names.index(axis), -1).reshape(-1, self.axis_size(axis))
        return tuple(tuple(int(i) for i in row) for row in rows)

    def group(self, index: int, axis: str) -> tuple[int, ...]:
        """Returns the group along `axis` that contains a flat index."""
        self._check_index(index)
        return next(group for group in self.groups(axis) if index in group)

    def neighbour(self, index: int, axis: str, offset: int = 1, *, ring: bool = False) -> int | None:
        """Returns the flat index `offset` steps further along `axis`; None beyond an end, unless `ring`."""
        group = self.group(index, axis)
        target = group.index(index) + offset
        if ring:
            return group[target % len(group)]
        return group[target] if 0 <= target < len(group) else None

    def replica(self, replica: int) -> tuple[str, ...]:
        """Returns the devices of replica number `replica`, in row-major order of the other axes."""
        grid = self.grid()
        if not 0 <= replica < len(grid):
            raise ValueError(f"The mesh {self.axes} has replicas 0 to {len(grid) - 1}. Received: {replica}.")
        return grid[replica]

    def grid(self) -> tuple[tuple[str, ...], ...]:
        """Returns device names as ``[replica][rest]``; gradients at one position of ``rest`` are reduced together.

        The replicas are the positions of the axes "data" and "expert".
        """
        data_groups = self.with_experts_as_data().groups("data")
        return tuple(tuple(self.devices[c[r]] for c in data_groups) for r in range(self.num_replicas))

    def local_indices(self, rank: int) -> tuple[int, ...]:
        """Returns the flat indices that process `rank` owns, ascending."""
        owned = tuple(index for index, owner in enumerate(self.ranks) if owner == rank)
        if not owned:
            raise ValueError(
                f"Process {rank} owns no coordinate of the mesh; its processes are {sorted(set(self.ranks))}."
            )
        return owned

    def box(self, rank: int) -> dict[str, range]:
        """Returns the range of positions on every axis; their product is the coordinates of process `rank`."""
        owned = [self.coordinates(index) for index in self.local_indices(rank)]
        low = {name: min(c[name] for c in owned) for name in self.axis_names}
        high = {name: max(c[name] for c in owned) + 1 for name in self.axis_names}
        return {name: range(low[name], high[name]) for name in self.axis_names}

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise ValueError(f"The mesh {self.axes} has flat indices 0 to {self.size - 1}. Received: {index}.")
