"""Every export of a model to a graph or a file gives the model's predictions, however the model is divided."""

from __future__ import annotations

import copy
import functools
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

# The only way to a frozen graph: TensorFlow 2 has no public name for it, and users import this one.
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import keras_ext
import strategies
from tests.releases import marks_of

Way = Callable[[keras.Model, np.ndarray, pathlib.Path], Any]

ARGUMENTS: dict[str, dict[str, Any]] = {
    "replicas": {},
    "optimizer": {"shard": "optimizer"},
    "weights": {"shard": "weights"},
    "tensor": {"mesh": {"data": 1, "tensor": 2}},
    "pipe": {"mesh": {"data": 1, "pipe": 2}},
    "table": {"shard": "weights"},
}


def plain_model(kind: str) -> keras.Model:
    """Returns a model of odd sizes, whose shards differ, with statistics; under a strategy its table may be sharded."""
    keras.utils.set_random_seed(1)
    if kind == "table":
        inputs = keras.Input((4,), dtype="int32")
        make = keras_ext.ShardedEmbedding if tf.distribute.has_strategy() else keras.layers.Embedding
        hidden = keras.layers.Flatten()(make(13, 4, name="table")(inputs))
    else:
        inputs = hidden = keras.Input((8,))
    hidden = keras.layers.Dense(15, "relu", name="up")(hidden)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3, name="head")(hidden))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())
    return model


@functools.cache
def trained(kind: str) -> tuple[keras.Model, np.ndarray]:
    """Returns a model after two steps of training, and its rows; all tests share it and do not change it."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 8)).astype("float32")
    if kind == "table":
        x = rng.integers(0, 13, (8, 4)).astype("int32")
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], **ARGUMENTS[kind]).scope():
        model = plain_model(kind)
        if kind == "tensor":
            model = keras_ext.parallelize(model)
        if kind == "pipe":
            model = keras_ext.PipelineModel(model, num_microbatches=2)
        model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())
    model.fit(x, rng.standard_normal((8, 3)), batch_size=4, verbose=0, shuffle=False)
    return model, x


@functools.cache
def expected(kind: str) -> np.ndarray:
    """Returns the model's predictions."""
    model, x = trained(kind)
    return np.asarray(model.predict(x, verbose=0))


def rows_like(x: np.ndarray) -> tf.TensorSpec:
    return tf.TensorSpec((None, *x.shape[1:]), x.dtype)


def interpreted(content: bytes, x: np.ndarray) -> Any:
    interpreter = tf.lite.Interpreter(model_content=content)
    received = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(received, x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(received, x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def function_of(model: keras.Model, x: np.ndarray) -> Any:
    call = tf.function(lambda rows: model(rows, training=False), autograph=False)
    return call.get_concrete_function(rows_like(x))


def export(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    model.export(folder / "exported", verbose=False)
    served = tf.saved_model.load(str(folder / "exported"))
    return served.serve(tf.constant(x))


def export_litert(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    model.export(folder / "model.tflite", format="litert", verbose=False)
    return interpreted((folder / "model.tflite").read_bytes(), x)


def archive(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    """Exports an endpoint without `track`: its variables are found, also by `TFSMLayer`."""
    made = keras.export.ExportArchive()
    made.add_endpoint("serve", lambda rows: model(rows, training=False), input_signature=[rows_like(x)])
    made.write_out(folder / "exported", verbose=False)
    return keras.layers.TFSMLayer(folder / "exported")(x)


def saved_model(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    tf.saved_model.save(model, str(folder / "saved"))
    served = tf.saved_model.load(str(folder / "saved"))
    return next(iter(served.signatures["serving_default"](tf.constant(x)).values()))


def saved_module(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    module = tf.Module()
    module.model = model
    module.serve = tf.function(lambda rows: model(rows, training=False), input_signature=[rows_like(x)])
    tf.saved_model.save(module, str(folder / "saved"))
    served = tf.saved_model.load(str(folder / "saved"))
    return served.serve(tf.constant(x))


def converted(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    return interpreted(tf.lite.TFLiteConverter.from_keras_model(model).convert(), x)


def frozen(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    """Freezes a graph: its captured variables become constants, as in `tf2onnx`."""
    made = convert_variables_to_constants_v2(function_of(model, x))
    assert not made.captured_inputs
    return keras.tree.flatten(made(tf.constant(x)))[0]


def function(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    """Calls a function that was traced once; it uses the current weights."""
    call, weights = function_of(model, x), model.get_weights()
    model.set_weights([2 * value for value in weights])
    np.testing.assert_allclose(call(tf.constant(x)), model.predict(x, verbose=0), rtol=1e-6, atol=1e-6)
    model.set_weights(weights)
    return call(tf.constant(x))


def checkpoint(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    written = tf.train.Checkpoint(model=model).write(str(folder / "point"))
    weights = model.get_weights()
    model.set_weights([0 * value for value in weights])
    tf.train.Checkpoint(model=model).read(written).assert_consumed()
    for value, restored in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(restored, value)
    return model.predict(x, verbose=0)


def native(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    """Saves a file that plain Keras opens and can go on training with."""
    model.save(folder / "model.keras")
    plain = keras.saving.load_model(folder / "model.keras")
    for received, value in zip(plain.optimizer.variables, slots_of(model), strict=True):
        np.testing.assert_array_equal(np.asarray(received), value)
    return plain.predict(x, verbose=0)


def legacy(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    """Saves an HDF5 file with slots; Keras 3 does not read the slots of a Functional model."""
    keras.saving.save_model(model, folder / "model.h5")
    with h5py.File(folder / "model.h5") as file:
        group = file["optimizer_weights"]
        written = [np.asarray(group[name]) for name in group.attrs["weight_names"]]
    for received, value in zip(written, slots_of(model), strict=True):
        np.testing.assert_array_equal(received, value)
    return keras.saving.load_model(folder / "model.h5").predict(x, verbose=0)


def slots_of(model: keras.Model) -> list[Any]:
    store: dict[str, Any] = {}
    model.optimizer.save_own_variables(store)
    return [np.asarray(store[str(index)]) for index in range(len(store))]


def weights_file(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    model.save_weights(folder / "model.weights.h5")
    plain = plain_model("table" if x.dtype == np.int32 else "")
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(folder / "model.weights.h5")
    return plain.predict(x, verbose=0)


def state_tree(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    """Sets a model from the state tree for `OrbaxCheckpoint`, whose paths and shapes are those of one device."""
    plain = plain_model("table" if x.dtype == np.int32 else "")
    plain.optimizer.build(plain.trainable_variables)
    plain.optimizer.name = model.optimizer.name
    tree, other = model.get_state_tree(value_format="numpy_array"), plain.get_state_tree(value_format="numpy_array")
    for name in ("trainable_variables", "non_trainable_variables", "optimizer_variables"):
        received, of_plain = model._flatten_nested_dict(tree[name]), model._flatten_nested_dict(other[name])
        without = {path.partition("/")[2] if name == "optimizer_variables" else path for path in received}
        assert without == {path.partition("/")[2] if name == "optimizer_variables" else path for path in of_plain}
        assert sorted(map(np.shape, received.values())) == sorted(map(np.shape, of_plain.values()))
    plain.set_state_tree({name: tree[name] for name in ("trainable_variables", "non_trainable_variables")})
    slots = slots_of(model)
    model.set_state_tree({"optimizer_variables": tree["optimizer_variables"]})
    for received, value in zip(slots_of(model), slots, strict=True):
        np.testing.assert_array_equal(received, value)
    return plain.predict(x, verbose=0)


def cloned(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    return plain.predict(x, verbose=0)


def from_json(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    plain = keras.models.model_from_json(model.to_json())
    plain.set_weights(model.get_weights())
    return plain.predict(x, verbose=0)


def copied(model: keras.Model, x: np.ndarray, folder: pathlib.Path) -> Any:
    pickled = pickle.loads(pickle.dumps(model)).predict(x, verbose=0)
    np.testing.assert_allclose(copy.deepcopy(model).predict(x, verbose=0), pickled, rtol=1e-6, atol=1e-6)
    return pickled


WAYS: dict[str, Way] = {
    "export": export,
    "export-litert": export_litert,
    "archive": archive,
    "saved-model": saved_model,
    "saved-module": saved_module,
    "tflite": converted,
    "frozen": frozen,
    "function": function,
    "checkpoint": checkpoint,
    "keras": native,
    "h5": legacy,
    "weights": weights_file,
    "state-tree": state_tree,
    "clone": cloned,
    "json": from_json,
    "copy": copied,
}


#: Kinds of models with shards and with stages, whose weights and graphs are made whole in every way.
EVERY_WAY = ("weights", "pipe")
#: A graph, and weights, of the other kinds.
FOR_EVERY_KIND = ("export", "keras")


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param(
            kind,
            way,
            marks=[
                *marks_of(way),
                *([] if kind in EVERY_WAY or way in FOR_EVERY_KIND else [pytest.mark.parity_all]),
            ],
        )
        for kind in ARGUMENTS
        for way in WAYS
    ],
)
# Warnings of TensorFlow, and of Keras, which unpickles its optimizers twice, first as another class.
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated", "ignore:Skipping variable loading")
def test_gives_what_the_model_predicts(kind: str, way: str, tmp_path: pathlib.Path) -> None:
    model, x = trained(kind)
    received = WAYS[way](model, x, tmp_path)
    np.testing.assert_allclose(received, expected(kind), rtol=1e-6, atol=1e-6)
