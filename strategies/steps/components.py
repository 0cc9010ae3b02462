"""The variables with a component on each local replica, found by the resource of the first component."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any


class Components:
    """The variables of one strategy that each local replica has a component of.

    Args:
        num_local: the number of local replicas.
    """

    def __init__(self, num_local: int) -> None:
        self._num_local = num_local
        self._variables: dict[int, weakref.ref[Any]] = {}

    def add(self, variable: Any) -> None:
        """Registers a distributed variable, for as long as it exists."""
        if len(getattr(variable, "values", ())) == self._num_local > 1:
            key = id(variable)
            self._variables[key] = weakref.ref(variable, lambda _: self._variables.pop(key, None))

    def resources(self) -> dict[int, Sequence[Any]]:
        """Returns the resources of each variable's components, by the id of the first component's resource."""
        alive = [variable for reference in list(self._variables.values()) if (variable := reference()) is not None]
        handles = [[component.handle for component in variable.values] for variable in alive]
        return {id(each[0]): each for each in handles}
