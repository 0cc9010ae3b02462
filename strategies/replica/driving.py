"""The driver of a job: a process that reads and sets variables of all processes while the others serve it.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol


class Driver(Protocol):
    """Reads and sets the components of variables that other processes own."""

    def read(self, component: Any) -> Any:
        """Returns the value on the variable's first owner, as a tensor."""

    def slices(self, component: Any) -> Iterator[Any]:
        """Yields the value in flat slices. The owner sends all slices, even if the caller stops early."""

    def assign(self, component: Any, value: Any) -> None:
        """Sets the variable on all processes that own it, to a tensor or a ``StoredArray``."""


@dataclasses.dataclass(frozen=True)
class Driven:
    """A function that one process runs for all.

    Attributes:
        driver: reaches the variables that other processes own; None if this process has all variables.
    """

    driver: Driver | None


_running: contextvars.ContextVar[Driven | None] = contextvars.ContextVar("keras_strategies_driven", default=None)


def current_driver() -> Driver | None:
    """Returns the driver, in the process that drives the others; None elsewhere."""
    running = _running.get()
    return None if running is None else running.driver


def is_driving() -> bool:
    """Returns True in a function that this process runs for all: it must not wait for the others."""
    return _running.get() is not None


@contextlib.contextmanager
def driving(driver: Driver | None) -> Iterator[None]:
    """Context manager: this process runs the block for all; with ``driver``, it drives the others."""
    token = _running.set(Driven(driver))
    try:
        yield
    finally:
        _running.reset(token)
