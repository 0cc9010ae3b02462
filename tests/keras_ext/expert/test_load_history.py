"""ExpertLoadHistory: the share of each expert, in TensorBoard's files and in memory, as on one device."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies

EXPERTS, EPOCHS = 4, 2


def fitted(folder: Path, strategy: Any = None, update_freq: Any = "epoch") -> tuple[Any, Any, Any]:
    """Returns shares and logs of training with 7 rows in batches of 4; the last has no rows for the second half."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        keras.utils.set_random_seed(2)
        layer = keras_ext.MixtureOfExperts(EXPERTS, 3, 2, name="experts")
        model = keras.Sequential([keras.Input((3, 5)), layer])
        keras_ext.track_expert_load(model)
        model.compile(keras.optimizers.Adam(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(7, 3, 5)).astype("float32")
    board = keras.callbacks.TensorBoard(str(folder), write_graph=False, update_freq=update_freq)
    loads = keras_ext.ExpertLoadHistory(board)
    # In either order.
    callbacks = [board, loads] if strategy is None else [loads, board]
    logs = model.fit(
        x, x, batch_size=4, epochs=EPOCHS, validation_data=(x[:3], x[:3]), verbose=0, shuffle=False, callbacks=callbacks
    ).history
    model.evaluate(x, x, verbose=0, callbacks=[loads])
    return model, loads.history, logs


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns steps and values in the one event file of a folder, by tag."""
    (path,) = folder.glob("events.out.tfevents.*")
    found: dict[str, list[tuple[int, float]]] = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars" or value.tag in found:
                found.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    return found


def test_shares_are_those_of_one_device_and_in_the_files(tmp_path: Path) -> None:
    model, plain, logs = fitted(tmp_path / "plain")
    _, two, same = fitted(tmp_path / "two", strategies.MirroredStrategy(["CPU:0", "CPU:1"]), update_freq=100)
    assert sorted(plain) == sorted(two) == ["experts", "val_experts"]
    # The callback adds nothing to the logs.
    assert sorted(logs) == sorted(same) == ["experts_load", "loss", "val_experts_load", "val_loss"]
    for name in plain:
        np.testing.assert_array_equal(plain[name], two[name])
        assert np.shape(plain[name]) == (EPOCHS, EXPERTS)
        np.testing.assert_allclose(np.sum(plain[name], 1), 1, rtol=1e-6)
        # The metric in the logs is the largest share, times the number of experts.
        np.testing.assert_allclose(np.max(plain[name], 1) * EXPERTS, logs[f"{name}_load"], rtol=1e-6)
    # Validation uses the weights after the epoch; after `evaluate`, the shares of the last epoch stay.
    chosen = model.layers[0].by_name()["router"](np.random.default_rng(0).normal(size=(7, 3, 5))[:3].astype("float32"))
    last = np.bincount(np.argsort(-np.asarray(chosen), -1)[..., :2].ravel(), minlength=EXPERTS)
    np.testing.assert_allclose(plain["val_experts"][-1], last / last.sum(), rtol=1e-6)
    for folder in ("plain", "two"):
        for name, part in (("experts", "train"), ("val_experts", "validation")):
            written = scalars(tmp_path / folder / part)
            tags = [f"expert_load/experts/{expert}" for expert in range(EXPERTS)]
            assert sorted(tag for tag in written if tag.startswith("expert_load")) == tags
            for expert, tag in enumerate(tags):
                expected = [(epoch, float(plain[name][epoch][expert])) for epoch in range(EPOCHS)]
                assert written[tag] == expected


def test_without_tensorboard_and_refusals(tmp_path: Path) -> None:
    layer = keras_ext.MixtureOfExperts(EXPERTS, 3, 1, load_balancing_loss=0.0)
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile("sgd", "mse")
    x = np.ones((4, 2), "float32")
    with pytest.raises(ValueError, match=r"call keras_ext\.track_expert_load\(model\) before `fit`\. Received: "):
        model.fit(x, x, verbose=0, callbacks=[keras_ext.ExpertLoadHistory()])
    keras_ext.track_expert_load(model)
    loads = keras_ext.ExpertLoadHistory()
    model.fit(x, x, epochs=2, verbose=0, callbacks=[loads])
    assert sorted(loads.history) == [layer.name]
    assert np.sort(loads.history[layer.name]).tolist() == [[0, 0, 0, 1]] * 2
    board = keras.callbacks.TensorBoard(str(tmp_path))
    with pytest.raises(ValueError, match=r"a callback of the same `fit`.*Received: <keras"):
        model.fit(x, x, verbose=0, callbacks=[keras_ext.ExpertLoadHistory(board)])
