"""The driver of a job: a process that reads and sets variables of all processes while the others serve it.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

import contextlib
import contextvars
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


_driver: contextvars.ContextVar[Driver | None] = contextvars.ContextVar("keras_strategies_driver", default=None)


def current_driver() -> Driver | None:
    """Returns the driver, in the process that drives the others; None elsewhere."""
    return _driver.get()


@contextlib.contextmanager
def driving(driver: Driver) -> Iterator[None]:
    """Context manager: this process drives the others with ``driver``."""
    token = _driver.set(driver)
    try:
        yield
    finally:
        _driver.reset(token)
