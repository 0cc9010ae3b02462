"""Four hosts for all tests of this folder, and the results of one device."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import platforms
from tests.hosts import namespaces, network, train
from tests.strategies.parity.harness import Outcome


@pytest.fixture(scope="session")
def _all_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[network.Hosts]:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with network.Hosts(4, tmp_path_factory.mktemp("hosts"), platforms.names_of_machines(2)) as hosts:
        yield hosts


@pytest.fixture
def hosts(_all_hosts: network.Hosts) -> Iterator[network.Hosts]:
    """Yields the hosts in their initial state, whatever has happened to them."""
    _all_hosts.restore()
    yield _all_hosts
    # Also after each test: endless training would slow down the next one.
    _all_hosts.restore()


@pytest.fixture(scope="session")
def on_plain_keras() -> Outcome:
    """Returns the outcome of the same training in plain Keras on one device."""
    return train.outcome()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder that all hosts see: they share one file system."""
    return tmp_path
