"""Readers of input over two ranks: run by `test_suites` in two processes at once, never collected.

SUITE_READERS is "all" for all readers, and all ways to resume after a stop; without it a sample of them runs.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.strategies.processes.ranks import all_ranks, fit, numbers, process_group, rank, strategy
from tests.surface.cells import Outcome
from tests.surface.reader_cells import outcome
from tests.surface.reader_places import Place
from tests.surface.reader_stops import KEEPERS, stopped
from tests.surface.readers import READERS, SAMPLE

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")

_ALL = os.environ.get("SUITE_READERS") == "all"
_STOPS = (
    [(name, keeper) for name in READERS for keeper in KEEPERS]
    if _ALL
    else [
        ("tf.data, repeated", "Checkpoints(every_steps=2)"),
        ("PyDataset, threads", "BackupAndRestore"),
        ("generator", "Checkpoints(every_steps=2)"),
    ]
)


@pytest.fixture(scope="module", autouse=True)
def _graphs_are_not_rewritten() -> Iterator[None]:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@functools.cache
def places() -> tuple[Place, Place]:
    """Returns the `Place` of the strategy, and that of one device."""
    return Place(strategy(), folder=Path(os.environ["SUITE_FOLDER"])), Place()


def _check(cell: str, found: Outcome) -> None:
    """Fails on both ranks if one fails, and appends the outcome to a table."""
    if rank() == 0:
        with (Path(os.environ["SUITE_FOLDER"]) / "readers.jsonl").open("a") as file:
            file.write(json.dumps({"cell": cell, **asdict(found)}) + "\n")
    assert all_ranks(int(found.is_allowed)) == [1, 1], found


@pytest.mark.parametrize("name", READERS if _ALL else SAMPLE)
def test_a_reader(name: str) -> None:
    _check(name, outcome(name, *places()))


@pytest.mark.parametrize(("name", "keeper"), _STOPS)
def test_a_stop(name: str, keeper: str) -> None:
    _check(f"{name}; {keeper}", stopped(READERS[name], keeper, *places()))


def test_each_row_of_a_job_of_the_service_that_ranks_share_counts_once() -> None:
    """For a named job of the service, TensorFlow declares the batches that a rank gets to be its own."""
    service = tf.data.experimental.service
    address = Path(os.environ["SUITE_FOLDER"]) / "address"
    servers: list[Any] = []
    if rank() == 0:
        servers.append(service.DispatchServer())
        target = servers[0].target.split("://")[1]
        servers.append(service.WorkerServer(service.WorkerConfig(dispatcher_address=target)))
        address.write_text(servers[0].target)
    process_group().barrier()
    read = service.distribute("parallel_epochs", service=address.read_text(), job_name="shared")
    found = fit(numbers(24).batch(4).apply(read))
    assert (found["seen"], found["total"]) == ([24.0], [sum(range(24))])
    # The servers live until both ranks have read all.
    process_group().barrier()
