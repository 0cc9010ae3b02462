"""The processes that hold a variable, where a replica spans processes: every process knows them, of every variable.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.parts import ReplicaParts

_ATTRIBUTE = "_keras_strategies_holders"


def note_holders(variable: Any, parts: ReplicaParts, reference: Any = None) -> None:
    """Remembers who holds a variable that is made now, at the present place or where ``reference`` is.

    Args:
        variable: TensorFlow's, with a component for each local replica.
        parts: of a replica that spans processes.
        reference: the variable with which it is colocated, if it is.
    """
    known = getattr(_distributed(reference), _ATTRIBUTE, None)
    setattr(variable, _ATTRIBUTE, _holders(parts) if known is None else known)


def spans_processes(variable: Any) -> bool:
    """True if a variable, of Keras or of TensorFlow, was made where a replica spans processes."""
    return hasattr(_distributed(variable), _ATTRIBUTE)


def holders_of(variable: Any) -> Sequence[int]:
    """The ranks, in the job's first replica, of the processes that hold a variable; none if all processes do."""
    return getattr(_distributed(variable), _ATTRIBUTE, ())


def job_of(variable: Any) -> Any:
    """The process group of all processes of the strategy under which a variable was made."""
    return _distributed(variable).distribute_strategy.extended.parts.groups.job


def _holders(parts: ReplicaParts) -> tuple[int, ...]:
    here = [parts.owner(part) for part in range(parts.mesh.size) if parts.is_at(part, parts.here)]
    ranks = tuple(dict.fromkeys(here))
    # Processes of one replica are in a row.
    first = min(parts.mesh.ranks)
    return () if len(ranks) == len(set(parts.mesh.ranks)) else tuple(rank - first for rank in ranks)


def _distributed(variable: Any) -> Any:
    return variable if isinstance(variable, tf.distribute.DistributedValues) else getattr(variable, "_value", None)
