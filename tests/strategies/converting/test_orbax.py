"""Checkpoints of Orbax are read as it writes them; what is damaged or ambiguous is refused with the path.

Where Orbax is not installed, tensorstore writes what it would; where neither is, the errors are tested.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest

import keras_ext
import strategies
from strategies import convert, layer_api
from strategies.converting import orbax
from tests.strategies.converting.values import read, same

_RANDOM = np.random.default_rng(0)
KERNEL = _RANDOM.normal(size=(6, 8)).astype("float32")
BIAS = _RANDOM.normal(size=(8,)).astype(ml_dtypes.bfloat16)
TREE: dict[str, Any] = {
    "params": {
        "dense": {"kernel": KERNEL, "bias": BIAS},
        "list": [np.arange(3, dtype="int32"), {"flag": np.array([True])}],
    },
    "x.y": np.array(2.5, "float32"),
    "step": np.array(7, "int32"),
}
READ = {
    "params/dense/kernel": KERNEL,
    "params/dense/bias": BIAS,
    "params/list/0": np.arange(3, dtype="int32"),
    "params/list/1/flag": np.array([True]),
    "x.y": np.array(2.5, "float32"),
    "step": np.array(7, "int32"),
}
#: The options "use_ocdbt" and "use_zarr3".
FORMS = [(True, False), (True, True), (False, False)]


def leaves(tree: Any, keys: Sequence[str] = ()) -> Iterator[tuple[Sequence[str], Any]]:
    """Yields the keys of each leaf, and the leaf."""
    if isinstance(tree, dict | list):
        for key, each in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(each, [*keys, str(key)])
    else:
        yield keys, tree


def write_metadata(folder: Path, tree: Any, ocdbt: bool = True, zarr3: bool = False) -> Mapping[str, Any]:
    """Writes the list of a tree's leaves."""
    entries = {}
    for keys, value in leaves(tree):
        kind = "string" if isinstance(value, str) else "None" if value is None else "jax.Array"
        entries[str(tuple(keys))] = {
            "key_metadata": [{"key": key, "key_type": 2} for key in keys],
            "value_metadata": {"value_type": kind, "skip_deserialize": value is None},
        }
    metadata = {
        "tree_metadata": entries,
        "use_ocdbt": ocdbt,
        "use_zarr3": zarr3,
        "store_array_data_equal_to_fill_value": True,
    }
    folder.mkdir(parents=True)
    (folder / orbax.METADATA).write_text(json.dumps(metadata))
    return metadata


def save(folder: Path, tree: Any, ocdbt: bool = True, zarr3: bool = False) -> None:
    """Saves a tree as Orbax does, in chunks of two rows."""
    tensorstore = pytest.importorskip("tensorstore")
    metadata = write_metadata(folder, tree, ocdbt, zarr3)
    for keys, value in leaves(tree):
        if value is not None and not isinstance(value, str):
            value = np.asarray(value)
            spec = orbax._spec(folder, metadata, ".".join(keys))
            chunks = [min(2, size) for size in value.shape[:1]] + list(value.shape[1:])
            store = tensorstore.open(
                spec,
                create=True,
                dtype=tensorstore.dtype(value.dtype),
                shape=value.shape,
                chunk_layout=tensorstore.ChunkLayout(chunk_shape=chunks),
            ).result()
            store.write(value).result()


@pytest.mark.parametrize(("ocdbt", "zarr3"), FORMS)
def test_trees(ocdbt: bool, zarr3: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with spaces"
    save(folder, {**TREE, "name": "text", "none": None}, ocdbt, zarr3)
    same(read(folder), READ)
    # From another folder, by a relative path.
    monkeypatch.chdir(tmp_path)
    same(read(Path("with spaces")), READ)


def test_boxes(tmp_path: Path) -> None:
    value = _RANDOM.normal(size=(7, 5)).astype("float32")
    save(tmp_path / "tree", {"a": value, "b": -value})
    tensors = orbax.open_tree(tmp_path / "tree")
    for _ in range(30):
        where = tuple(slice(*sorted(_RANDOM.integers(0, size + 1, 2).tolist())) for size in value.shape)
        np.testing.assert_array_equal(tensors["a"][where], value[where])
        np.testing.assert_array_equal(tensors["b"][where], -value[where])
    # The returned array is the caller's own.
    tensors["a"][0:1, 0:5][:] = 0
    np.testing.assert_array_equal(tensors["a"][0:1, 0:5], value[:1])


def test_into_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run" / "3" / "default", TREE)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8)])
    names = {"params/dense/kernel": "layers/dense/vars/0", "params/dense/bias": "layers/dense/vars/1"}
    keras_ext.load_weights(model, tmp_path / "run", names)
    np.testing.assert_array_equal(model.get_weights()[0], KERNEL)
    np.testing.assert_array_equal(model.get_weights()[1], BIAS.astype("float32"))
    assert convert.main([str(tmp_path / "run"), "--list"]) == 0
    assert "params/dense/bias    bfloat16  8 " in capsys.readouterr().out
    assert convert.main([str(tmp_path / "run"), str(tmp_path / "a.safetensors")]) == 0
    same(read(tmp_path / "a.safetensors"), READ)


def test_damage(tmp_path: Path) -> None:
    save(tmp_path / "tree", TREE, ocdbt=False)
    (tmp_path / "tree" / "params.dense.kernel" / "2.0").unlink()
    with pytest.raises(ValueError, match="tree: params/dense/kernel cannot be read"):
        read(tmp_path / "tree")
    shutil.rmtree(tmp_path / "tree" / "step")
    with pytest.raises(ValueError, match="tree: step cannot be read"):
        read(tmp_path / "tree")


def test_names_that_are_equal(tmp_path: Path) -> None:
    save(tmp_path / "tree", {"a": {"b": BIAS}, "a/b": KERNEL})
    with pytest.raises(ValueError, match="two arrays of one name, 'a/b'"):
        read(tmp_path / "tree")


def test_folders_of_runs(tmp_path: Path) -> None:
    assert orbax.find_tree(tmp_path) is None
    for folder in ("a/9/default", "a/10/default", "a/11.orbax-checkpoint-tmp/default", "b/step_1", "b/step_20"):
        write_metadata(tmp_path / folder, {"w": BIAS})
    for folder in ("c/5/params_1", "c/5/params_2", "d/1/pytree"):
        write_metadata(tmp_path / folder, {"w": BIAS})
    # As `keras.callbacks.OrbaxCheckpoint` saves the model's configuration.
    write_metadata(tmp_path / "d/1/model_config", {"config": "{}"})
    (tmp_path / "c/5/_CHECKPOINT_METADATA").write_text("{}")
    found = {each: orbax.find_tree(tmp_path / each) for each in ("a", "a/9", "b", "d")}
    expected = {"a": "a/10/default", "a/9": "a/9/default", "b": "b/step_20", "d": "d/1/pytree"}
    assert found == {name: tmp_path / each for name, each in expected.items()}
    with pytest.raises(ValueError, match=r"c/5 has several trees.*Pass one of .*c/5/params_1, .*c/5/params_2\."):
        orbax.find_tree(tmp_path / "c")
    for text in ("{", "[]", "{}", '{"tree_metadata": {"w": {}}}'):
        (tmp_path / "b/step_20/_METADATA").write_text(text)
        with pytest.raises(ValueError, match="step_20/_METADATA is damaged"):
            read(tmp_path / "b")


def test_without_tensorstore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    write_metadata(tmp_path / "tree", {"w": BIAS})
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8)])
    with pytest.raises(ValueError, match=r"tree is a checkpoint of Orbax.*pip install tensorstore"):
        keras_ext.load_weights(model, tmp_path / "tree", {"w": "layers/dense/vars/1"})
    assert convert.main([str(tmp_path / "tree"), "--list"]) == 1
    assert "pip install tensorstore" in capsys.readouterr().err


@pytest.mark.parametrize(("ocdbt", "zarr3"), FORMS)
def test_what_orbax_saves(ocdbt: bool, zarr3: bool, tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    handler = checkpoint.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    with checkpoint.Checkpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "tree", {**TREE, "none": None, "empty": {}})
    same(read(tmp_path / "tree"), READ)


def named_model(mesh: dict[str, int] | None, *, units: int = 8) -> keras.Model:
    def layers() -> keras.Model:
        dense = [keras.layers.Dense(units, "tanh", name="up"), keras.layers.Dense(3, name="down")]
        between = [keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.1, name="drop")]
        return keras.Sequential([keras.Input((6,)), dense[0], *between, dense[1]], name="named")

    if mesh is None:
        model = layers()
        model.compile("adam", "mse")
        return model
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh=mesh).scope():
        model = keras_ext.parallelize(layers())
        model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("mesh", [None, {"data": 2}, {"tensor": 2}])
def test_what_keras_callback_saves(mesh: dict[str, int] | None, tmp_path: Path) -> None:
    trained = named_model(None)
    x = _RANDOM.normal(size=(16, 6)).astype("float32")
    trained.fit(x, x[:, :3], verbose=0)
    try:
        callback = keras.callbacks.OrbaxCheckpoint(tmp_path / "run", save_on_background=False)
        trained.fit(x, x[:, :3], verbose=0, callbacks=[callback])
    except ImportError:
        # The structure that it would save.
        save(tmp_path / "run" / "0" / "pytree", trained.get_state_tree(value_format="numpy_array"))
    model = named_model(mesh)
    keras_ext.load_weights(model, tmp_path / "run")
    for own, theirs in zip(layer_api.values_of(model, layer_api.joined(model.weights)), trained.weights, strict=True):
        np.testing.assert_array_equal(own, theirs)
    with pytest.raises(ValueError, match=r"(?s)does not fit the model.*misshapen: layers/dense/vars/0, shape \(6, 9\)"):
        keras_ext.load_weights(named_model(mesh, units=9), tmp_path / "run")
