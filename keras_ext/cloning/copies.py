"""Copies of the layers of a model, each made once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras

from keras_ext.cloning.graphs import cloned, counted_layers, put_in_order
from keras_ext.cloning.layers import remade
from keras_ext.cloning.state import own_variables, take_settings
from keras_ext.cloning.structure import Attributes, CannotCopyError
from keras_ext.tensor.custom_layers import is_graph, is_keras_class
from keras_ext.tensor.gathered import GatheredWeights


class Copies:
    """Makes layers like others, without their weights' values; what two layers share, their copies share.

    Models inside are made of copies of the layers that they have, Keras' own layers of their config, others attribute
    by attribute.

    Args:
        instead: given a layer or operation, returns another one in its place, not built; None to have it copied.
        dims: of the weights that are to be cut into shards, by their id, the dim along which.
        rows_of_experts: the ids of weights of experts, which lie on the replicas along the mesh axis "expert".
    """

    def __init__(
        self,
        instead: Callable[[Any], Any] = lambda layer: None,
        dims: Mapping[int, int] | None = None,
        rows_of_experts: Collection[int] = (),
    ) -> None:
        self._instead = instead
        # With the old ones, so that no other object gets their id.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._dims = dims or {}
        self._inside: set[int] = set()
        self._attributes = Attributes(self._held, self._dims, rows_of_experts)

    def expect(self, model: Any) -> None:
        """Takes note of a model whose layers are copied one by one: what they hold of each other is copied, too."""
        self._inside.update(id(inner) for inner in model._flatten_layers())

    def of(self, layer: Any) -> Any:
        """Returns the copy of a layer, model or operation, not built if Keras' own.

        Raises:
            ValueError: it cannot be copied.
        """
        if id(layer) not in self._made:
            new = self._instead(layer)
            self._note(layer, self._copied(layer) if new is None else new)
        return self._made[id(layer)][1]

    def _note(self, layer: Any, new: Any) -> None:
        self._made.setdefault(id(layer), (layer, new))

    def _held(self, layer: Any) -> Any:
        """The counterpart of a layer that another one holds; the layer itself if it is no part of what is copied.

        Such is one that a function works with, and Keras does not count: a copy would not get its weights.
        """
        return self.built(layer) if id(layer) in self._inside else layer

    def built(self, layer: Any) -> Any:
        """Returns the copy of a layer, built if the layer is, as those inside of others have to be."""
        new = self.of(layer)
        if layer.built and not new.built:
            _build_like(new, layer)
        return new

    def _copied(self, layer: Any) -> Any:
        if not isinstance(layer, keras.Layer):
            return layer
        self.expect(layer)
        if is_graph(layer) and layer.layers:
            return layer.made_of([self.of(i) for i in layer.layers]) if hasattr(layer, "made_of") else self.graph(layer)
        if self._is_by_attributes(layer):
            with contextlib.suppress(CannotCopyError):
                return self._of_attributes(layer)
            return remade(layer)
        try:
            return remade(layer)
        except ValueError:
            # One of Keras' own that was given arguments which are in no config.
            with contextlib.suppress(CannotCopyError):
                return self._of_attributes(layer)
            raise

    def _is_by_attributes(self, layer: Any) -> bool:
        inside = layer._flatten_layers()
        if any(not is_keras_class(type(inner)) or isinstance(inner, GatheredWeights) for inner in inside):
            return True
        # Neither the config of a layer around these tells of them, nor their own all: the order of the weights, alpha.
        if any(inner.built and (getattr(inner, "lora_enabled", False) or inner.quantization_mode) for inner in inside):
            return True
        return any(id(variable) in self._dims for variable in layer.variables)

    def _of_attributes(self, layer: Any) -> Any:
        new = self._attributes.blank(layer)
        # Before it is filled: what it holds may hold it.
        self._note(layer, new)
        try:
            self._attributes.fill(new, layer)
        except CannotCopyError:
            del self._made[id(layer)]
            raise
        return new

    def graph(self, model: Any) -> Any:
        """Returns a Sequential or Functional model of copies, of the same class, whose weights are in the same order.

        Of a user's class it has the attributes, too.
        """
        self.expect(model)
        owners = {id(weight): layer for layer in model._flatten_layers() for weight in own_variables(layer)}

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            mine = functools.partial(self._argument, owners)
            args, kwargs = keras.tree.map_structure(mine, (args, kwargs))
            return layer(*args, **kwargs)

        copy = cloned(model, self.of, None if isinstance(model, keras.Sequential) else call)
        if not is_keras_class(type(model)):
            copy = self._of_own_class(model, copy)
        take_settings(model, copy)
        return copy

    def _argument(self, owners: Mapping[int, Any], value: Any) -> Any:
        """The counterpart of an argument in a graph: of a weight, which a layer or the model holds, that of its copy.

        Raises:
            ValueError: the copy of the layer has it in shards.
        """
        if not isinstance(value, keras.Variable) or id(value) not in owners:
            return value
        owner = owners[id(value)]
        if is_graph(owner):
            return self._attributes.of(value)
        copy = self.built(owner)
        places = [id(each) for each in own_variables(owner)]
        made = own_variables(copy)
        if len(made) == len(places) and made[places.index(id(value))].shape == value.shape:
            return made[places.index(id(value))]
        raise ValueError(
            "A layer cannot be split one of whose weights the model's graph uses outside of it. Leave it out of the "
            f"plan. Received: {owner.name!r}, whose {value.path!r} is used in the graph."
        )

    def _of_own_class(self, model: Any, copy: Any) -> Any:
        cls: Any = type(model)
        new = cls.__new__(cls)
        # Keras': what the class itself would make of layers, or of a graph, is not known.
        base: Any = next(each for each in cls.__mro__ if is_keras_class(each))
        if isinstance(model, keras.Sequential):
            base.__init__(new, list(copy._layers), name=model.name)
        else:
            base.__init__(new, copy._inputs_struct, copy._outputs_struct, name=model.name)
        self._note(model, new)
        self._attributes.take(new, model, set(vars(new)))
        self._attributes.count(new, model, ("trainable_variables", "non_trainable_variables"))
        new._dtype_policy = model._dtype_policy
        if not isinstance(model, keras.Sequential):
            made = [self._made.get(id(layer), (None, None))[1] for layer in counted_layers(model)]
            put_in_order(new, made)
        return new


def _build_like(made: Any, layer: Any) -> None:
    """Builds a layer as one that it is like was built."""
    if getattr(made, "_parent_path", None) is None:
        made._parent_path = getattr(layer, "_parent_path", None)
    nodes = layer._inbound_nodes
    # Keras marks its own `build`, which layers have that make all in `__init__`, and builds nothing inside.
    if not nodes or not getattr(made.build, "_is_default", False):
        made.build_from_config(layer.get_build_config())
        return

    def fresh(value: Any) -> Any:
        return keras.KerasTensor(value.shape, value.dtype) if isinstance(value, keras.KerasTensor) else value

    args, kwargs = keras.tree.map_structure(fresh, (nodes[0].arguments.args, nodes[0].arguments.kwargs))
    _Calling(made).compute_output_spec(*args, **kwargs)


class _Calling(keras.Operation):
    """An operation that calls a layer, which is then built as one inside of another: it is in no graph itself."""

    def __init__(self, layer: Any) -> None:
        super().__init__(name=f"calling_{layer.name}")
        self._layer = layer

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer."""
        return self._layer(*args, **kwargs)
