"""Fixtures for what XLA compiles, and what the log says of what it does not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from strategies.engine import compiled_replica

LOGGER = "strategies._keras_hooks.compiled_steps"


class Traced:
    """The functions that were made for XLA, as they are traced."""

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
