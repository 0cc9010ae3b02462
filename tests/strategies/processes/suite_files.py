"""Files and callbacks of several processes: run by `test_suites` in two processes at once, never collected."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.versions import is_at_least
from tests.releases import is_there, needs_keras
from tests.strategies.processes.ranks import (
    all_ranks,
    dense,
    digest,
    files_in,
    process_group,
    rank,
    regression,
    shared_folder,
    strategy,
)


class TestFiles:
    @pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "model.h5", "a folder"])
    def test_one_writes_and_all_can_read(self, shared: Path, name: str) -> None:
        x, y = regression()
        model = dense()
        model.fit(x, y, verbose=0, shuffle=False)
        path = shared / name
        if name.endswith(".weights.h5"):
            model.save_weights(path)
        elif name == "a folder":
            model.save(path, zipped=False)
        else:
            model.save(path)
        assert files_in(shared) == [name]
        if name.endswith(".weights.h5"):
            again = dense(seed=6)
            again.load_weights(path)
        else:
            with strategy().scope():
                # The old format cannot find the loss by its name.
                again = keras.models.load_model(path, compile=name != "model.h5")
        assert all_ranks(digest(again)) == [digest(model)] * 2
        if rank() == 0 and name == "model.keras":
            plain = keras.models.load_model(path)
            assert np.array_equal(plain.get_weights()[0], model.get_weights()[0])

    def test_rank_0_alone_may_save(self, shared: Path) -> None:
        model = dense()
        if rank() == 0:
            model.save(shared / "model.keras")
        assert files_in(shared) == ["model.keras"]
        model.load_weights(shared / "model.keras")

    @pytest.mark.parametrize("saved_by", ["all ranks", "rank 0"])
    def test_gathered_gradients_are_saved_whole(self, saved_by: str) -> None:
        # TensorFlow takes brackets in the path of a checkpoint for a pattern.
        shared = shared_folder(f"gathered and saved by {saved_by}", process_group())
        x, y = regression()
        model = dense(gradient_accumulation_steps=4)
        model.fit(x, y, batch_size=10, verbose=0, shuffle=False)
        point = tf.train.Checkpoint(optimizer=model.optimizer)
        if saved_by == "all ranks" or rank() == 0:
            model.save(shared / "model.keras")
            model.save_weights(shared / "model.weights.h5")
            point.write(str(shared / f"point of {rank()}"))
        process_group().barrier()
        with strategy().scope():
            again = keras.models.load_model(shared / "model.keras")
        for name in ("file", "weights", "point"):
            for variable in again.optimizer.variables if name != "file" else ():
                variable.assign(keras.ops.zeros_like(variable))
            if name == "weights":
                again.load_weights(shared / "model.weights.h5")
            elif name == "point":
                tf.train.Checkpoint(optimizer=again.optimizer).read(str(shared / "point of 0"))
            for one, other in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6, err_msg=name)
        again.fit(x, y, batch_size=10, verbose=0, shuffle=False)
        whole = dense(gradient_accumulation_steps=4)
        whole.fit(np.concatenate([x, x]), np.concatenate([y, y]), batch_size=10, verbose=0, shuffle=False)
        np.testing.assert_allclose(digest(again), digest(whole), rtol=1e-6)
        assert abs(digest(again) - digest(dense())) > 1e-3

    def test_what_no_rank_knows_alone_is_refused_at_once(self, shared: Path) -> None:
        """Within an epoch each rank holds a part of the sum; callbacks that run on all ranks sum the parts."""
        x, y = regression()
        path = shared / "model.keras"

        class Saves(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 1:
                    assert [variable.numpy() for variable in self.model.optimizer.variables[:1]] == [2]
                    if rank() == 0:
                        with pytest.raises(ValueError, match=r"strategies\.sum_accumulated"):
                            self.model.save(path)
                        with pytest.raises(ValueError, match=r"strategies\.sum_accumulated"):
                            tf.train.Checkpoint(optimizer=self.model.optimizer).write(str(shared / "point"))
                    strategies.sum_accumulated(self.model.optimizer)
                if rank() == 0 and batch in (1, 3):
                    self.model.save(path)

        model = dense(gradient_accumulation_steps=4)
        checkpoint = keras.callbacks.ModelCheckpoint(str(shared / "{epoch}-{batch}.keras"), save_freq=3)
        model.fit(x, y, batch_size=6, verbose=0, shuffle=False, callbacks=[Saves(), checkpoint])
        assert "model.keras" in files_in(shared)
        expected = dense(gradient_accumulation_steps=4)
        expected.fit(x, y, batch_size=6, verbose=0, shuffle=False)
        for one, other in zip(model.optimizer.variables, expected.optimizer.variables, strict=True):
            # The sums of TensorFlow 2.19 differ by 1.2e-8.
            atol = 1e-9 if is_at_least(tf.__version__, "2.20") else 1e-7
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6, atol=atol)

    @pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.weights.h5", "a folder", "exported"])
    def test_what_is_saved_is_read_at_once(self, name: str) -> None:
        """Models of one device read the file outside the scope, and never an older file of the same name."""
        shared = shared_folder(f"read at once {name}", process_group())  # Without brackets, as above.
        path = shared / name

        def save(model: keras.Model) -> None:
            if name == "exported":
                model.export(path, verbose=False)
            elif name == "model.weights.h5":
                model.save_weights(path)
            else:
                model.save(path, **({"zipped": False} if name == "a folder" else {}))

        def load() -> Any:
            if name == "exported":
                return keras.layers.TFSMLayer(path)(np.ones([3, 4], "float32"))
            if name == "model.weights.h5":
                plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
                keras.saving.load_weights(plain, path)
            else:
                plain = keras.saving.load_model(path, compile=False)
            return plain(np.ones([3, 4], "float32"))

        first, second = dense(), dense(seed=8)
        for model in (first, second):
            expected = np.asarray(model(np.ones([3, 4], "float32")))
            process_group().barrier()
            if rank() == 0:
                time.sleep(0.3)  # Rank 0 is late. The others must not read the existing file.
            save(model)
            np.testing.assert_allclose(np.asarray(load()), expected, rtol=1e-6)
        assert files_in(shared) == [name]

    def test_rank_0_alone_may_save_and_load(self, shared: Path) -> None:
        model = dense()
        if rank() == 0:
            model.save(shared / "model.keras")
            keras.models.load_model(shared / "model.keras")
            with pytest.raises(ValueError, match="File not found"):
                keras.models.load_model(shared / "none.keras")
        assert all_ranks(1) == [1, 1]
        time.sleep(0.3 * (1 - rank()))
        if rank() == 0:
            model.save(shared / "later.keras")
        keras.models.load_model(shared / "later.keras")

    def test_export(self, shared: Path) -> None:
        model = dense()
        model.export(shared / "exported", verbose=False)
        if is_there("export-litert"):
            model.export(shared / "model.tflite", format="litert", verbose=False)
        # TensorFlow's own function: each process has a folder.
        tf.saved_model.save(model, str(shared / f"saved by {rank()}"))
        made = ["model.tflite"] * is_there("export-litert")
        assert files_in(shared) == ["exported", *made, "saved by 0", "saved by 1"]


class TestCallbacks:
    @needs_keras("3.13", "OrbaxCheckpoint")
    def test_orbax(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rank 0 alone saves, with the totals of all metrics. A mock replaces Orbax, which needs JAX."""
        from keras.src.callbacks import orbax_checkpoint

        given: list[Any] = []
        saver = SimpleNamespace(save_checkpointables=lambda step, payload: given.append(payload["pytree"]), close=tuple)
        monkeypatch.setattr(orbax_checkpoint, "ocp", SimpleNamespace(Context=contextlib.nullcontext))
        callback = object.__new__(keras.callbacks.OrbaxCheckpoint)
        keras.callbacks.Callback.__init__(callback)
        options = {"save_freq": "epoch", "save_best_only": False, "save_on_background": False}
        vars(callback).update(options, save_weights_only=False, checkpointer=saver, monitor_op=True, verbose=0)
        vars(callback).update(_multihost_initialized=False)
        x, y = regression()
        model = dense()
        model.fit(x, y, verbose=0, shuffle=False, callbacks=[callback])
        assert len(given) == (rank() == 0)
        tree = model.get_state_tree(value_format="numpy_array")
        for received in given:
            for one, other in zip(keras.tree.flatten(received), keras.tree.flatten(tree), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)

    def test_rank_0_writes(self, shared: Path) -> None:
        x, y = regression()
        callbacks = [
            keras.callbacks.CSVLogger(str(shared / "log.csv")),
            keras.callbacks.ModelCheckpoint(str(shared / "{epoch}.keras"), save_best_only=True, monitor="loss"),
            keras.callbacks.TensorBoard(str(shared / "board")),
            keras.callbacks.BackupAndRestore(str(shared / "backup"), delete_checkpoint=False),
        ]
        dense().fit(x, y, epochs=2, verbose=0, callbacks=callbacks)
        assert files_in(shared) == ["1.keras", "2.keras", "backup", "board", "log.csv"]
        assert len((shared / "log.csv").read_text().splitlines()) == 3
        assert len(list((shared / "board").rglob("events*"))) == 1

    def test_others_are_quiet(self, capfd: pytest.CaptureFixture[str]) -> None:
        x, y = regression()
        model = dense()
        model.fit(x, y, verbose=2, callbacks=[keras.callbacks.EarlyStopping("loss", verbose=1)])
        model.evaluate(x, y, verbose=2)
        model.predict(x, verbose=2)
        out, _ = capfd.readouterr()
        assert bool(out.strip()) == (rank() == 0)

    def test_a_run_goes_on_from_its_backup(self, shared: Path) -> None:
        x, y = regression()

        class Dies(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == 2:
                    raise KeyboardInterrupt

        def backup() -> keras.callbacks.Callback:
            return keras.callbacks.BackupAndRestore(str(shared / "backup"))

        settings = {"epochs": 4, "verbose": 0, "shuffle": False, "batch_size": 10}
        whole = dense()
        whole.fit(x, y, **settings)
        with pytest.raises(KeyboardInterrupt):
            dense().fit(x, y, callbacks=[backup(), Dies()], **settings)
        resumed = dense(seed=9)
        history = resumed.fit(x, y, callbacks=[backup()], **settings)
        assert history.epoch == [2, 3]
        assert all_ranks(digest(resumed)) == [digest(resumed)] * 2
        np.testing.assert_allclose(digest(resumed), digest(whole), rtol=1e-6)
        assert files_in(shared) == []

    def test_all_stop_with_the_one_that_stops(self) -> None:
        class Stops(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.model.stop_training = epoch == 1 and rank() == 1

        x, y = regression()
        assert dense().fit(x, y, epochs=5, verbose=0, callbacks=[Stops()]).epoch == [0, 1]

    def test_deciding_by_logs_is_deciding_alike(self) -> None:
        x, y = regression()
        callbacks = [
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.5),
            keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.5, restore_best_weights=True),
        ]
        model = dense()
        epochs = len(model.fit(x, y, epochs=9, verbose=0, callbacks=callbacks).epoch)
        assert all_ranks(float(epochs)) == [float(epochs)] * 2
        assert all_ranks(float(model.optimizer.learning_rate)) == [float(model.optimizer.learning_rate)] * 2
        assert all_ranks(digest(model)) == [digest(model)] * 2
