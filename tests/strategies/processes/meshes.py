"""Replicas of several devices in each of two processes: run by `test_suites` in both at once, never collected.

As in the other suites, both ranks find the same results.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import layer_api, multi_worker_mirrored
from tests.strategies.processes.mesh_strategies import ENGINE, new_strategy, on
from tests.strategies.processes.ranks import shared_folder

NUM_LOCAL = int(os.environ.get("SUITE_DEVICES", "1"))

#: A mesh over both processes.
MESH: Mapping[str, int] = {"data": 2, "pipe": 2} if NUM_LOCAL == 2 else {"data": 2, "pipe": 2, "tensor": 2}


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on(MESH)


def process_group() -> Any:
    return on(MESH).extended.engine.process_group


def rank() -> int:
    return int(process_group().rank)


def assert_same_on_all_ranks(values: Any) -> None:
    """Asserts that values are bit-identical on all ranks."""
    for value in values:
        first, second = process_group().gather(tf.convert_to_tensor(np.asarray(value)[np.newaxis])).numpy()
        np.testing.assert_array_equal(first, second)


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Path:
    return shared_folder(request.node.name, process_group())


def tokens() -> np.ndarray:
    from tests.strategies.parity.cases_optimizers import tokens

    return np.asarray(tokens())


def labels() -> np.ndarray:
    from tests.strategies.parity.harness import labels

    return labels()


def plain_model(normalized: bool = False, sparse: bool = True) -> keras.Model:
    """Returns dense layers, optionally after an embedding (sparse gradients), optionally with batch normalization."""
    first = [keras.layers.Embedding(9, 4, name="embedding"), keras.layers.Flatten(name="flatten")]
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            *(first if sparse else [keras.layers.Rescaling(1 / 9, name="scaled")]),
            keras.layers.Dense(8, "tanh", name="up"),
            *([keras.layers.BatchNormalization(synchronized=True, name="normalized")] if normalized else []),
            keras.layers.Dense(8, name="down"),
            keras.layers.Activation("tanh", name="tanh"),
            keras.layers.Dense(3, name="head"),
        ]
    )


def spread(model: keras.Model, axes: Mapping[str, int]) -> keras.Model:
    """Returns the model with its layers split and staged as the mesh asks."""
    if "tensor" in axes:
        model = keras_ext.parallelize(model)
    return keras_ext.PipelineModel(model, num_microbatches=3) if "pipe" in axes else model


def compiled(model: keras.Model, optimizer: Any, **kwargs: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **kwargs)
    model.optimizer.build(model.trainable_variables)
    return model


def assert_parity(
    axes: Mapping[str, int],
    optimizer: Any,
    make: Callable[[], keras.Model] = plain_model,
    *,
    predict: bool = True,
    **kwargs: Any,
) -> None:
    """Trains the model on the mesh and in plain Keras: batches of 14 rows, the last one of 3."""
    from tests.strategies.parity.harness import TOLERANCE, Case, compare, execute, fit_arrays

    def made(axes: Mapping[str, int]) -> keras.Model:
        return compiled(spread(make(), axes), optimizer(), **kwargs)

    run = fit_arrays(tokens(), labels(), predict=predict)
    one_device = execute(Case("", lambda: made({}), run), None)
    found = execute(Case("", lambda: made(axes), run), on(axes))
    assert_same_on_all_ranks([*found.weights, *found.slots, *(found.logs[name] for name in sorted(found.logs))])
    difference = compare(one_device, found)
    assert difference.largest <= TOLERANCE, difference


def adam() -> Any:
    return keras.optimizers.Adam(1e-3, global_clipnorm=0.05)


def momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)


def scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Lamb(1e-3), initial_scale=2.0**14)


def gathering() -> Any:
    return keras.optimizers.Adam(1e-3, gradient_accumulation_steps=3, clipnorm=0.05)


def gathering_momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=3, clipnorm=0.5)


@pytest.mark.skipif(NUM_LOCAL != 2, reason="of the meshes of two devices in each process")
class TestTwoDevices:
    def test_stages(self) -> None:
        assert_parity({"data": 2, "pipe": 2}, adam)

    def test_shards(self) -> None:
        # Not Adam: it divides gradients near zero by themselves, and so shows the order of sums.
        assert_parity({"data": 2, "tensor": 2}, momentum, functools.partial(plain_model, normalized=True))

    def test_a_loss_scale_and_whole_weights(self) -> None:
        # Lamb needs whole weights, so a split weight is gathered for it.
        assert_parity({"data": 2, "tensor": 2}, scaled, functools.partial(plain_model, sparse=False), predict=False)


@pytest.mark.skipif(NUM_LOCAL != 4, reason="of the meshes of four devices in each process")
class TestFourDevices:
    def test_stages_of_shards(self) -> None:
        assert_parity({"data": 2, "pipe": 2, "tensor": 2}, adam)

    def test_two_replicas_in_each_process(self) -> None:
        make = functools.partial(plain_model, normalized=True)
        assert_parity({"data": 4, "tensor": 2}, gathering_momentum, make, predict=False, steps_per_execution=2)

    @pytest.mark.skipif(ENGINE == "HorovodStrategy", reason="Horovod joins processes, not their devices")
    def test_sums_between_the_devices_of_all_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sums are made between devices, as NCCL makes them between GPUs."""
        monkeypatch.setattr(multi_worker_mirrored, "_sum_between_devices", lambda devices: len(devices) > 1)
        axes = {"data": 8}
        assert on(axes).extended.engine.process_group.joins_devices
        assert_parity(axes, momentum, functools.partial(plain_model, normalized=True), predict=False)


def mesh_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    with on(MESH).scope():
        return compiled(spread(plain_model(), MESH), gathering())


def state(model: keras.Model) -> list[np.ndarray]:
    return [*model.get_weights(), *map(np.asarray, layer_api.joined(model.optimizer.variables))]


def assert_close(model: keras.Model, other: keras.Model) -> None:
    """Compares states up to the order in which parts of accumulated gradients are summed."""
    for one, another in zip(state(model), state(other), strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-6, atol=1e-9)


def test_weights_lie_on_the_devices_of_their_part_as_rank_0_has_them() -> None:
    # Each rank draws weights and measures layers for itself, with different results.
    keras.utils.set_random_seed(20 + rank())
    with on(MESH).scope():
        models = [spread(plain_model(), MESH), plain_model()]
    outside = plain_model()
    with on(MESH).scope():
        models.append(spread(outside, MESH))
    for model in models:
        assert_same_on_all_ranks(model.get_weights())
        assert_same_on_all_ranks([int(weight.value.device[-1]) for weight in model.weights])
    held = strategies.bytes_per_device(models[0].weights)
    assert list(held) == [f"CPU:{i}" for i in range(NUM_LOCAL)]
    assert held["CPU:0"] < strategies.bytes_per_device(models[1].weights)["CPU:0"]
    if "tensor" in MESH:
        # The shards are parts of one draw, not the same draw on each device.
        first, second = (weight.numpy() for weight in models[0].weights if "up/kernel" in weight.path)
        assert not np.array_equal(first, second)


@pytest.mark.skipif(NUM_LOCAL != 4, reason="they are alike for two devices")
def test_files_are_whole_and_one_rank_writes(shared: Path) -> None:
    """Trains four steps with gradients accumulated over three: one remains, as a partial sum on each rank."""
    model = mesh_model(5)
    backup = keras.callbacks.BackupAndRestore(str(shared / "backup"), delete_checkpoint=False)
    model.fit(tokens(), labels(), batch_size=14, shuffle=False, verbose=0, callbacks=[backup])
    model.save_weights(shared / "a.weights.h5")
    model.save(shared / "a.keras")
    process_group().barrier()
    assert sorted(path.name for path in shared.iterdir()) == ["a.keras", "a.weights.h5", "backup"]

    loaded = mesh_model(6)
    loaded.load_weights(shared / "a.weights.h5")
    assert_close(model, loaded)
    plain = keras.models.load_model(shared / "a.keras")
    assert type(plain).__module__.startswith("keras.")
    np.testing.assert_equal(plain.get_weights(), model.get_weights())
    ours, theirs = (each.predict(tokens(), batch_size=14, verbose=0) for each in (loaded, plain))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)

    resumed = mesh_model(7)
    again = keras.callbacks.BackupAndRestore(str(shared / "backup"))
    # There is one epoch, and it is done.
    assert resumed.fit(tokens(), labels(), batch_size=14, verbose=0, callbacks=[again]).epoch == []
    assert_close(model, resumed)
    assert_same_on_all_ranks(state(resumed))


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"data": 3, "tensor": NUM_LOCAL}, "Nearest sizes that fit: {'data': 2, 'tensor'"),
        ({"data": 2, "pipe": 0}, "must be a positive integer"),
    ],
)
def test_meshes_that_do_not_fit_are_refused_on_both_ranks(axes: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        new_strategy(axes)
