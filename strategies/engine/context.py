"""The state of the step that is running, and of the trainer that drives it: one frozen value each.

Of a step, the value is frozen; what the step itself collects while it is traced is in lists and sets that it holds.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from strategies.batches.shares import Combination, Share


@dataclass(frozen=True)
class TrainerCall:
    """A call of one of the functions of Keras' trainer.

    Attributes:
        combination: the way in which the trainer combines the outputs of replicas; None for a loop of the user's own.
        draws_batches: whether the function that runs the step draws its batches, too: the next one while a step runs.
    """

    combination: Combination = None
    draws_batches: bool = False


@dataclass(frozen=True)
class GatheredWeights:
    """Whole weights that a step has gathered from shards.

    Attributes:
        tensors: by the id of a variable and the local replica.
        assigned: in the same way, what a replica has set since.
        units: by local replica the units that were gathered, in the order of their use, with the tensors of each.
        forward: by local replica the names of the operations that were there when its first gradient was taken; None if
            more forward passes come behind it.
        anew: by local replica what was gathered for single passes of a pipeline, in order: weights with the tensors.
    """

    tensors: dict[tuple[int, int], Any] = field(default_factory=dict)
    assigned: dict[tuple[int, int | None], Any] = field(default_factory=dict)
    units: dict[int, list[tuple[Any, list[Any]]]] = field(default_factory=dict)
    forward: dict[int, frozenset[str] | None] = field(default_factory=dict)
    anew: dict[int, list[tuple[list[Any], list[Any]]]] = field(default_factory=dict)

    def forget(self) -> None:
        """Has weights gathered again: they have changed."""
        for collected in (self.tensors, self.assigned, self.units, self.forward, self.anew):
            collected.clear()


@dataclass(frozen=True)
class StepContext:
    """One step of the local replicas.

    Attributes:
        shares: those of the local replicas, in their order; none outside of steps.
        written: collects the variables that replicas write for themselves, by their references.
        agreed: the references of those on which replicas have agreed since they were written.
        pending: what a replica has written for itself since they agreed, by its id and the reference; whether by a
            program's own code, and in which graph.
        deferred: the update that is left for later, when it is known what is to travel with its gradients; at most one.
        graph: in which the step is traced; None if it runs eagerly.
        weights: what was gathered of weights that are in shards.
    """

    shares: tuple[Share, ...] = ()
    written: dict[Any, Any] = field(default_factory=dict)
    agreed: set[Any] = field(default_factory=set)
    pending: dict[tuple[int, Any], tuple[bool, Any]] = field(default_factory=dict)
    deferred: list[Callable[[Sequence[Any]], tuple[Any, list[Any]]]] = field(default_factory=list)
    graph: Any = None
    weights: GatheredWeights = field(default_factory=GatheredWeights)


_trainer: contextvars.ContextVar[TrainerCall | None] = contextvars.ContextVar("keras_strategies_trainer", default=None)


@contextlib.contextmanager
def called_by_trainer(call: TrainerCall) -> Iterator[None]:
    """Marks the steps that run inside as those of Keras' trainer."""
    token = _trainer.set(call)
    try:
        yield
    finally:
        _trainer.reset(token)


def trainer_call() -> TrainerCall:
    """Returns the call of the trainer that drives the step; that of a loop of the user's own where none does."""
    return _trainer.get() or TrainerCall()
