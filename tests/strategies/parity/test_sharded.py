"""The parity law for strategies that shard optimizers, gradients or weights over their devices."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from strategies import layer_api
from strategies.engine.strategy import Sharded
from tests.covering import covering, pairs_of
from tests.releases import is_there
from tests.strategies.parity.cases import ALL, SECTIONS
from tests.strategies.parity.cases_sharded import (
    OWN,
    PARTS,
    fit,
    in_parts,
    loaded,
    of_few_weights,
    sentences,
    transformer,
)
from tests.strategies.parity.harness import TOLERANCE, Outcome, compare, execute, labels, vectors
from tests.strategies.parity.table import World, title
from tests.strategies.parity.worlds import LIMIT_SECONDS, outcome_of_all, run_in_processes, run_once

EVERY = {**ALL, **OWN, **PARTS}
#: Each treatment of gradients by an optimizer, and all other changes of weights or slots.
IN_ONE_PROCESS = (
    "Adafactor",
    "SGD, clipnorm",
    "Adam, EMA with overwrite",
    "MultiOptimizer",
    "Embedding, sparse gradients, clipnorm",
    "mixed_float16, overflow on one replica only",
    "custom loop, loss over the global batch",
    "clip_by_global_norm in train_step, gradient_accumulation_steps",
    # Two processes save and load slices.
    *(name for name in OWN if name != "saved, loaded, gone on"),
)
#: Cases that gather or write weights, and optimizers that look at weights.
WEIGHTS_IN_ONE_PROCESS = (
    "SpectralNormalization",
    "ScheduleFreeAdamW",
    "SGD, gradients left in accumulation",
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "train_on_batch, test_on_batch, predict_on_batch",
    "sharpness-aware minimization",
    "optimizer that overrides apply_gradients",
    "weights of 1, 5 and 7 numbers, excluded from weight decay",
    "whole weights saved, loaded, gone on",
)
#: Cases that cross processes: sums of parts, norms, overflows, sparse gradients, averages, files.
WEIGHTS_BETWEEN_PROCESSES = (
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "mixed_float16, overflow on one replica only",
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "sharpness-aware minimization",
    "optimizer that overrides apply, gradient_accumulation_steps",
    "Embedding, sparse gradients, clipnorm",
    "saved, loaded, gone on",
    "float8, int8 with LoRA, int4",
)
OVER_HOROVOD = (
    "Adam, EMA",
    "Embedding, sparse gradients",
    "whole weights saved, loaded, gone on",
)
#: Cases with work that is done once for each group, or between groups.
IN_GROUPS = (
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "Embedding, sparse gradients, clipnorm",
)
WEIGHTS_IN_GROUPS = (
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "whole weights saved, loaded, gone on",
)
#: The model in parts that contains the features of all others.
ONE_PART = ("a transformer in parts, norms, averages and overflows of all",)


class Sharding(NamedTuple):
    """A kind of sharding: devices, replicas of a group (None for all), mesh as text, and what is sharded."""

    world: World
    size: int | None = None
    mesh: str = "data=-1"
    shard: str = "optimizer"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the strategy."""
        axes = strategies.DeviceMesh.axes_of(self.mesh)
        return {"shard": self.shard, "shard_size": self.size, "mesh": axes}

    def __str__(self) -> str:
        groups = f", by {self.size}" if self.size else ""
        what = "" if self.shard == "optimizer" else f", {self.shard}"
        return title(self.world) + groups + (f", {self.mesh}" if "=2" in self.mesh else "") + what


SHARDINGS: dict[Sharding, tuple[str, ...]] = {
    Sharding(("MirroredStrategy", 1, 3)): IN_ONE_PROCESS,
    Sharding(("MirroredStrategy", 1, 4), 2): IN_GROUPS,
    Sharding(("MirroredStrategy", 1, 3), shard="weights"): WEIGHTS_IN_ONE_PROCESS,
    Sharding(("MirroredStrategy", 1, 4), 2, shard="weights"): WEIGHTS_IN_GROUPS,
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), shard="weights"): WEIGHTS_BETWEEN_PROCESSES,
    Sharding(("HorovodStrategy", 2, 1), shard="weights"): OVER_HOROVOD,
    Sharding(("MirroredStrategy", 1, 4), None, "data=2,pipe=2", "weights"): (*ONE_PART, "float8 in parts"),
}
SELDOM = (
    Sharding(("MultiWorkerMirroredStrategy", 2, 2)),
    Sharding(("HorovodStrategy", 4, 1), None, "data=2,pipe=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), 2),
    Sharding(("HorovodStrategy", 3, 1)),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), None, "data=2,tensor=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), 2),
    Sharding(("MirroredStrategy", 1, 4), None, "data=2,pipe=2"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), None, "data=2,tensor=2"),
    Sharding(("MirroredStrategy", 1, 2)),
    Sharding(("MirroredStrategy", 1, 4)),
    Sharding(("MultiWorkerMirroredStrategy", 2, 1)),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1)),
    Sharding(("HorovodStrategy", 2, 1)),
    Sharding(("HorovodStrategy", 4, 1), 2),
    Sharding(("MirroredStrategy", 1, 2), shard="weights"),
    Sharding(("MirroredStrategy", 1, 4), shard="weights"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 1), shard="weights"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), 2, shard="weights"),
    Sharding(("HorovodStrategy", 4, 1), 2, shard="weights"),
    Sharding(("MirroredStrategy", 1, 4), None, "data=2,tensor=2"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), None, "data=2,tensor=2"),
    Sharding(("MirroredStrategy", 1, 4), None, "data=2,tensor=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), None, "data=2,pipe=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), None, "data=2,pipe=2"),
    Sharding(("HorovodStrategy", 4, 1), None, "data=2,tensor=2"),
    Sharding(("HorovodStrategy", 4, 1), None, "data=2,pipe=2"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), None, "data=2,tensor=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), None, "data=2,pipe=2", "weights"),
    Sharding(("HorovodStrategy", 4, 1), None, "data=2,tensor=2", "weights"),
)


def properties_of(sharding: Sharding) -> dict[str, Hashable]:
    """Returns on which properties of a sharding the code that runs depends."""
    engine, num_processes, num_local = sharding.world
    return {
        "engine": engine,
        "several processes": num_processes > 1,
        "several devices in a process": num_local > 1,
        "more than two replicas": num_processes * num_local > 2,
        "groups": sharding.size is not None,
        "shard": sharding.shard,
    }


def cost_of(sharding: Sharding) -> float:
    """Returns what a case costs, in units of about a second of a core: each process traces it, for each device."""
    _, num_processes, num_local = sharding.world
    return (2 + num_processes) * max(1.0, 0.6 * num_local)


@functools.cache
def cases_by_sharding() -> dict[Sharding, list[str]]:
    """Returns the cases of `--parity-all`: each runs with every pair of properties, the cases together with all."""
    whole = [each for each in (*SHARDINGS, *SELDOM) if "=2" not in each.mesh]
    cases: dict[Sharding, list[str]] = {each: list(names) for each, names in SHARDINGS.items()}
    for i, name in enumerate((*ALL, *OWN)):
        for each in covering(whole, properties_of, cost_of, first=i):
            # An error on one process ends the job, and so the other cases.
            may_run = each.world[1] == 1 or refusal_of(each, name) is None
            if may_run and name not in cases.setdefault(each, []):
                cases[each].append(name)
    return cases


#: Programs that a sharding refuses, by the part of the error that says why.
IN_A_CONDITIONAL = ("gradients gathered by hand, tf.cond around apply_gradients",)
SET_A_WEIGHT = ("SpectralNormalization", "diffusion")


def refusal_of(sharding: Sharding, name: str) -> str | None:
    """Returns a part of the error with which a sharding refuses a case; None if the case runs."""
    if name in IN_A_CONDITIONAL and sharding.world[2] > 1:
        return "applied inside a tf.cond.*without `shard`"
    if name in SET_A_WEIGHT and sharding.shard == "weights" and sharding.size is not None:
        return r"sets a trainable weight of its own.*Leave shard_size out"
    return None


def cases_of(sharding: Sharding, config: pytest.Config) -> list[str]:
    if "=2" in sharding.mesh:
        return list(PARTS if config.getoption("--parity-all") else SHARDINGS.get(sharding, ()))
    names: Sequence[str] = SHARDINGS.get(sharding, ())
    if config.getoption("--parity-all"):
        names = [*ALL, *OWN] if config.getoption("--parity-product") else cases_by_sharding().get(sharding, ())
    return [name for name in names if is_there(name)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sharding" in metafunc.fixturenames:
        pairs = [
            pytest.param(each, name, id=f"{each}: {name}")
            for each in (*SHARDINGS, *SELDOM)
            for name in cases_of(each, metafunc.config)
        ]
        metafunc.parametrize(("sharding", "name"), pairs)


@pytest.fixture(scope="module")
def folder_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sharding], Path]:
    """Returns a function that runs a world of processes, once, and returns the folder with their outcomes."""

    def finished(sharding: Sharding) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("sharded")
        environment = {"PARITY_ARGUMENTS": json.dumps(sharding.arguments), "PARITY_FOLDER": str(folder)}
        return folder, run_in_processes(sharding.world, cases_of(sharding, request.config), folder, environment)

    return run_once(finished)


@functools.cache
def own_on_one_device(name: str) -> Outcome:
    return execute(EVERY[name], None)


@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_equals_one_device(
    sharding: Sharding, name: str, folder_of: Callable[[Sharding], Path], on_one_device: Callable[[str], Outcome]
) -> None:
    world = sharding.world
    if world[1] == 1:
        devices = [f"CPU:{i}" for i in range(world[2])]
        strategy = strategies.MirroredStrategy(devices, **sharding.arguments)
        refusal = refusal_of(sharding, name)
        if refusal is not None:
            with pytest.raises(ValueError, match=refusal):
                execute(EVERY[name], strategy)
            return
        outcome = execute(EVERY[name], strategy)
    else:
        outcome = outcome_of_all(world, list(EVERY).index(name), folder_of(sharding))
    plain = on_one_device(name) if name in ALL else own_on_one_device(name)
    difference = compare(plain, outcome)
    assert difference.largest <= EVERY[name].tolerance, difference


def sharded(
    num_devices: int, size: int | None = None, shard: Sharded = "optimizer", mesh: dict[str, int] | None = None
) -> strategies.MirroredStrategy:
    devices = [f"CPU:{i}" for i in range(num_devices)]
    return strategies.MirroredStrategy(devices, mesh=mesh, shard=shard, shard_size=size)


def values(model: keras.Model) -> list[np.ndarray]:
    return [*model.get_weights(), *layer_api.values_of(model, layer_api.joined(model.optimizer.variables))]


def test_files_go_on_with_another_number_of_owners_or_none(tmp_path: Path) -> None:
    keras.utils.set_random_seed(3)
    plain = of_few_weights(keras.optimizers.Adam(1e-2, clipnorm=0.5))
    plain.optimizer.build(plain.trainable_variables)
    path = tmp_path / "start.keras"
    plain.save(path)
    fit(plain, 4)
    ways: tuple[tuple[int, Sharded], ...] = ((4, "optimizer"), (4, "weights"), (3, "weights"), (0, None))
    for i, (num_owners, shard) in enumerate(ways):
        model = loaded(path, sharded(num_owners, shard=shard) if num_owners else None)
        fit(model)
        path = tmp_path / f"{i}.keras"
        model.save(path)
    for mine, theirs in zip(values(plain), values(model), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def test_commits_go_on_with_another_number_of_owners() -> None:
    state = strategies.elastic.State()
    with sharded(4).scope():
        model = of_few_weights(keras.optimizers.Adam(1e-2))
    model.fit(vectors(), labels(), batch_size=14, callbacks=[keras_ext.Commits(state, 4)], shuffle=False, verbose=0)
    with sharded(3).scope():
        again = of_few_weights(keras.optimizers.Adam(1e-2))
    assert keras_ext.Commits(state, 4).restore(again).epoch == 1
    for mine, theirs in zip(values(again), values(model), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "axes",
    [
        pytest.param({"tensor": 2, "data": 2}, marks=pytest.mark.parity_all, id="tensor"),
        pytest.param({"data": 2, "pipe": 2}, id="pipe"),
    ],
)
def test_the_parts_of_a_replica_have_slots_of_their_own_weights(axes: dict[str, int]) -> None:
    held: dict[Sharded, Sequence[int]] = {}
    for shard in ("optimizer", "weights"):
        with sharded(4, None, shard, axes).scope():
            model = in_parts()
        model.fit(*sentences(), batch_size=22, verbose=0)
        # Two slots of each weight's size, sharded over two devices; with shard="weights" the weights are sharded, too.
        report = keras_ext.memory_report(model)
        held[shard] = list(report.weights.values())
        for own, slots in zip(held[shard], report.slots.values(), strict=True):
            assert slots == pytest.approx(own * (1 if shard == "optimizer" else 2), rel=0.02)
    assert held["weights"] == pytest.approx([own / 2 for own in held["optimizer"]], rel=0.02)


@pytest.mark.parametrize(
    ("make", "size", "shard"),
    [
        (keras.optimizers.Adam, 4, "optimizer"),
        (keras.optimizers.Lamb, 4, "optimizer"),
        (keras.optimizers.Adam, 2, "optimizer"),
        (keras.optimizers.Adam, 4, "weights"),
        (keras.optimizers.Adam, 2, "weights"),
    ],
    ids=["slices", "whole weights", "slices, by 2", "weights", "weights, by 2"],
)
def test_each_device_holds_its_part(make: Callable[[], keras.Optimizer], size: int, shard: Sharded) -> None:
    with sharded(4, size, shard).scope():
        model = keras.Sequential(
            [keras.Input((300,)), *(keras.layers.Dense(300) for _ in range(4)), keras.layers.Dense(3)]
        )
        model.compile(make(), "mse")
    model.fit(np.zeros((4, 300)), np.zeros((4, 3)), verbose=0)
    report = keras_ext.memory_report(model)
    formula = 2 * 4 * model.count_params() / size
    assert len(report.slots) == 4
    for held in report.slots.values():
        # Within one percent: every device also holds the step counter and the learning rate.
        assert abs(held - formula) < 0.01 * formula
    weights = 4 * model.count_params() / (size if shard == "weights" else 1)
    for held in report.weights.values():
        assert abs(held - weights) < 0.01 * weights


def test_refusals() -> None:
    # Type checkers refuse it as well.
    with pytest.raises(ValueError, match=r"'gradients', 'weights' or None\. Received: shard='all'"):
        strategies.MirroredStrategy(["CPU:0", "CPU:1"], shard="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Sizes that fit 4 replicas, 4 in each process: \[2, 4\]\. Received: .*=3"):
        sharded(4, 3)
    with pytest.raises(ValueError, match=r"Set shard.*Received: shard_size=2, shard=None"):
        strategies.MirroredStrategy(["CPU:0", "CPU:1"], shard_size=2)
    with sharded(4, mesh={"data": 2, "tensor": 2}).scope():
        split = keras_ext.parallelize(transformer("sgd"))
        split.compile(keras.optimizers.Lamb(), split.loss)
    with pytest.raises(ValueError, match=r"Lamb looks at whole weights.*such as Adam\. Received: the split weights"):
        split.fit(*sentences(), verbose=0)
    with sharded(4, 2, "weights").scope():
        layer = keras.layers.SpectralNormalization(keras.layers.Dense(3, "softmax"))
        model = keras.Sequential([keras.Input((6,)), layer])
        model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match=r"sets a trainable weight of its own in a step.*or use shard='optimizer'"):
        model.fit(vectors(), labels(), verbose=0)
    with sharded(2).scope():
        model = of_few_weights(keras.optimizers.Adam(use_ema=True))
    with pytest.raises(ValueError, match="SwapEMAWeights exchanges weights and averages, which shard= distributes"):
        model.fit(vectors(), labels(), callbacks=[keras.callbacks.SwapEMAWeights()], verbose=0)


def test_each_case_meets_each_pair_of_properties() -> None:
    every = set().union(*(pairs_of(properties_of(each)) for each in (*SHARDINGS, *SELDOM) if "=2" not in each.mesh))
    for name in {*ALL, *OWN} - {*IN_A_CONDITIONAL, *SET_A_WEIGHT}:
        met = [properties_of(each) for each, names in cases_by_sharding().items() if name in names]
        assert set().union(*map(pairs_of, met)) >= every


def test_sections_are_all_covered() -> None:
    assert set().union(*SHARDINGS.values()) <= set(EVERY)
    assert not set(OWN) & {case.name for cases in SECTIONS.values() for case in cases}
