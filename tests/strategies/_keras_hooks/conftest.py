"""Fixtures for the graphs that XLA compiles and for the log about the others; selection without `--parity-all`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from strategies.steps import compiled_replica
from tests.selecting import leave_listed_to_parity_all

LOGGER = "strategies._keras_hooks.compiled_steps"

_CALLBACKS = "test_callbacks.py::test_does_what_it_does_on_one_device"
_MIXING = "test_kinds.py::test_layers_that_mix_rows_are_said_and_found"
_UNCALLABLE = "test_trainer.py::test_models_that_cannot_be_called_on_the_inputs_are_built_by_their_first_step"

LEFT_OUT = (
    # surface/test_callbacks.py compares these classes with one device.
    f"{_CALLBACKS}[BackupAndRestore]",
    f"{_CALLBACKS}[CSVLogger]",
    f"{_CALLBACKS}[EarlyStopping]",
    f"{_CALLBACKS}[ModelCheckpoint]",
    f"{_CALLBACKS}[ReduceLROnPlateau]",
    f"{_CALLBACKS}[SwapEMAWeights]",
    f"{_CALLBACKS}[TensorBoard]",
    f"{_CALLBACKS}[TerminateOnNaN]",
    # Two processes compare stages; a loss of the model is scaled like that of a layer.
    "test_comparisons.py::test_what_is_equal_is_found_equal_and_left_as_it_was[in stages]",
    "test_comparisons.py::test_deliberate_faults_are_named[data-a layer's loss averages]",
    # Class weights become weights of rows, which other cases cover.
    "test_compiled_steps.py::test_the_numbers_are_those_of_one_device[class_weight]",
    # The second device is compiled for.
    "test_compiled_steps.py::test_one_replica_is_compiled_whole_as_by_keras[CPU:0-1]",
    "test_distributed_models.py::test_calls_of_keras_model_in_place_of_super[ExplicitEntries-False]",
    # Replicas of pipelines have such losses.
    "test_gathered_functions.py::test_they_are_those_of_one_device[per row]",
    # surface/test_readers.py reads so.
    "test_inputs.py::test_fit_equals_one_device[arrays]",
    "test_inputs.py::test_fit_equals_one_device[steps]",
    f"{_MIXING}[centres]",
    f"{_MIXING}[reverses]",
    f"{_MIXING}[rolls]",
    # One value of each pair stays.
    "test_trainer.py::test_steps_are_counted_as_on_one_device[Adam-2-False]",
    "test_trainer.py::test_steps_are_counted_as_on_one_device[Adam-None-False]",
    f"{_UNCALLABLE}[Siamese-False]",
    f"{_UNCALLABLE}[WithoutCall-True]",
)
IDS = frozenset(f"tests/strategies/_keras_hooks/{each}" for each in LEFT_OUT)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases that resemble others, without the flag."""
    leave_listed_to_parity_all(config, items, IDS)


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
