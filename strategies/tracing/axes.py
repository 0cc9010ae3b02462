"""The mesh axis of a collective, from its ranks. Pure."""

from __future__ import annotations

from collections.abc import Collection

from strategies.topology.mesh import DeviceMesh


def axis_between(mesh: DeviceMesh, members: Collection[int]) -> str:
    """Returns the axis along which a collective's ranks lie, as in "pipe"; empty if there is none, or several."""
    wanted = set(members)
    found = ""
    for axis in mesh.axis_names:
        groups = [{mesh.ranks[index] for index in group} for group in mesh.groups(axis)]
        if wanted in groups:
            return axis
        # A message between two ranks of a longer axis.
        if not found and len(wanted) == 2 and any(wanted <= group for group in groups):
            found = axis
    return found
