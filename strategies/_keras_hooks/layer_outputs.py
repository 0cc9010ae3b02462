"""Records the outputs of a model's layers, and makes layers that draw numbers compute as in inference.

Both replace ``call`` of the layer objects for a while, before the function of a step is traced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks.compared_batches import num_rows, rows_of
from strategies.comparison import OUTPUTS

_LIBRARIES = ("keras", "keras_hub", "keras_ext")


def name_of(layer: Any, model: Any) -> str:
    """Returns the path of a layer in a model, without the model's name, or its name if it has no path.

    Only some paths begin with the model's name, and others on a mesh than on one device.
    """
    return str(getattr(layer, "path", None) or layer.name).removeprefix(f"{model.name}/")


@dataclasses.dataclass(frozen=True)
class UnequalLayers:
    """Layers that are known to compute something else on a mesh than on one device.

    Attributes:
        draw: layers that draw random numbers in training: each replica or shard draws its own.
        normalize: layers that normalize over the rows of their replica, or of their micro-batch.
    """

    draw: Sequence[Any]
    normalize: Sequence[Any]


def find_unequal_layers(model: Any, *, is_split: bool, has_some_rows: bool, in_microbatches: bool) -> UnequalLayers:
    """Returns the layers of Keras, KerasHub and this project that are known to compute something else on a mesh.

    Args:
        model: the model on the mesh, or its plain copy.
        is_split: True if the mesh has several devices.
        has_some_rows: True if a layer sees some rows of the batch only.
        in_microbatches: True if these are the rows of a micro-batch.
    """
    layers = _library_layers(model)
    draw = [each for each in layers if is_split and each._seed_generators and _is_random(each)]
    normalize = [
        each
        for each in layers
        if has_some_rows
        and isinstance(each, keras.layers.BatchNormalization)
        and each.trainable
        and (in_microbatches or not each.synchronized)
    ]
    return UnequalLayers(draw, normalize)


def _library_layers(model: Any) -> list[Any]:
    layers = model._flatten_layers(include_self=False)
    return [each for each in layers if each.__class__.__module__.partition(".")[0] in _LIBRARIES]


def _is_random(layer: Any) -> bool:
    """Returns False for a layer of Keras with a rate of 0, as the cells of most recurrent layers."""
    rates = [getattr(layer, name, None) for name in ("rate", "stddev", "dropout", "recurrent_dropout")]
    numbers = [rate for rate in rates if isinstance(rate, (int, float))]
    takes = "training" in inspect.signature(layer.__class__.call).parameters
    return takes and (not numbers or any(numbers))


@contextlib.contextmanager
def as_in_inference(layers: UnequalLayers) -> Iterator[None]:
    """Context manager: layers compute as in inference; functions that were traced before are not affected."""

    def replaced(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        del layer

        @functools.wraps(call)
        def without_training(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **{**kwargs, "training": False})

        return without_training

    with _replaced_calls([*layers.draw, *layers.normalize], replaced):
        yield


def layer_outputs(model: Any, x: Any, *, num_parts: int, of_layers: bool) -> dict[str, np.ndarray]:
    """Returns the outputs of a model in training, and those of its layers, by name, for all rows of a batch.

    Under a strategy, all processes call it. The model's function for ``predict`` is made again afterwards.

    Args:
        model: a built model.
        x: the inputs of a batch.
        num_parts: the number of parts of the rows that are computed one after the other, as micro-batches are.
        of_layers: True to include the outputs of layers that are tensors with rows, in the order of calls.
    """
    # A thread of each replica that is traced: they take turns.
    by_thread: dict[int, dict[str, Any]] = {}
    order: list[str] = []

    def replaced(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def recording(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            recorded = by_thread.setdefault(threading.get_ident(), {})
            for leaf in keras.tree.flatten(outputs):
                name = name_of(layer, model)
                number = sum(each.partition("#")[0] == name for each in recorded)
                # Converting gathers the pieces of a split layer's output.
                is_split = hasattr(leaf, "__tf_tensor__")
                recorded[f"{name}#{number + 1}" if number else name] = tf.convert_to_tensor(leaf) if is_split else leaf
            return outputs

        return recording

    def predict_step(data: Any) -> dict[str, Any]:
        recorded = by_thread[threading.get_ident()] = dict[str, Any]()
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        outputs = model(inputs, **({"training": True} if model._call_has_training_arg else {}))
        leaves = keras.tree.flatten(outputs)
        own = {f"{OUTPUTS}#{i + 1}" if i else OUTPUTS: leaf for i, leaf in enumerate(leaves)}
        order[:] = [*recorded, *own]
        return {**_with_rows(recorded, leaves[0]), **own}

    layers = [each for each in model._flatten_layers(include_self=False) if of_layers]
    object.__setattr__(model, "predict_step", predict_step)
    model.predict_function = None
    try:
        with _replaced_calls(layers, replaced):
            found = [model.predict_on_batch(part) for part in _parts(x, num_parts)]
    finally:
        object.__delattr__(model, "predict_step")
        model.predict_function = None
    return {name: np.concatenate([np.asarray(each[name]) for each in found]) for name in order if name in found[0]}


def _parts(x: Any, number: int) -> list[Any]:
    """Returns parts of the rows, none of them empty."""
    if number == 1:
        return [x]
    rows = num_rows(x)
    ends = np.linspace(0, rows, min(number, rows) + 1).astype(int).tolist()
    return [rows_of(x, begin, end) for begin, end in itertools.pairwise(ends)]


def _with_rows(recorded: Mapping[str, Any], outputs: Any) -> dict[str, Any]:
    """Returns the recorded tensors that have the rows of the outputs and can be returned where these are.

    A layer that is recomputed, or called in a loop, has outputs in a function of its own.
    """
    graph, rows = getattr(outputs, "graph", None), outputs.shape[:1]
    return {
        name: each
        for name, each in recorded.items()
        if isinstance(each, tf.Tensor)
        and getattr(each, "graph", None) is graph
        and each.shape.rank
        and each.shape[:1].is_compatible_with(rows)
        and (each.dtype.is_floating or each.dtype.is_integer)
    }


@contextlib.contextmanager
def _replaced_calls(
    layers: Sequence[Any], replaced: Callable[[Any, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Context manager: replaces ``call`` of layer objects; blocks may be nested."""
    before = [(layer, vars(layer).get("call")) for layer in layers]
    for layer, _ in before:
        object.__setattr__(layer, "call", replaced(layer, layer.call))
    try:
        yield
    finally:
        for layer, own in before:
            if own is None:
                object.__delattr__(layer, "call")
            else:
                object.__setattr__(layer, "call", own)
