"""The processes that hold a variable, where a replica spans processes: every process knows them, of every variable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.deferred import is_remote
from strategies.replica.parts import Place, ReplicaParts, current_parts

_PLACE = "_keras_strategies_place"
_HOLDER = "_keras_strategies_holder"


def note_place(variable: Any, parts: ReplicaParts, reference: Any = None) -> None:
    """Remembers the place of a variable that is made now: that of ``reference``, or the present one.

    Args:
        variable: TensorFlow's, with a component for each local replica.
        parts: of a replica that spans processes.
        reference: the variable with which it is colocated, if it is.
    """
    setattr(variable, _PLACE, parts.here if reference is None else place_of(reference))


def note_holder(variable: Any, rank: int) -> None:
    """Remembers that one process of the job alone holds a variable of TensorFlow's: what is dealt out to it."""
    setattr(variable, _PLACE, {})
    setattr(variable, _HOLDER, rank)


def place_of(variable: Any) -> Place:
    """Returns the place of a variable, of Keras or TensorFlow; none in particular if it is at all positions.

    Of a split weight: that of all its shards.
    """
    shards = _shards(variable)
    if shards is not None:
        return {axis: at for axis, at in place_of(shards[0]).items() if axis != "tensor"}
    return _notes(variable).get(_PLACE, {})


def spans_processes(variable: Any) -> bool:
    """True if a variable, of Keras or of TensorFlow, was made where processes hold some of the variables each."""
    return _PLACE in _notes(variable)


def holders_of(variable: Any) -> Sequence[int]:
    """The ranks, in the job's first replica, of the processes that hold a variable; none if all processes do."""
    if not spans_processes(variable):
        return ()
    alone = _notes(variable).get(_HOLDER)
    if alone is not None:
        return (int(alone),)
    parts: ReplicaParts = _distributed(variable).distribute_strategy.extended.parts
    place = place_of(variable)
    ranks = dict.fromkeys(parts.owner(part) for part in range(parts.mesh.size) if parts.is_at(part, place))
    # Processes of one replica are in a row.
    first = min(parts.mesh.ranks)
    return () if len(ranks) == len(parts.owners) else tuple(rank - first for rank in ranks)


def first_holder(parts: ReplicaParts, place: Place) -> int:
    """Returns the first of the processes of a replica that own a part at a place: its number among these, from 0."""
    first = next(part for part in range(parts.mesh.size) if parts.is_at(part, place))
    return parts.owner(first) - min(parts.mesh.ranks)


def is_first_holder(parts: ReplicaParts, variable: Any, axes: Collection[str] = ("pipe", "tensor")) -> bool:
    """True on one of the processes along `axes` that hold a variable: what is summed over them counts it once."""
    place = place_of(variable)
    home = parts.home(place)
    if home is None:
        return False
    fixed = {axis: frozenset([parts.mesh.position(home, axis)]) for axis in ("pipe", "tensor") if axis not in axes}
    first = next(part for part in range(parts.mesh.size) if parts.is_at(part, {**place, **fixed}))
    return parts.owner(first) == parts.rank


def is_held(variable: Any) -> bool:
    """True if this process holds a variable, or a shard of a split weight."""
    return any(not is_remote(shard) for shard in _shards(variable) or [variable])


def agree_on(variables: Iterable[Any]) -> None:
    """Sets variables, of Keras or of TensorFlow, to what rank 0 has, one after the other. All processes call it.

    Where a replica spans processes, they have drawn the same numbers: each holds some of the variables only. Nor is
    there anything to agree on in a variable that one process holds alone.
    """
    parts = current_parts()
    if parts.groups.job is None or parts.spans_processes:
        return
    for variable in variables:
        if not holders_of(variable):
            variable.assign(parts.groups.job.broadcast(tf.convert_to_tensor(variable)))


def job_of(variable: Any) -> Any:
    """The process group of all processes of the strategy under which a variable was made."""
    return _distributed(variable).distribute_strategy.extended.parts.groups.job


def _shards(variable: Any) -> Sequence[Any] | None:
    """The shards of a split weight, which cannot be imported here; None of a variable, which must not be read."""
    found: Sequence[Any] | None = vars(variable).get("shards")
    return found


def _notes(variable: Any) -> dict[str, Any]:
    """Returns the attributes that TensorFlow's variable has itself.

    One that is not there would be asked of the value, which may be another process', or have to be gathered.
    """
    return getattr(_distributed(variable), "__dict__", {})


def _distributed(variable: Any) -> Any:
    return variable if isinstance(variable, tf.distribute.DistributedValues) else getattr(variable, "_value", None)
