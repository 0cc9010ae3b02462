"""Weights from files of many formats, straight into the shards and stages of a model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_ext.checkpoints import sharded
from strategies import layer_api

_OPTIMIZER = "optimizer/"
# The branches of the tree that `keras.callbacks.OrbaxCheckpoint` saves.
_WEIGHTS = ("trainable_variables/", "non_trainable_variables/")
_OTHERS = ("optimizer_variables/", "metrics_variables/")
# Checkpoints have no states of random numbers.
_SEED = "/seed_generator_state"


def load_weights(model: Any, path: str | os.PathLike[str], names: Mapping[str, str] | None = None) -> None:
    """Loads weights into a model under any strategy; each process reads of each tensor what it keeps.

    It takes what ``python -m strategies.convert`` reads: sharded checkpoints, ``*.weights.h5``, ``*.keras``, Keras'
    legacy ``*.h5``, as those of ``keras.applications``,
    ``*.safetensors``, their index or folder, folders of Orbax, which are read with the library tensorstore, and the
    prefix of a ``tf.train.Checkpoint``. If the model is compiled and the file has the state of its optimizer, that is
    loaded as well; not from folders of ``keras.callbacks.OrbaxCheckpoint``. All processes call it, each with the file
    on its own disk.

    Args:
        model: a built model.
        path: the file, folder, or prefix.
        names: the name that Keras gives the tensor in ``*.weights.h5``, such as "layers/dense/vars/0", for each tensor
            of the file that is to be loaded, by its name there; None if the file has these names already, or is of
            ``keras.callbacks.OrbaxCheckpoint``, which names weights after the model and its layers. ``python -m
            strategies.convert FILE --list`` prints names.

    Raises:
        ValueError: tensors are missing, extra or of other shapes, the file is damaged, or of no known format; all
            tensors are named, on all processes, and nothing is set.

    Example:

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.save_weights("plain.weights.h5")
        with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
            split = keras_ext.parallelize(model)
        keras_ext.load_weights(split, "plain.weights.h5")
    """
    compiled = getattr(model, "optimizer", None) is not None
    if compiled:
        layer_api.state_of(model)
    with sharded.together(model, ValueError), layer_api.open_tensors(Path(path)) as opened:
        values = layer_api.named_state(model)
        tensors = _with_our_names(opened, model, values) if names is None else _renamed(opened, names)
        if not compiled or not any(name.startswith(_OPTIMIZER) for name in tensors):
            tensors = {name: each for name, each in tensors.items() if not name.startswith(_OPTIMIZER)}
            values = {name: each for name, each in values.items() if not name.startswith(_OPTIMIZER)}
        lines = sharded.differences(values, tensors)
        if lines:
            raise ValueError(f"{os.fspath(path)} does not fit the model. Received:\n{sharded.listed(lines)}")
        layer_api.set_named_state(model, tensors)


def _renamed(tensors: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    unknown = [name for name in names if name not in tensors]
    if unknown:
        raise ValueError(
            "Names are given for tensors that the file does not have. Received: "
            f"{', '.join(unknown)}; the file has {json.dumps(sorted(tensors))}."
        )
    return {new: tensors[name] for name, new in names.items()}


def _with_our_names(tensors: Mapping[str, Any], model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(tensors, layer_api.TensorsByLayer):
        return _by_layers(tensors, model, values)
    return _by_paths(tensors, values)


def _by_layers(tensors: layer_api.TensorsByLayer, model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the weights of Keras' legacy format, which belong to the model's layers in order, by our names.

    Raises:
        ValueError: the file has other numbers of layers or of weights.
    """
    weights = [layer_api.joined([*each.trainable_weights, *each.non_trainable_weights]) for each in model.layers]
    own, theirs = [len(each) for each in weights if each], [len(each) for each in tensors.layers]
    if own != theirs:
        raise ValueError(
            "The file has its weights by layer, in order, and other layers than the model. Received: "
            f"{len(theirs)} layers with {sum(theirs)} weights in the file, {len(own)} with {sum(own)} in the model."
        )
    paths = {value.path: name for name, value in values.items() if getattr(value, "path", None)}
    ours = [paths[weight.path] for each in weights for weight in each]
    names = [name for each in tensors.layers for name in each]
    return {new: tensors[name] for new, name in zip(ours, names, strict=True)}


def _by_paths(tensors: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the weights of `keras.callbacks.OrbaxCheckpoint`, whose names are paths of variables, by ours.

    Args:
        tensors: the tensors of a file; those of other files are returned as they are.
        values: the model's.
    """
    if not tensors or not all(name.startswith((*_WEIGHTS, *_OTHERS)) for name in tensors):
        return dict(tensors)
    paths = {value.path: name for name, value in values.items() if getattr(value, "path", None)}
    weights = {
        name: name.split("/", 1)[1] for name in tensors if name.startswith(_WEIGHTS) and not name.endswith(_SEED)
    }
    return {paths.get(path, name): tensors[name] for name, path in weights.items()}
