"""The owner ranks of variables where a replica spans processes. Every process knows the owners of every variable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.deferred import is_remote
from strategies.replica.parts import Coordinates, ReplicaParts, current_parts

_COORDINATES = "_keras_strategies_coordinates"
_OWNER_RANK = "_keras_strategies_owner_rank"


def set_coordinates(variable: Any, parts: ReplicaParts, reference: Any = None) -> None:
    """Records the coordinates of a new variable: those of ``reference``, or else the current ones.

    Args:
        variable: a TensorFlow variable with a component for each local replica.
        parts: the parts of a replica that spans processes.
        reference: the variable with which it is colocated, if any.
    """
    setattr(variable, _COORDINATES, parts.coordinates if reference is None else coordinates_of(reference))


def set_owner(variable: Any, rank: int) -> None:
    """Records that a single rank of the job owns a TensorFlow variable, such as a shard of a weight or of a slot."""
    setattr(variable, _COORDINATES, {})
    setattr(variable, _OWNER_RANK, rank)


def coordinates_of(variable: Any) -> Coordinates:
    """Returns the coordinates of a Keras or TensorFlow variable; empty if it is at all positions.

    A split weight has the coordinates that all its shards share.
    """
    shards = _shards(variable)
    if shards is not None:
        return {axis: at for axis, at in coordinates_of(shards[0]).items() if axis != "tensor"}
    return _notes(variable).get(_COORDINATES, {})


def spans_processes(variable: Any) -> bool:
    """Returns True if a Keras or TensorFlow variable was made where each process owns only some of the variables."""
    return _COORDINATES in _notes(variable)


def owners_of(variable: Any) -> Sequence[int]:
    """Returns the ranks, in the job's first replica, of a variable's owners; empty if all processes own it."""
    if not spans_processes(variable):
        return ()
    alone = _notes(variable).get(_OWNER_RANK)
    if alone is not None:
        return (int(alone),)
    parts: ReplicaParts = _distributed(variable).distribute_strategy.extended.engine.parts
    coordinates = coordinates_of(variable)
    ranks = dict.fromkeys(parts.owner(part) for part in range(parts.mesh.size) if parts.is_at(part, coordinates))
    # The ranks of one replica are consecutive.
    first = min(parts.mesh.ranks)
    return () if len(ranks) == len(parts.owners) else tuple(rank - first for rank in ranks)


def first_owner(parts: ReplicaParts, coordinates: Coordinates) -> int:
    """Returns the first process that owns a part at these coordinates, numbered from 0 within the replica."""
    first = next(part for part in range(parts.mesh.size) if parts.is_at(part, coordinates))
    return parts.owner(first) - min(parts.mesh.ranks)


def is_first_owner(parts: ReplicaParts, variable: Any, axes: Collection[str] = ("pipe", "tensor")) -> bool:
    """Returns True on exactly one of a variable's owners along `axes`, so that a sum over the owners counts it once."""
    coordinates = coordinates_of(variable)
    local_part = parts.local_part(coordinates)
    if local_part is None:
        return False
    fixed = {
        axis: frozenset([parts.mesh.position(local_part, axis)]) for axis in ("pipe", "tensor") if axis not in axes
    }
    first = next(part for part in range(parts.mesh.size) if parts.is_at(part, {**coordinates, **fixed}))
    return parts.owner(first) == parts.rank


def is_owned(variable: Any) -> bool:
    """Returns True if this process owns a variable, or a shard of a split weight."""
    return any(not is_remote(shard) for shard in _shards(variable) or [variable])


def agree_on(variables: Iterable[Any]) -> None:
    """Sets Keras or TensorFlow variables to the values of rank 0, one after the other. All processes call it.

    It does nothing where a replica spans processes: each owns only some of the variables, and all have drawn the same
    numbers. Variables with a single owner are skipped.
    """
    parts = current_parts()
    if parts.groups.job.num_processes == 1 or parts.spans_processes:
        return
    for variable in variables:
        if not owners_of(variable):
            variable.assign(parts.groups.job.broadcast(tf.convert_to_tensor(variable)))


def job_of(variable: Any) -> Any:
    """Returns the process group of all processes of the strategy under which a variable was made."""
    return _distributed(variable).distribute_strategy.extended.engine.parts.groups.job


def _shards(variable: Any) -> Sequence[Any] | None:
    """Returns the shards of a `SplitWeight`, which cannot be imported here; None for a variable, which is not read."""
    found: Sequence[Any] | None = vars(variable).get("shards")
    return found


def _notes(variable: Any) -> dict[str, Any]:
    """Returns the TensorFlow variable's own attributes.

    ``getattr`` would look up a missing one on the value, which another process may own, or which must be gathered.
    """
    return getattr(_distributed(variable), "__dict__", {})


def _distributed(variable: Any) -> Any:
    return variable if isinstance(variable, tf.distribute.DistributedValues) else getattr(variable, "_value", None)
