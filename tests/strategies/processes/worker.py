"""One of the processes that run suites together; arguments are the suites' files and pytest's options."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests.graphs import collect_seldom, forget_gradients


class LetsGraphsGo:
    """A pytest plugin for all suites: frees the graphs of each test."""

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
        sys.exit(pytest.main([*options, *arguments], plugins=[LetsGraphsGo()]))
