"""The outcomes of the parity cases in plain Keras: each case is trained once in a test run, for all workers."""

from __future__ import annotations

import functools
import os
import pickle
from pathlib import Path

import pytest

from tests.strategies.parity.cases import ALL
from tests.strategies.parity.harness import Outcome, execute


class Baselines:
    """Returns the outcome of a case on one device, by its name.

    Args:
        folder: shared by all workers of pytest-xdist: a case that one of them has trained is read by the others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(exist_ok=True)
        self._read = functools.cache(self._outcome)

    def __call__(self, name: str) -> Outcome:
        return self._read(name)

    def _outcome(self, name: str) -> Outcome:
        path = self._folder / f"{list(ALL).index(name)}.pickle"
        if not path.exists():
            # Two workers may train a case at the same time. Both files are complete, and the last one stays.
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(pickle.dumps(execute(ALL[name], None)))
            unfinished.rename(path)
        outcome: Outcome = pickle.loads(path.read_bytes())
        return outcome


def baselines_of(factory: pytest.TempPathFactory) -> Baselines:
    """Returns the baselines of this test run."""
    folder = factory.getbasetemp()
    # Each worker has a folder of its own in the folder of the run.
    return Baselines((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "baselines")
