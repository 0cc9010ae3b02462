"""Rank 0 drives: it runs Keras' code on the variables of all processes, weight by weight; the others serve it.

Keras writes a file, or reads one, in one process. Where a replica spans processes, or processes share the optimizer's
work, no process has all variables. So all processes call the same function. Rank 0 runs it, and broadcasts a request
for each variable of another process that it reads or sets. The others wait for requests, take part in sending each
value, and return when rank 0 does, with an error if it had one. No process ever holds more than one weight of another
process.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup
from strategies.collectives.strings import broadcast_text
from strategies.engine.engine import Engine
from strategies.replica.deferred import component_of
from strategies.replica.driving import driving, is_driving
from strategies.replica.fetching import assembled, drop, give_to_all, local_value, slices
from strategies.replica.owners import owners_of
from strategies.steps.explained import explained

_Result = TypeVar("_Result")

_END, _FAILED, _READ, _ASSIGN = range(4)


def drive(engine: Engine, variables: Sequence[Any], function: Callable[[], _Result]) -> _Result | None:
    """Runs ``function`` on rank 0, which may read and set ``variables`` of all processes; all processes call this.

    Where every process has all variables, rank 0 runs it and the others do nothing. Inside a driven function, it just
    calls ``function()``.

    Args:
        engine: the engine of a strategy in which several processes take part.
        variables: the Keras variables that ``function`` may read or set, in the same order on all processes.
        function: runs no collective of its own.

    Returns:
        What ``function`` returned; None on other ranks.

    Raises:
        ValueError: on ranks other than 0, when ``function`` failed on rank 0, which raises the error itself.
    """
    job = engine.process_group
    if is_driving():
        return function()
    if not engine.owns_only_part:
        if job.rank > 0:
            return None
        with driving(None):
            return function()
    with explained(engine.member):
        if job.rank == 0:
            return _run(job, variables, function)
        _serve(job, variables)
        return None


def _run(job: ProcessGroup, variables: Sequence[Any], function: Callable[[], _Result]) -> _Result:
    """Runs the function on rank 0, and broadcasts how it ended."""
    try:
        with driving(_Rank0(job, variables)):
            result = function()
    except BaseException as error:
        # The others wait for a message in any case.
        _broadcast_request(job, _FAILED)
        broadcast_text(f"{type(error).__name__}: {error}", job)
        raise
    _broadcast_request(job, _END)
    return result


class _Rank0:
    """The driver on rank 0: reads and sets variables that other processes own.

    Args:
        job: the process group of all processes.
        variables: the variables that requests can refer to.
    """

    def __init__(self, job: ProcessGroup, variables: Sequence[Any]) -> None:
        self._job = job
        self._variables = variables
        self._indices = {id(component_of(variable)): index for index, variable in enumerate(variables)}

    def read(self, component: Any) -> tf.Tensor:
        """Returns the value on the variable's first owner."""
        return assembled(component.shape, component.dtype, self.slices(component))

    def slices(self, component: Any) -> Iterator[tf.Tensor]:
        """Yields the value in flat slices. The owner sends all slices, even if the caller stops early."""
        index = self._index(component)
        _broadcast_request(self._job, _READ, index)
        root = owners_of(self._variables[index])[0]
        sent = slices(self._job, root, component.shape, component.dtype, lambda: None)
        try:
            for part in sent:  # noqa: UP028 (if closed early, `yield from` would close `sent`, too)
                yield part
        finally:
            drop(sent)

    def assign(self, component: Any, value: Any) -> None:
        """Sets the variable on all processes that own it, to a tensor or a ``StoredArray``."""
        index = self._index(component)
        _broadcast_request(self._job, _ASSIGN, index)
        drop(slices(self._job, 0, component.shape, component.dtype, lambda: value))

    def _index(self, component: Any) -> int:
        index = self._indices.get(id(component))
        if index is None:
            raise ValueError(
                f"{component.name!r} is owned by rank {component.owner}, and is none of the model's variables, nor of "
                "its optimizer's: rank 0 cannot write or read it in a file."
            )
        return index


def _serve(job: ProcessGroup, variables: Sequence[Any]) -> None:
    """Takes part in rank 0's reads and assignments until rank 0 is done."""
    while True:
        kind, index = _broadcast_request(job)
        if kind == _END:
            return
        if kind == _FAILED:
            raise ValueError(f"Rank 0 failed in an operation of all processes. {broadcast_text('', job)}")
        variable = variables[index]
        shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
        if kind == _READ:
            drop(slices(job, owners_of(variable)[0], shape, dtype, functools.partial(local_value, variable)))
        else:
            give_to_all(variable, job)


def _broadcast_request(job: ProcessGroup, kind: int = 0, index: int = 0) -> tuple[int, int]:
    """Broadcasts rank 0's request, and returns it on all processes; the arguments of the others are ignored."""
    kind, index = job.broadcast(tf.constant([kind, index])).numpy().tolist()
    return kind, index
