"""One of the processes that run suites together; arguments are the suites' files and pytest's options.

Tests of suites that are marked with `parity_all` run with the flag only, as those that pytest collects.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests.graphs import collect_seldom, forget_gradients
from tests.selecting import leave_to_parity_all


class Suites:
    """A pytest plugin for all suites: selects tests, and frees the graphs of each."""

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        parser.addoption("--parity-all", action="store_true")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        leave_to_parity_all(config, items, lambda item: item.get_closest_marker("parity_all") is not None)

    @pytest.fixture(autouse=True)
    def _graphs_are_let_go(self) -> Iterator[None]:
        yield
        forget_gradients()


if __name__ == "__main__":
    arguments = [str(Path(__file__).with_name(word)) if word.endswith(".py") else word for word in sys.argv[1:]]
    num_devices = int(os.environ.get("SUITE_DEVICES", "1"))
    if num_devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    collect_seldom()
    # The conftest is left out because it makes eight devices.
    options = ["-x", "-q", "-p", "no:cacheprovider", "--noconftest"]
    # Ranks that clean up pytest's common folder at the same time disturb each other.
    with tempfile.TemporaryDirectory() as folder:
        options.append(f"--basetemp={Path(folder) / 'of this rank'}")
        sys.exit(pytest.main([*options, *arguments], plugins=[Suites()]))
