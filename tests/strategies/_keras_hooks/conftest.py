"""Fixtures for the graphs that XLA compiles and for the log about the others; selection without `--parity-all`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from strategies.steps import compiled_replica
from tests.selecting import leave_to_parity_all

LOGGER = "strategies._keras_hooks.compiled_steps"

# Class weights become weights of rows, which other cases cover.
LEFT_OUT = ("test_the_numbers_are_those_of_one_device[class_weight]",)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases that resemble others, without the flag."""
    leave_to_parity_all(config, items, lambda item: item.nodeid.endswith(LEFT_OUT))


class Traced:
    """Records the graphs of the functions that are made for XLA."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.graphs: list[Any] = []
        check = compiled_replica.check_graph

        def noted(graph: Any, **kwargs: Any) -> None:
            check(graph, **kwargs)
            self.graphs.append(graph)

        patch.setattr(compiled_replica, "check_graph", noted)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    return Traced(monkeypatch)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Returns the lines of the log, each with its level."""
    caplog.set_level(logging.INFO, LOGGER)
    return lambda: [(each.levelname, each.getMessage()) for each in caplog.records if each.name == LOGGER]
