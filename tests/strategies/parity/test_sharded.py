"""The parity law for strategies that shard optimizers, gradients or weights over their devices."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from strategies import layer_api
from strategies.engine.strategy import Sharded
from tests.covering import pairs_of
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
from tests.strategies.parity.selection import IN_A_CONDITIONAL
from tests.strategies.parity.shardings import (
    SELDOM,
    SET_A_WEIGHT,
    SHARDINGS,
    Sharding,
    cases_by_sharding,
    cases_of,
    properties_of,
    refusal_of,
)
from tests.strategies.parity.worlds import LIMIT_SECONDS, outcome_of_all, run_in_processes, run_once

EVERY = {**ALL, **OWN, **PARTS}


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
        pytest.param(keras.optimizers.Adam, 4, "optimizer", id="slices"),
        pytest.param(keras.optimizers.Lamb, 4, "optimizer", id="whole weights"),
        pytest.param(keras.optimizers.Adam, 2, "optimizer", id="slices, by 2", marks=pytest.mark.parity_all),
        pytest.param(keras.optimizers.Adam, 4, "weights", id="weights", marks=pytest.mark.parity_all),
        pytest.param(keras.optimizers.Adam, 2, "weights", id="weights, by 2"),
    ],
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
    for name in {*ALL, *OWN} - {IN_A_CONDITIONAL, *SET_A_WEIGHT}:
        met = [properties_of(each) for each, names in cases_by_sharding().items() if name in names]
        assert set().union(*map(pairs_of, met)) >= every


def test_sections_are_all_covered() -> None:
    assert set().union(*SHARDINGS.values()) <= set(EVERY)
    assert not set(OWN) & {case.name for cases in SECTIONS.values() for case in cases}
