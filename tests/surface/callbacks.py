"""The grid of callbacks: every class of `keras.callbacks` x meshes, trained and compared with one device.

A cell trains at least two epochs, and compares weights, logs and what the callback keeps or writes.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras.src.callbacks import orbax_checkpoint, remote_monitor

import keras_ext
import strategies
from tests.surface.cells import Outcome, is_ours

#: Arguments of the strategy, by mesh.
MESHES: Mapping[str, Mapping[str, Any]] = {
    "data=2": {},
    "shard=optimizer": {"shard": "optimizer"},
    "shard=weights": {"shard": "weights"},
    "tensor=2": {"mesh": {"tensor": 2}},
    "pipe=2": {"mesh": {"pipe": 2}},
}

#: Cells that are refused, with the text of the error.
REFUSED: Mapping[tuple[str, str], str] = {
    ("SwapEMAWeights", "shard=optimizer"): "ema_overwrite_frequency",
    ("SwapEMAWeights", "shard=weights"): "ema_overwrite_frequency",
}

#: Cells that differ, with the text of the warning.
WARNED: Mapping[tuple[str, str], str] = {
    ("TensorBoard", "tensor=2"): "draws each shard of a weight",
}

_RNG = np.random.default_rng(0)
X, Y = _RNG.standard_normal((10, 6)).astype("float32"), _RNG.standard_normal((10, 3)).astype("float32")
OPTIONS: Mapping[str, Any] = {"batch_size": 4, "shuffle": False, "verbose": 0, "validation_data": (X[:6], Y[:6])}

Making = Callable[[], keras.Model]


def _fitted(make: Making, *callbacks: Any, epochs: int = 2, x: np.ndarray = X, **kwargs: Any) -> dict[str, Any]:
    """Returns weights and logs of a new model, trained with callbacks."""
    model = make()
    history = model.fit(x, Y, epochs=epochs, callbacks=list(callbacks), **{**OPTIONS, **kwargs})
    rate = float(model.optimizer.learning_rate)
    return {"weights": model.get_weights(), "logs": history.history, "rate": rate, "model": model}


def _backup(make: Making, folder: Path) -> dict[str, Any]:
    def interrupt(epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        _fitted(
            make,
            keras.callbacks.BackupAndRestore(folder / "backup"),
            keras.callbacks.LambdaCallback(on_epoch_begin=interrupt),
        )
    begun: list[int] = []
    noted = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    found = _fitted(make, keras.callbacks.BackupAndRestore(folder / "backup"), noted, epochs=3)
    return {**found, "begun": begun}


def _csv(make: Making, folder: Path) -> dict[str, Any]:
    found = _fitted(make, keras.callbacks.CSVLogger(folder / "log.csv"))
    with (folder / "log.csv").open() as file:
        return {**found, "rows": [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]}


def _callback(make: Making, folder: Path) -> dict[str, Any]:
    return _fitted(make, keras.callbacks.Callback())


def _callback_list(make: Making, folder: Path) -> dict[str, Any]:
    model = make()
    callbacks = keras.callbacks.CallbackList(
        [keras.callbacks.LearningRateScheduler(_halved)], add_history=True, model=model
    )
    history = model.fit(X, Y, epochs=2, callbacks=callbacks, **OPTIONS)
    return {"weights": model.get_weights(), "logs": history.history}


def _early_stopping(make: Making, folder: Path) -> dict[str, Any]:
    """The falling loss counts as worse, so that the callback stops and restores the first epoch."""
    callback = keras.callbacks.EarlyStopping("val_loss", mode="max", patience=1, restore_best_weights=True)
    found = _fitted(make, callback, epochs=4)
    return {**found, "kept": [callback.stopped_epoch, callback.best_epoch, callback.best]}


def _history(make: Making, folder: Path) -> dict[str, Any]:
    callback = keras.callbacks.History()
    return {**_fitted(make, callback), "kept": callback.history, "epochs": callback.epoch}


def _lambda(make: Making, folder: Path) -> dict[str, Any]:
    seen: list[Any] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(dict(logs)),
        on_test_batch_end=lambda batch, logs: seen.append(dict(logs)),
        on_epoch_end=lambda epoch, logs: seen.append(dict(logs)),
        on_train_end=lambda logs: seen.append(dict(logs)),
    )
    return {**_fitted(make, callback), "seen": seen}


def _halved(epoch: int, rate: float) -> float:
    return rate / 2


def _scheduler(make: Making, folder: Path) -> dict[str, Any]:
    return _fitted(make, keras.callbacks.LearningRateScheduler(_halved))


def _checkpoint(make: Making, folder: Path) -> dict[str, Any]:
    """Plain Keras opens the files, including the optimizer's state."""
    found = _fitted(
        make,
        keras.callbacks.ModelCheckpoint(folder / "{epoch}-{batch}.keras", save_freq=2),
        keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_best_only=True, save_weights_only=True),
    )
    files: dict[str, Any] = {}
    for path in sorted(folder.glob("*.keras")):
        opened = keras.saving.load_model(path)
        files[path.name] = [*opened.get_weights(), *(np.asarray(each) for each in opened.optimizer.variables)]
    plain = _model()
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(folder / "best.weights.h5")
    return {**found, "files": files, "best": plain.get_weights()}


def _orbax(make: Making, folder: Path) -> dict[str, Any]:
    """Orbax itself needs JAX: the test compares what Orbax is given."""
    given: list[Any] = []
    saver = SimpleNamespace(save_checkpointables=lambda step, payload: given.append((step, payload["pytree"])))
    saver.close = tuple
    library = mock.MagicMock()
    library.Context = contextlib.nullcontext
    library.training.Checkpointer = lambda **kwargs: saver
    with mock.patch.object(orbax_checkpoint, "ocp", library):
        callback = keras.callbacks.OrbaxCheckpoint(str(folder), save_on_background=False)
        found = _fitted(make, callback)
    return {**found, "given": given}


def _progress(make: Making, folder: Path) -> dict[str, Any]:
    """Lines have times and rounded numbers: the test compares the printed names, and how often they occur."""
    callback = keras.callbacks.ProgbarLogger()
    with contextlib.redirect_stdout(io.StringIO()) as written:
        found = _fitted(make, callback, verbose=1)
    return {**found, "seen": [callback.target, callback.seen], "names": re.findall(r"(\w+): ", written.getvalue())}


def _plateau(make: Making, folder: Path) -> dict[str, Any]:
    callback = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)
    found = _fitted(make, callback, epochs=3)
    return {**found, "kept": [callback.best, callback.wait]}


def _remote(make: Making, folder: Path) -> dict[str, Any]:
    sent: list[Any] = []
    post = SimpleNamespace(post=lambda path, **kwargs: sent.append((path, kwargs)), exceptions=mock.MagicMock())
    with mock.patch.object(remote_monitor, "requests", post):
        found = _fitted(make, keras.callbacks.RemoteMonitor(send_as_json=True))
    return {**found, "sent": sent}


def _swap(make: Making, folder: Path) -> dict[str, Any]:
    """During validation, and at the end of an epoch, weights are averages."""
    found = _fitted(make, keras.callbacks.SwapEMAWeights())
    averages = _fitted(make, keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    return {**found, "of epochs": {name: value for name, value in averages.items() if name != "model"}}


def _tensorboard(make: Making, folder: Path) -> dict[str, Any]:
    found = _fitted(make, keras.callbacks.TensorBoard(folder, histogram_freq=1, write_graph=False))
    events = []
    for path in sorted(folder.rglob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                is_time = "steps_per_second" in value.tag
                events.append((value.tag, event.step, 0.0 if is_time else tf.make_ndarray(value.tensor)))
    assert events
    return {**found, "events": events}


def _nan(make: Making, folder: Path) -> dict[str, Any]:
    """The last batch, of two rows, has a NaN."""
    x = X.copy()
    x[-1] = np.nan
    return _fitted(make, keras.callbacks.TerminateOnNaN(), epochs=3, x=x)


ROWS: Mapping[str, Callable[[Making, Path], dict[str, Any]]] = {
    "BackupAndRestore": _backup,
    "CSVLogger": _csv,
    "Callback": _callback,
    "CallbackList": _callback_list,
    "EarlyStopping": _early_stopping,
    "History": _history,
    "LambdaCallback": _lambda,
    "LearningRateScheduler": _scheduler,
    "ModelCheckpoint": _checkpoint,
    "OrbaxCheckpoint": _orbax,
    "ProgbarLogger": _progress,
    "ReduceLROnPlateau": _plateau,
    "RemoteMonitor": _remote,
    "SwapEMAWeights": _swap,
    "TensorBoard": _tensorboard,
    "TerminateOnNaN": _nan,
}


def names() -> list[str]:
    """Returns the names of all classes of `keras.callbacks`."""
    return sorted(name for name, each in vars(keras.callbacks).items() if isinstance(each, type))


def _model() -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, "tanh", name="up")(inputs)
    hidden = keras.layers.Dense(8, "tanh", name="down")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3, name="head")(hidden))
    return _compiled(model)


def _compiled(model: keras.Model) -> keras.Model:
    optimizer = keras.optimizers.Adam(0.05, epsilon=1e-3, use_ema=True, name="adam")
    model.compile(optimizer, keras.losses.MeanSquaredError(), metrics=[keras.metrics.MeanAbsoluteError(name="mae")])
    return model


def _spread(mesh: str) -> keras.Model:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], **MESHES[mesh]).scope():
        model = _model()
        if mesh == "tensor=2":
            model = _compiled(keras_ext.parallelize(model))
        if mesh == "pipe=2":
            model = _compiled(keras_ext.PipelineModel(model, num_microbatches=2))
        return model


def _found(row: str, make: Making) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = ROWS[row](make, Path(folder))
    model = found.pop("model", None)
    if model is not None:
        found["predictions"] = model.predict(X, verbose=0)
    return found


@functools.cache
def on_one_device(row: str) -> dict[str, Any]:
    """Returns the values of a plain model."""
    return _found(row, _model)


def differences(row: str, mesh: str) -> Iterator[str]:
    """Trains a cell; yields each difference from one device above 1e-6."""
    expected, received = on_one_device(row), _found(row, lambda: _spread(mesh))
    try:
        keras.tree.assert_same_structure(received, expected)
    except ValueError as error:
        yield f"another structure: {error}"
        return
    paths = keras.tree.flatten_with_path(expected)
    for (path, value), other in zip(paths, keras.tree.flatten(received), strict=True):
        if value is None or isinstance(value, str):
            if value != other:
                yield f"{path}: {other!r}, on one device {value!r}"
        elif not np.allclose(value, other, 1e-6, 1e-6, equal_nan=True):
            yield f"{path}: {other}, on one device {value}"


def outcome(row: str, mesh: str) -> Outcome:
    """Returns the outcome of a cell."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = list(differences(row, mesh))
        except ValueError as error:
            return Outcome("refused" if is_ours(error) else "crash", words=f"{type(error).__name__}: {error}")
    if not found:
        return Outcome("equal")
    said = [str(each.message) for each in caught if issubclass(each.category, strategies.DifferenceWarning)]
    return Outcome("warned", words=said[0]) if said else Outcome("wrong", words="; ".join(found)[:600])
