"""Files of many formats go into split models, and what does not fit is named at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from strategies import convert
from strategies.converting import open_tensors, write_tensors
from tests.keras_ext.checkpoints.states import same, values
from tests.keras_ext.checkpoints.test_sharded import fit, made

safetensors_numpy = pytest.importorskip("safetensors.numpy")


@pytest.fixture(scope="module")
def trained() -> keras.Model:
    model = made("one device")
    fit(model, keras.callbacks.Callback(), 0, 1)
    return model


@pytest.fixture(scope="module")
def files(trained: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Returns files of the trained model by format, each with the names to load it by."""
    folder = tmp_path_factory.mktemp("in many formats")
    trained.save_weights(folder / "plain.weights.h5")
    trained.save(folder / "plain.keras")
    with open_tensors(folder / "plain.weights.h5") as tensors:
        write_tensors(folder / "resharded", tensors, num_ranks=3)
        own = {name: np.asarray(tensor[tuple(slice(0, n) for n in tensor.shape)]) for name, tensor in tensors.items()}
    weights = {name: each for name, each in own.items() if not name.startswith("optimizer")}
    theirs = {name: f"blocks.{i}" for i, name in enumerate(weights)}
    safetensors_numpy.save_file({theirs[name]: each for name, each in weights.items()}, folder / "hub.safetensors")
    saved = tf.train.Checkpoint(**{f"v{i}": tf.Variable(each) for i, each in enumerate(weights.values())})
    prefix = saved.save(str(folder / "of tensorflow"))
    trained.save(folder / "legacy.h5", include_optimizer=False)
    write_legacy(folder / "application.h5", trained)
    of_tensorflow = {f"v{i}/.ATTRIBUTES/VARIABLE_VALUE": name for i, name in enumerate(weights)}
    return {
        "weights.h5": (folder / "plain.weights.h5", None),
        "keras": (folder / "plain.keras", None),
        "sharded": (folder / "resharded", None),
        "safetensors": (folder / "hub.safetensors", {new: name for name, new in theirs.items()}),
        "tensorflow": (Path(prefix), of_tensorflow),
        "legacy model": (folder / "legacy.h5", None),
        "legacy weights": (folder / "application.h5", None),
    }


def write_legacy(path: Path, model: Any) -> None:
    """Writes weights as `keras.applications` has them; the names of layers are too many for one attribute."""
    with h5py.File(path, "w") as file:
        names = [f"layer {i}".encode() for i in range(len(model.layers))]
        file.attrs["layer_names0"], file.attrs["layer_names1"] = names[:2], names[2:]
        for name, layer in zip(names, model.layers, strict=True):
            weights = [*layer.trainable_weights, *layer.non_trainable_weights]
            keys = [f"scope/{weight.name}:0".encode() for weight in weights]
            group = file.create_group(name.decode())
            group.attrs["weight_names"] = keys
            for key, weight in zip(keys, weights, strict=True):
                group[key.decode()] = np.asarray(weight)


@pytest.mark.parametrize("mesh", ["shard=weights", "pipe=2, tensor=2"])
def test_every_format(mesh: str, trained: keras.Model, files: dict[str, tuple[Path, Any]]) -> None:
    model = made(mesh)
    fresh = values(made(mesh))
    number = len(trained.weights)
    for kind, (path, names) in files.items():
        keras_ext.load_weights(model, path, names)
        has_optimizer = kind in ("weights.h5", "keras", "sharded")
        same(values(model)[:number], values(trained)[:number])
        same(values(model)[number:], values(trained)[number:] if has_optimizer else values(model)[number:])
        model.set_weights(fresh[:number])
    # Without an optimizer, that of the file is left out.
    bare = made(mesh)
    bare.optimizer = None
    keras_ext.load_weights(bare, files["weights.h5"][0])
    np.testing.assert_array_equal(bare.get_weights()[0], values(trained)[0])


def test_what_does_not_fit_is_named(files: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    model = made("shard=weights", units=9)
    before = values(model)
    path, names = files["safetensors"]
    with pytest.raises(ValueError, match=r"(?s)does not fit the model.*misshapen: layers/dense/vars/0, shape \(6, 9\)"):
        keras_ext.load_weights(model, path, names)
    with pytest.raises(ValueError, match=r"(?s)does not fit the model.*misshapen: layers/dense/vars/0, shape \(6, 9\)"):
        keras_ext.load_weights(model, files["legacy weights"][0])
    other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8)])
    with pytest.raises(
        ValueError, match=r"other layers than the model\. Received: 4 layers with 10 weights in the file"
    ):
        keras_ext.load_weights(other, files["legacy weights"][0])
    with pytest.raises(ValueError, match=r"(?s)missing: layers.*extra: blocks\.0") as caught:
        keras_ext.load_weights(model, path)
    assert str(caught.value).count("missing") == len(model.weights)
    with pytest.raises(ValueError, match=r"does not have\. Received: blocks\.99"):
        keras_ext.load_weights(model, path, {"blocks.99": "a"})
    (tmp_path / "text").write_text("no weights")
    for wrong, words in ((tmp_path / "text", r"no known format"), (tmp_path / "absent.h5", "No such file|exist")):
        with pytest.raises(ValueError, match=words):
            keras_ext.load_weights(model, wrong)
    same(values(model), before)


def test_the_command(files: dict[str, tuple[Path, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = files["sharded"][0]
    assert convert.main([str(source), "--list"]) == 0
    listed = capsys.readouterr().out
    assert "layers/dense/vars/0" in listed
    assert "float32  6x8" in listed
    assert listed.index("optimizer/vars/2 ") < listed.index("optimizer/vars/10 ")
    assert convert.main([str(source), str(tmp_path / "a.safetensors")]) == 0
    assert convert.main([str(tmp_path / "a.safetensors"), "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == listed.splitlines()
    assert convert.main([str(source), str(source)]) == 1
    assert "new or empty" in capsys.readouterr().err
    assert convert.main([str(tmp_path / "absent"), "--list"]) == 1
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "names.json").write_text('{"layers/dense/vars/0": "w", "other": "x"}')
    assert convert.main([str(source), str(tmp_path / "b.safetensors"), "--names", str(tmp_path / "names.json")]) == 1
    error = capsys.readouterr().err
    assert "no tensor: other" in error
    assert "no name for: layers/dense/vars/1" in error
    for flags in ([str(source)], [str(source), "x", "--list"], [str(source), "x", "--ranks", "0"]):
        with pytest.raises(SystemExit):
            convert.main(flags)
