"""The state of the running step, and of the trainer call that runs it: one frozen value each.

The attributes of a step's value are frozen; what the step collects while it is traced is in lists and sets in it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strategies.batches.shares import Combination, Share
from strategies.steps.graph_optimization import StepOptimization
from strategies.steps.replica_copies import ReplicaCopies

#: Takes fused reductions; returns the result of an update and the reductions' sums.
DeferredUpdate = Callable[[Sequence[Any]], tuple[Any, list[Any]]]


@dataclass(frozen=True)
class TrainerCall:
    """A call of one of the functions of Keras' trainer.

    Attributes:
        combination: how the trainer combines the outputs of replicas; None in a custom loop.
        draws_batches: True if the function that runs the step also draws its batches, the next one during each step.
        traces_once: True if one replica may be traced for all local ones: the caller handles `NotAlikeError`.
        optimization: chooses how the graphs of the function are optimized, if the caller does.
    """

    combination: Combination = None
    draws_batches: bool = False
    traces_once: bool = False
    optimization: StepOptimization | None = None


@dataclass(frozen=True)
class StepContext:
    """One step of the local replicas.

    Attributes:
        shares: the shares of the local replicas, in their order; empty outside a step.
        written: by reference, the variables that each replica writes alone.
        agreed: the references of variables that have been synchronized since they were written.
        pending: by replica id and reference, the writes of a replica that are not synchronized yet: (True if by the
            program's own code, the graph of the write).
        deferred: the update that waits until the reductions fused with its gradients are known, and the references of
            the variables that it updates; at most one.
        graph: the graph in which the step is traced; None if it runs eagerly.
        weights: by local replica, the units of sharded weights and their states, see `sharding.units`; empty if the
            weights are whole, or have changed since a replica read them.
        totals: sums of metric state over all replicas, by the variables' references, while these are read; else None.
        copies: the values of the other local replicas, if the first is traced for all; None if each is traced.
    """

    shares: tuple[Share, ...] = ()
    written: dict[Any, Any] = field(default_factory=dict)
    agreed: set[Any] = field(default_factory=set)
    pending: dict[tuple[int, Any], tuple[bool, Any]] = field(default_factory=dict)
    deferred: list[tuple[Callable[[Sequence[Any]], tuple[Any, list[Any]]], frozenset[Any]]] = field(
        default_factory=list
    )
    graph: Any = None
    weights: dict[int | None, Any] = field(default_factory=dict)
    totals: Mapping[Any, Any] | None = None
    copies: ReplicaCopies | None = None


_trainer: contextvars.ContextVar[TrainerCall | None] = contextvars.ContextVar("keras_strategies_trainer", default=None)


@contextlib.contextmanager
def called_by_trainer(call: TrainerCall) -> Iterator[None]:
    """Context manager: steps that run in it are steps of Keras' trainer."""
    token = _trainer.set(call)
    try:
        yield
    finally:
        _trainer.reset(token)


def is_called_by_trainer() -> bool:
    """Returns True in a call of Keras' trainer."""
    return _trainer.get() is not None


def trainer_call() -> TrainerCall:
    """Returns the trainer call that runs the step; the defaults of `TrainerCall` in a custom loop."""
    return _trainer.get() or TrainerCall()
