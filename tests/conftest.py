"""Eight logical CPU devices, made before TensorFlow starts: meshes of up to 2 x 2 x 2 fit in this one process."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.graphs import collect_seldom, forget_gradients
from tests.like_others import IDS
from tests.selecting import leave_listed_to_parity_all, leave_to_parity_all

if TYPE_CHECKING:
    from tests.strategies.parity.baselines import Baselines

NUM_LOGICAL_DEVICES = 8

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_LOGICAL_DEVICES)],
)


collect_seldom()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--parity-all", action="store_true", help="also run the tests that resemble others")
    parser.addoption(
        "--parity-product", action="store_true", help="with --parity-all, run each case with each kind of sharding"
    )
    parser.addoption("--parity-table", metavar="FILE", help="write what the parity tests measure to this page")


class Failures:
    """Prints a failure when it happens: a run that is cut off has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the process with the terminal, for each phase of each test."""
        terminal: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"{report.nodeid} ({report.when}, {report.duration:.0f} s): failed", red=True)
            terminal.write_line(report.longreprtext)


def pytest_configure(config: pytest.Config) -> None:
    """Registers `Failures` in CI, where nobody waits for the summary."""
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))


#: Tests that start several processes. They run one after the other: two jobs at once would starve each other.
SEVERAL_PROCESSES = (
    "tests/benchmarks",
    "tests/deploy/test_mpi.py",
    "tests/deploy/test_ray.py",
    "tests/deploy/test_slurm.py",
    "tests/docs/coming_from",
    "tests/examples/test_goes_on.py",
    "tests/examples/test_gpt_main.py",
    "tests/examples/test_gpt_spanning.py",
    "tests/examples/test_imagenet_train.py",
    "tests/examples/test_mnist_main.py",
    "tests/examples/test_notebooks.py",
    "tests/examples/test_ports.py",
    "tests/examples/test_recommender.py",
    "tests/gpu",
    "tests/hosts",
    "tests/strategies/collectives",
    "tests/strategies/parity/test_processes.py",
    "tests/strategies/processes",
    "tests/strategies/test_doctor.py",
    "tests/strategies/test_elastic.py",
    "tests/strategies/test_horovod_smoke.py",
    "tests/strategies/test_launch",
    "tests/strategies/test_processes_alone.py",
    "tests/docs/test_parallel_layer.py",
    "tests/docs/test_snippets.py",
    "tests/test_readme.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distributes tests to pytest-xdist's workers by file; all that start several processes go to one worker."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "several processes" if path.startswith(SEVERAL_PROCESSES) else path

    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that resemble others, and puts first the tests that take one worker longest."""
    leave_listed_to_parity_all(config, items, IDS)
    leave_to_parity_all(config, items, lambda item: item.get_closest_marker("parity_all") is not None)
    items.sort(key=lambda item: not item.nodeid.startswith(SEVERAL_PROCESSES))


@pytest.fixture(autouse=True)
def _graphs_are_let_go() -> Iterator[None]:
    yield
    forget_gradients()


@pytest.fixture(scope="session")
def on_one_device(tmp_path_factory: pytest.TempPathFactory) -> "Baselines":
    """Returns the outcomes of parity cases in plain Keras, by the name of the case."""
    from tests.strategies.parity.baselines import baselines_of

    return baselines_of(tmp_path_factory)


@pytest.fixture
def without_rewriting() -> Iterator[None]:
    """Makes TensorFlow run graphs as traced: its rewriting depends on the whole graph and changes the order of sums."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False} | before)
