"""Layers of users' own classes that hold plain layers, which can be split inside them."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import keras

#: Attributes in which TensorFlow tracks what an object holds. Layers may have other attributes with the same prefix.
OF_TENSORFLOW = frozenset(
    f"_self_{name}"
    for name in (
        "name_based_restores",
        "saveable_object_factories",
        "setattr_tracking",
        "unconditional_checkpoint_dependencies",
        "unconditional_deferred_dependencies",
        "unconditional_dependency_names",
        "update_uid",
    )
)

# Keras' own lists and records of a layer.
_OWN = frozenset(
    f"_{name}"
    for name in (
        *("inbound_nodes", "layers", "loss_ids", "losses", "losses_override", "metrics", "non_trainable_variables"),
        *("outbound_nodes", "seed_generators", "tracked", "tracker", "trainable_variables"),
    )
)
# The ends of names of attributes that do not matter to a layer's call.
_OF_ONE_LAYER = ("name", "path", "build", "quantize", "call", "called")


def is_custom(layer: Any) -> bool:
    """Returns True if `layer` is of a user's class, is no Functional or Sequential model, and holds layers."""
    return not is_keras_class(type(layer)) and not is_graph(layer) and bool(getattr(layer, "_layers", ()))


def is_keras_class(cls: type) -> bool:
    """Returns True if layers of the class can be made from their config: classes of Keras and of `keras_ext`."""
    return cls.__module__.partition(".")[0] in ("keras", "keras_ext")


def plain_type(layer: Any) -> type:
    """Returns the class of a layer, or its base class if the class has no methods of its own, as a library's alias."""
    return plain_base(layer.__class__)


def plain_base(cls: type) -> type:
    """Returns a class of layers, or its base class if it has no methods of its own."""
    while not is_keras_class(cls) and len(cls.__bases__) == 1 and not any(map(callable, vars(cls).values())):
        cls = cls.__bases__[0]
    return cls


def is_graph(layer: Any) -> bool:
    """Returns True if `layer` is a model that is made of a graph of layers: a Sequential or Functional one."""
    return isinstance(layer, keras.Sequential) or (isinstance(layer, keras.Model) and hasattr(layer, "operations"))


def layers_inside(layer: Any) -> list[tuple[str, Any]]:
    """Returns path and layer of a custom layer's inner layers. Paths are made of attributes, list indices and keys."""
    first: dict[int, tuple[str, Any]] = {}
    for path, inner in _paths_inside(layer):
        first.setdefault(id(inner), (path, inner))
    return list(first.values())


def description_of(layer: Any) -> tuple[Any, ...]:
    """Returns a key that two layers have in common if their calls compute alike, but for the values of weights.

    It consists of the class and the attributes, of the layer and of those inside. Objects of other classes than
    Python's and Keras' own are alike if they are the same, or say that they are equal.
    """
    found = [("", layer), *layers_inside(layer)]
    return tuple((path, type(each), _settings(each), each.dtype_policy.name, _shapes(each)) for path, each in found)


def _settings(layer: Any) -> tuple[Any, ...]:
    # Names and paths differ between layers, as do the methods that Keras wraps.
    names = [name for name in vars(layer) if name not in _OWN | OF_TENSORFLOW and not name.endswith(_OF_ONE_LAYER)]
    return tuple((name, _setting(vars(layer)[name])) for name in sorted(names))


def _setting(value: Any) -> Any:
    if isinstance(value, dict):
        return (dict, tuple((_setting(key), _setting(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple, set)):
        return (type(value), tuple(map(_setting, value)))
    if isinstance(value, (keras.Layer, keras.Variable)) or type(value).__module__.partition(".")[0] == "keras":
        # Layers inside are described as such. Initializers and the like do not matter to a call.
        return type(value)
    return _Same(value) if value.__hash__ is None else value


class _Same:
    """An object that cannot be hashed, in a key: equal to itself only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value


def _shapes(layer: Any) -> tuple[Any, ...]:
    return tuple(tuple(weight.shape) for weight in (*layer._trainable_variables, *layer._non_trainable_variables))


def plain_view(layer: Any, plain_class: Any, **own: Any) -> Any:
    """Returns an object of a layer's plain class, for one call, that shares all attributes but the given ones with it.

    It has the plain class' methods, not those that Keras, or a caller of the layer, has wrapped. Other threads, which
    call the layer itself, do not see the given attributes, and Keras does not track them.
    """
    view = object.__new__(plain_class)
    wrapped = ("build", "quantize", "call", "quantized_call")
    vars(view).update({name: value for name, value in vars(layer).items() if name not in wrapped}, **own)
    return view


def held_twice(model: Any) -> frozenset[int]:
    """Returns the ids of the layers that several layers of a model hold."""
    holders = collections.Counter(
        id(inner) for layer in model._flatten_layers() for inner in {id(each): each for each in layer._layers}.values()
    )
    return frozenset(each for each, number in holders.items() if number > 1)


def _paths_inside(layer: Any) -> Iterator[tuple[str, Any]]:
    held = {id(inner) for inner in layer._layers}

    def found(path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if id(value) in held:
            yield path, value
        elif isinstance(value, (list, tuple, dict)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from found(f"{path}/{key}", item)

    for name, value in list(vars(layer).items()):
        # `_layers` is Keras' own list of the inner layers.
        if name != "_layers" and name not in OF_TENSORFLOW:
            yield from found(name, value)


@contextlib.contextmanager
def graph_inside(layer: Any) -> Iterator[Any]:
    """Context manager: yields the graph of a layer's call with its inner layers, or None if it cannot be traced.

    `call` has to be written in Keras' ops. Inside the context, `graph_inside` can be used on inner layers, too.
    """
    with nodes_kept(layer):
        yield _traced(layer)


@contextlib.contextmanager
def nodes_kept(layer: Any) -> Iterator[None]:
    """Context manager: at its end, the layers inside a layer have no graph nodes but those that they had before."""
    inside = [inner for inner in layer._flatten_layers(include_self=False) if hasattr(inner, "_inbound_nodes")]
    before = [len(inner._inbound_nodes) for inner in inside]
    try:
        yield
    finally:
        # A call with symbolic tensors adds a node to every inner layer, and Keras has no way to call a layer without
        # one, or to remove a node. The nodes are needed here, but the model is not ours: left in it, they would keep
        # this graph alive as long as the model, and give `layer.output` of an inner layer a meaning that it did not
        # have. Tracing a copy instead would need its weights a second time, and a `get_config`, which a layer that
        # stays whole need not have.
        for inner, number in zip(inside, before, strict=True):
            del inner._inbound_nodes[number:]


def _traced(layer: Any) -> Any:
    inputs: dict[int, Any] = {}

    def fresh(value: Any) -> Any:
        if not isinstance(value, keras.KerasTensor):
            return value
        return inputs.setdefault(id(value), keras.KerasTensor(value.shape, value.dtype))

    if not layer._inbound_nodes:
        return None
    arguments = layer._inbound_nodes[-1].arguments
    args, kwargs = keras.tree.map_structure(fresh, (arguments.args, arguments.kwargs))
    try:
        return keras.Function(list(inputs.values()), layer.call(*args, **kwargs))
    # A user's class may raise any error for tensors without values. Then its graph is unknown, which is no error.
    except Exception:
        return None
