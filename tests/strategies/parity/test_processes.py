"""The parity law across processes: each world of processes is started once and runs all cases."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.processes import Programs, cluster_environments, horovodrun
from tests.strategies.parity.cases import ALL
from tests.strategies.parity.harness import Case, Outcome, compare
from tests.strategies.parity.table import WORLDS, Table, World, title

LIMIT_SECONDS = 900
WORKER = str(Path(__file__).with_name("worker.py"))

# Worlds of four replicas take a quarter of an hour for all cases: those run with `--parity-all`. Otherwise, those run
# in which four replicas meet what two do not: empty ones, and each path between processes once.
WITH_FOUR_REPLICAS = (
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "batches of 1 row",
    "batches of 3 rows",
    "one-pass generator",
    "train_on_batch, test_on_batch, predict_on_batch",
    "BatchNormalization(synchronized=True)",
    "custom train_step with a loss per row",
    "loss with reduction='mean_with_sample_weight'",
    "custom loop, loss over the global batch",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "Embedding, sparse gradients, gradient_accumulation_steps",
    "AUC, Precision, Recall, F1 and other counts",
    "steps_per_execution=3",
    "mixed_float16, overflow on one replica only",
)


def cases_of(world: World, config: pytest.Config) -> list[str]:
    """The names of the cases that run in a world."""
    everything = world[1] * world[2] == 2 or config.getoption("--parity-all")
    return list(ALL) if everything else list(WITH_FOUR_REPLICAS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        pairs = [
            pytest.param(world, ALL[name], id=f"{title(world)}: {name}")
            for world in WORLDS
            if world[1] > 1
            for name in cases_of(world, metafunc.config)
        ]
        metafunc.parametrize(("world", "case"), pairs)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[World], Path]:
    """Runs a world, once; returns the folder in which its processes have left what each case gave."""

    @functools.cache
    def finished(world: World) -> tuple[Path, str]:
        name, num_processes, num_local = world
        folder = tmp_path_factory.mktemp("parity in processes")
        environment = {"PARITY_LOCAL_DEVICES": str(num_local)}
        program = [WORKER, name, str(folder), *cases_of(world, request.config)]
        if name == "HorovodStrategy":
            programs = Programs(folder, [horovodrun(num_processes, program)], [environment])
        else:
            environments = [environment | one for one in cluster_environments(num_processes)]
            programs = Programs(folder, [[sys.executable, *program]] * num_processes, environments)
        with programs:
            codes = programs.wait(LIMIT_SECONDS)
        if all(code == 0 for code in codes):
            return folder, ""
        errors = "\n".join(path.read_text() for path in sorted(folder.glob("error-*")))
        late = f"(None: it took more than {LIMIT_SECONDS} s)"
        return folder, f"{world}: exit codes {codes} {late}\n{errors}\n{programs.output()}"

    def checked(world: World) -> Path:
        folder, failure = finished(world)
        if failure:
            pytest.fail(failure)
        return folder

    return checked


def read(folder: Path, case: Case, rank: int) -> Outcome:
    outcome: Outcome = pickle.loads((folder / f"{list(ALL).index(case.name)}-{rank}.pickle").read_bytes())
    return outcome


@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_equals_one_device(
    world: World,
    case: Case,
    run: Callable[[World], Path],
    on_one_device: Callable[[str], Outcome],
    parity_table: Table,
) -> None:
    folder = run(world)
    first, *others = [read(folder, case, rank) for rank in range(world[1])]
    for other in others:
        assert all(map(np.array_equal, first.weights, other.weights))
        assert all(map(np.array_equal, first.slots, other.slots))
        assert all(np.array_equal(first.logs[name], other.logs[name]) for name in first.logs)
    difference = compare(on_one_device(case.name), first)
    parity_table.record(case.name, world, difference)
    assert difference.largest <= case.tolerance, difference
