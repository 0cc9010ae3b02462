"""Four hosts for all tests of this folder, and what one device has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import namespaces, network, train
from tests.strategies.parity.harness import Outcome


@pytest.fixture(scope="session")
def _all_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[network.Hosts]:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with network.Hosts(4, tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def hosts(_all_hosts: network.Hosts) -> Iterator[network.Hosts]:
    """As they were at the beginning, whatever has happened to them."""
    _all_hosts.restore()
    yield _all_hosts
    # Not only before the next test: what trains for ever would take its time.
    _all_hosts.restore()


@pytest.fixture(scope="session")
def on_plain_keras() -> Outcome:
    """What plain Keras on one device has after the same training."""
    return train.outcome()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that all hosts see: there is one file system."""
    return tmp_path
