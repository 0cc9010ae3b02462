"""Files of replicas that span two processes: run by `test_suites` in both at once, never collected.

One process holds the first shard of each split weight, or the first stage; the other holds the second. Assertions
compare values that both know: if one fails, the other fails, too.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import layer_api
from strategies._keras_hooks import stored_values
from strategies.replica import fetching, stored_array
from strategies.replica.stored_array import StoredArray
from strategies.saving import driving
from strategies.saving import ranges as saving_ranges
from tests.strategies.processes.mesh_strategies import on
from tests.strategies.processes.ranks import shared_folder

TENSOR: Mapping[str, int] = {"tensor": 2}
PIPE: Mapping[str, int] = {"pipe": 2}
MESHES = [pytest.param(TENSOR, id="tensor"), pytest.param(PIPE, id="pipe")]
# `spanning_sharded` and `sharded_checkpoints` go on with stages, whose files are compared below, too.
ONE = [MESHES[0], pytest.param(PIPE, id="pipe", marks=pytest.mark.parity_all)]


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on(TENSOR)
    on(PIPE)


def job() -> Any:
    return on(TENSOR).extended.engine.process_group


def rank() -> int:
    return int(job().rank)


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Path:
    return shared_folder(request.node.name.translate(str.maketrans("[]", "()")), job())


def plain_model(seed: int = 3) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "tanh", name="up"),
            keras.layers.BatchNormalization(name="normalized"),
            keras.layers.Dense(6, name="down"),
            keras.layers.Dropout(0.2, seed=5, name="dropped"),
            keras.layers.Dense(2, name="head"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def spread(axes: Mapping[str, int], make: Callable[[], keras.Model] = plain_model) -> keras.Model:
    """Returns the model split, or in stages, compiled, with the slots of its optimizer."""
    with on(axes).scope():
        model = make()
        made = keras_ext.parallelize(model) if "tensor" in axes else model
        if "pipe" in axes:
            made = keras_ext.PipelineModel(model, num_microbatches=2, partition=["down"])
        made.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
        made.optimizer.build(made.trainable_variables)
    return made


def state(model: keras.Model) -> list[np.ndarray]:
    """Returns the weights and the optimizer's variables, on all ranks."""
    return [*model.get_weights(), *layer_api.values_of(model, layer_api.joined(model.optimizer.variables))]


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first, second)


def assert_same_on_all_ranks(values: list[np.ndarray]) -> None:
    for value in values:
        first, second = job().gather(tf.convert_to_tensor(np.asarray(value)[np.newaxis])).numpy()
        np.testing.assert_array_equal(first, second)


def set_to_numbers(model: keras.Model) -> None:
    """Sets every variable to numbers of its own, as if it were trained."""
    for index, weight in enumerate(layer_api.joined([*model.weights, *model.optimizer.variables[2:]])):
        size = int(np.prod(weight.shape))
        weight.assign(np.linspace(index, index + 0.5, size, dtype="float32").reshape(weight.shape))


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((24, 4)).astype("float32")
    return x, np.stack([x.sum(1), x[:, 0]], 1)


FIT: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}


@pytest.mark.parametrize("axes", MESHES)
class TestArrays:
    def test_weights_are_those_of_one_device_on_all_ranks(self, axes: Mapping[str, int]) -> None:
        model, plain = spread(axes), plain_model()
        assert_equal(model.get_weights(), plain.get_weights())
        assert_same_on_all_ranks(state(model))
        assert model.count_params() == plain.count_params()
        lines: list[str] = []
        model.summary(print_fn=lambda line, **_: lines.append(line))
        assert "Trainable params: 124 " in "".join(lines)

    def test_each_rank_sets_its_part(self, axes: Mapping[str, int]) -> None:
        model = spread(axes)
        changed = [weight + 1 for weight in model.get_weights()]
        model.set_weights(changed)
        assert_equal(model.get_weights(), changed)

    def test_a_model_made_outside_of_the_scope_is_that_of_rank_0(self, axes: Mapping[str, int]) -> None:
        outside = plain_model(seed=7 + rank())
        outside.optimizer.build(outside.trainable_variables)
        set_to_numbers(outside)
        outside.set_weights([weight + rank() for weight in outside.get_weights()])
        with on(axes).scope():
            model = (
                keras_ext.parallelize(outside)
                if "tensor" in axes
                else keras_ext.PipelineModel(outside, num_microbatches=2, partition=["down"])
            )
        assert_same_on_all_ranks(model.get_weights())
        expected = [np.asarray(job().broadcast(tf.constant(weight))) for weight in outside.get_weights()]
        assert_equal(model.get_weights(), expected)
        if "tensor" in axes:
            slots = layer_api.values_of(model, layer_api.joined(model.optimizer.variables))
            assert_equal(slots, [variable.numpy() for variable in outside.optimizer.variables])

    def test_memory_is_shown_by_rank(self, axes: Mapping[str, int]) -> None:
        model = spread(axes)
        report = keras_ext.memory_report(model)
        assert list(report.weights) == ["rank 0 CPU:0", "rank 1 CPU:0"]
        whole = sum(strategies.bytes_per_device(plain_model().weights).values())
        assert all(own < whole for own in report.weights.values())
        assert report.slots["rank 0 CPU:0"] < 2 * whole
        assert all(0 < report.gradients[rank] <= own for rank, own in report.weights.items())
        assert set(report.processes) <= {"rank 0", "rank 1"}
        # The formula does not cover replicas that span processes.
        assert report.formula is None


@pytest.mark.parametrize("axes", MESHES)
class TestFiles:
    @pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "a folder"])
    def test_they_are_ordinary_ones(self, axes: Mapping[str, int], name: str, shared: Path) -> None:
        model = spread(axes)
        set_to_numbers(model)
        path = shared / name
        if name.endswith(".weights.h5"):
            model.save_weights(path)
        else:
            model.save(path, **({"zipped": False} if name == "a folder" else {}))
        job().barrier()
        assert [each.name for each in shared.iterdir()] == [name]
        plain = plain_model()
        if name.endswith(".weights.h5"):
            plain.optimizer.build(plain.trainable_variables)
            plain.load_weights(path)
        else:
            plain = keras.models.load_model(path)
        assert_equal(plain.get_weights(), model.get_weights())
        assert_equal([variable.numpy() for variable in plain.optimizer.variables], state(model)[10:])

    def test_adapters_are_merged_as_keras_merges_them(self, axes: Mapping[str, int], shared: Path) -> None:
        def adapted() -> keras.Model:
            model = plain_model()
            for name in ("up", "down"):
                model.get_layer(name).enable_lora(2, b_initializer=keras.initializers.RandomNormal(0.0, 0.1))
            return model

        model, plain = spread(axes, adapted), adapted()
        assert_equal(model.get_weights(), plain.get_weights())
        model.save(shared / "model.keras")
        model.save_weights(shared / "model.weights.h5")
        job().barrier()
        opened = keras.models.load_model(shared / "model.keras")
        assert opened.get_layer("down").lora_rank == 2
        again = keras.models.load_model(shared / "model.keras", compile=False)
        again.load_weights(shared / "model.weights.h5")
        x, _ = data()
        for other in (opened, again):
            np.testing.assert_allclose(other(x), plain(x), rtol=1e-6, atol=1e-6)
        # A model with adapters reads them as Keras does: into the kernel, with zero adapters.
        model.load_weights(shared / "model.weights.h5")
        assert_equal(model.get_weights(), opened.get_weights())

    def test_they_open_under_another_mesh(self, axes: Mapping[str, int], shared: Path) -> None:
        model = spread(axes)
        set_to_numbers(model)
        model.save_weights(shared / "model.weights.h5")
        model.save(shared / "model.keras")
        other = spread(PIPE if "tensor" in axes else TENSOR)
        other.load_weights(shared / "model.weights.h5")
        assert_equal(state(other), state(model))
        with on(axes).scope():
            loaded = keras.models.load_model(shared / "model.keras")
        assert_equal(loaded.get_weights(), model.get_weights())

    def test_each_rank_reads_its_part_and_no_weight_is_held_whole(
        self, axes: Mapping[str, int], shared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Counts the numbers that are read, with slices of a few: a weight of the model has at most 48."""
        monkeypatch.setattr(stored_array, "SLICE_BYTES", 16)
        read: list[int] = []
        model = spread(axes)
        set_to_numbers(model)
        path = shared / "model.weights.h5"
        with monkeypatch.context() as patched:
            # The writing rank receives slices from the owner ranks; no whole value is assembled.
            patched.setattr(driving, "assembled", None)
            patched.setattr(fetching, "together", None)
            model.save_weights(path)
        before = state(model)
        for weight in model.weights:
            weight.assign(tf.zeros(weight.shape, weight.dtype))

        array = StoredArray.__array__
        with monkeypatch.context() as patched:
            patched.setattr(StoredArray, "__array__", lambda *args, **kwargs: _counted(read, array(*args, **kwargs)))
            model.load_weights(path)
        assert_equal(state(model), before)
        variables = [*model.weights, *model.optimizer.variables]
        own = sum(int(np.prod(each.shape)) for each in variables if not layer_api.is_remote(each))
        assert max(read) <= 4
        assert sum(read) == own
        assert own < 0.8 * sum(value.size for value in before)

    @pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
    def test_the_bytes_are_those_of_whole_arrays(
        self, axes: Mapping[str, int], name: str, shared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = spread(axes)
        set_to_numbers(model)
        save = model.save if name == "model.keras" else model.save_weights
        written = []
        for whole in (False, True):
            folder = shared / str(whole)
            folder.mkdir(exist_ok=True)
            with monkeypatch.context() as patched:
                if whole:
                    patched.setattr(stored_values, "_is_placed", lambda value: False)
                save(folder / name)
            job().barrier()
            written.append(_datasets(folder / name))
        assert written[0] == written[1]

    @pytest.mark.parametrize("side", ["write", "read"])
    def test_an_error_in_the_middle_of_a_weight_leaves_nobody_waiting(
        self, axes: Mapping[str, int], side: str, shared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stored_array, "SLICE_BYTES", 16)
        model = spread(axes)
        path = shared / "model.weights.h5"
        model.save_weights(path)
        calls: list[int] = []

        def full(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == 40:
                raise OSError("No space left on device")
            return original(*args, **kwargs)

        def act() -> None:
            if side == "write":
                model.save_weights(path)
            else:
                strategies.load_on_all(on(axes), lambda: model.load_weights(path) or "", layer_api.state_of(model))

        owner: Any = saving_ranges if side == "write" else StoredArray
        name = "boxes" if side == "write" else "flat"
        original = getattr(owner, name)
        job().barrier()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, full)
            with pytest.raises((OSError, ValueError), match="No space left on device"):
                act()
        # The processes are still in step.
        model.load_weights(path)
        assert_equal(model.get_weights(), plain_model().get_weights())

    def test_an_error_of_rank_0_is_everybodys_and_leaves_the_old_file(
        self, axes: Mapping[str, int], shared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = spread(axes)
        path = shared / "model.weights.h5"
        model.save_weights(path)
        before = path.stat().st_mtime_ns

        def full(*_: Any) -> None:
            raise OSError("No space left on device")

        job().barrier()
        with monkeypatch.context() as patched:
            patched.setattr(keras.layers.Dropout, "save_own_variables", full)
            with pytest.raises(OSError if rank() == 0 else ValueError, match="No space left on device"):
                model.save_weights(path)
        assert [each.name for each in shared.iterdir()] == [path.name]
        assert path.stat().st_mtime_ns == before
        # The processes are still in step.
        assert_equal(model.get_weights(), plain_model().get_weights())


def _counted(read: list[int], array: np.ndarray) -> np.ndarray:
    read.append(array.size)
    return array


def _datasets(path: Path) -> bytes | dict[str, bytes]:
    """Returns the bytes of a file; for an archive, those of its members except the one with a time stamp."""
    if path.suffix != ".keras":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != "metadata.json"}


@pytest.mark.parametrize("axes", ONE)
def test_one_opens_where_this_package_is_not(axes: Mapping[str, int], shared: Path) -> None:
    model = spread(axes)
    set_to_numbers(model)
    model.save(shared / "model.keras")
    with pytest.raises(ValueError, match=r"load_model\('model.keras'\)"):
        tf.saved_model.save(model, str(shared / f"saved by {rank()}"))
    model.export(shared / "exported", verbose=False)
    rows = np.random.default_rng(1).standard_normal((4, *model.inputs[0].shape[1:])).astype("float32")
    predicted = np.asarray(model.predict(rows, verbose=0))
    if rank() == 0:
        served = tf.saved_model.load(str(shared / "exported"))
        np.testing.assert_allclose(served.serve(tf.constant(rows)), predicted, rtol=1e-6, atol=1e-6)
    values = state(model)
    error = ""
    if rank() == 0:
        np.savez(shared / "values.npz", *values)
        program = (
            "import sys, numpy as np; sys.modules['strategies'] = sys.modules['keras_ext'] = None\n"
            "import keras\n"
            "model, values = keras.models.load_model('model.keras'), np.load('values.npz')\n"
            "found = [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]\n"
            "assert len(found) == len(values.files)\n"
            "for name, value in zip(values.files, found): np.testing.assert_array_equal(values[name], value)\n"
        )
        ended = subprocess.run([sys.executable, "-c", program], cwd=shared, capture_output=True, check=False)
        error = ended.stderr.decode() if ended.returncode else ""
    failed = int(job().broadcast(tf.constant(len(error))))
    assert not failed, error


class _Dies(keras.callbacks.Callback):
    """Interrupts the second epoch before its last step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.model.optimizer.iterations == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize("axes", ONE)
def test_a_killed_run_goes_on(axes: Mapping[str, int], shared: Path) -> None:
    """A backup resumes after its last epoch; a checkpoint resumes within an epoch, bit-identically, with its logs."""
    x, y = data()
    whole = spread(axes)
    expected = whole.fit(x, y, epochs=2, **FIT).history

    backup = functools.partial(keras.callbacks.BackupAndRestore, str(shared / "backup"))
    best = keras.callbacks.ModelCheckpoint(str(shared / "{epoch}.keras"), monitor="loss", save_best_only=True)
    checkpoints = functools.partial(keras_ext.Checkpoints, shared / "run", steps_per_epoch=3, every_steps=1)
    with pytest.raises(KeyboardInterrupt):
        spread(axes).fit(x, y, epochs=2, callbacks=[backup(), best, checkpoints(), _Dies()], **FIT)
    job().barrier()
    assert sorted(path.name for path in shared.iterdir()) == ["1.keras", "backup", "run"]

    resumed, callback = spread(axes, lambda: plain_model(seed=9)), checkpoints()
    at = callback.restore(resumed)
    assert (at.epoch, at.step) == (1, 1)
    resumed.fit(x[8:], y[8:], initial_epoch=1, epochs=2, callbacks=[callback], **FIT)
    assert_equal(state(resumed), state(whole))
    for name, values in expected.items():
        np.testing.assert_allclose(callback.history[name], values, rtol=1e-6, err_msg=name)

    # Keras' backup does not keep the states of random generators.
    assert resumed.fit(x, y, epochs=2, callbacks=[backup()], **FIT).epoch == [1]
    assert_same_on_all_ranks(state(resumed))
