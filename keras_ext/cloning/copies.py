"""Copies of the layers of a model, each made once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras

from keras_ext.cloning.graphs import cloned, counted_layers, init_graph, put_in_order
from keras_ext.cloning.layers import remade
from keras_ext.cloning.state import own_variables, take_settings
from keras_ext.cloning.structure import Attributes, CannotCopyError
from keras_ext.tensor.custom_layers import is_graph, is_keras_class
from keras_ext.tensor.gathered import GatheredWeights


class Copies:
    """Copies layers without the values of their weights; objects that two layers share are shared by their copies.

    Models are made from copies of their layers, Keras' own layers from their config, other layers attribute by
    attribute.

    Args:
        instead: given a layer or operation, returns a replacement, not built, or None to have it copied.
        dims: the dim along which a weight is to be cut into shards, by the weight's id.
        rows_of_experts: the ids of experts' weights, which are distributed over the mesh axis "expert".
        scope: returns a context manager for a layer, in which the variables of its copy are created.
        classes: the class of a layer's copy, by the layer's id, for layers that are copied attribute by attribute.
    """

    def __init__(
        self,
        instead: Callable[[Any], Any] = lambda layer: None,
        dims: Mapping[int, int] | None = None,
        rows_of_experts: Collection[int] = (),
        scope: Callable[[Any], contextlib.AbstractContextManager[Any]] | None = None,
        classes: Mapping[int, Any] | None = None,
    ) -> None:
        self._instead = instead
        self._given_scope = scope
        # The layer of each copy, by the copy's id.
        self._copied_from: dict[int, Any] = {}
        # Holds the old objects as well, so that no other object gets their id.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._dims = dims or {}
        self._inside: set[int] = set()
        self._weights: set[int] = set()
        self._attributes = Attributes(self._get_inner, self._dims, rows_of_experts, self._weights, classes)

    def expect(self, model: Any) -> None:
        """Registers a model whose layers are copied one by one: references between its layers are copied, too."""
        for inner in model._flatten_layers():
            self._inside.add(id(inner))
            self._weights.update(id(variable) for variable in inner.variables)

    def get(self, layer: Any) -> Any:
        """Returns the copy of a layer, model or operation. The copy of one of Keras' own layers is not built.

        Raises:
            ValueError: the layer cannot be copied.
        """
        if id(layer) not in self._made:
            with self._scope(layer):
                new = self._instead(layer)
                self._note(layer, self._copied(layer) if new is None else new)
        return self._made[id(layer)][1]

    def _note(self, layer: Any, new: Any) -> None:
        _, noted = self._made.setdefault(id(layer), (layer, new))
        self._copied_from.setdefault(id(noted), layer)

    def _get_inner(self, layer: Any) -> Any:
        """Returns the copy of a layer that another layer holds; the layer itself if it is not to be copied.

        A layer that a function uses and Keras does not track is not copied: the copy would not get its weights.
        """
        return self.built(layer) if id(layer) in self._inside else layer

    def built(self, layer: Any) -> Any:
        """Returns the copy of a layer, built if the layer is built. Copies of inner layers have to be."""
        new = self.get(layer)
        if layer.built and not new.built:
            _build_like(new, layer)
        return new

    def _copied(self, layer: Any) -> Any:
        if not isinstance(layer, keras.Layer):
            return layer
        self.expect(layer)
        if is_graph(layer) and layer.layers:
            return (
                layer.with_layers([self.get(i) for i in layer.layers])
                if hasattr(layer, "with_layers")
                else self.graph(layer)
            )
        if self._is_by_attributes(layer):
            with contextlib.suppress(CannotCopyError):
                return self._from_attributes(layer)
            return remade(layer)
        try:
            return remade(layer)
        except ValueError:
            # One of Keras' own layers, given constructor arguments that are in no config.
            with contextlib.suppress(CannotCopyError):
                return self._from_attributes(layer)
            raise

    def _is_by_attributes(self, layer: Any) -> bool:
        return is_by_attributes(layer) or any(id(variable) in self._dims for variable in layer.variables)

    def _from_attributes(self, layer: Any) -> Any:
        new = self._attributes.blank(layer)
        # Recorded before it is filled: objects that the layer holds may refer back to the layer.
        self._note(layer, new)
        try:
            self._attributes.fill(new, layer)
        except CannotCopyError:
            del self._made[id(layer)]
            raise
        return new

    def graph(self, model: Any) -> Any:
        """Returns a Sequential or Functional model of copies, of the same class, whose weights are in the same order.

        If the class is a user's, the attributes are copied, too.
        """
        copy = self.plain_graph(model)
        if not is_keras_class(model.__class__):
            copy = self._with_own_class(model, copy)
        take_settings(model, copy)
        return copy

    def plain_graph(self, model: Any) -> Any:
        """Returns a Sequential or Functional model of copies, of Keras' own class; weights are in the same order."""
        self.expect(model)
        owners = {id(weight): layer for layer in model._flatten_layers() for weight in own_variables(layer)}

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            mine = functools.partial(self._argument, owners)
            args, kwargs = keras.tree.map_structure(mine, (args, kwargs))
            with self._scope(self._copied_from[id(layer)]):
                return layer(*args, **kwargs)

        if isinstance(model, keras.Sequential):
            # A Sequential builds its layers itself, outside of their scopes.
            return cloned(model, self.get if self._given_scope is None else self._built_in_scope)
        return cloned(model, self.get, call)

    def _scope(self, layer: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._given_scope is None else self._given_scope(layer)

    def _built_in_scope(self, layer: Any) -> Any:
        with self._scope(layer):
            return self.built(layer)

    def _argument(self, owners: Mapping[int, Any], value: Any) -> Any:
        """Returns the copy of a graph's argument if it is a weight of a layer or of the model; else the argument.

        Raises:
            ValueError: the weight is sharded in the copy of its layer.
        """
        if not isinstance(value, keras.Variable) or id(value) not in owners:
            return value
        owner = owners[id(value)]
        if is_graph(owner):
            return self._attributes.get(value)
        copy = self.built(owner)
        ids = [id(each) for each in own_variables(owner)]
        made = own_variables(copy)
        if len(made) == len(ids) and made[ids.index(id(value))].shape == value.shape:
            return made[ids.index(id(value))]
        raise ValueError(
            "A layer cannot be split one of whose weights the model's graph uses outside of it. Leave it out of the "
            f"plan. Received: {owner.name!r}, whose {value.path!r} is used in the graph."
        )

    def _with_own_class(self, model: Any, copy: Any) -> Any:
        cls: Any = model.__class__
        new = cls.__new__(cls)
        is_sequential = isinstance(model, keras.Sequential)
        graph = [list(copy._layers)] if is_sequential else [copy._inputs_struct, copy._outputs_struct]
        init_graph(new, *graph, name=model.name)
        self.take_attributes(model, new)
        return new

    def take_attributes(self, model: Any, new: Any) -> None:
        """Copies what a model of a user's class holds to a copy that has the graph: attributes and their order.

        Args:
            model: the model.
            new: a Sequential or Functional model of the copies of its layers, whose attributes are kept.
        """
        self.expect(model)
        self._note(model, new)
        self._attributes.take(new, model, set(vars(new)))
        self._attributes.count(new, model, ("trainable_variables", "non_trainable_variables"))
        new._dtype_policy = model._dtype_policy
        if not isinstance(model, keras.Sequential):
            made = [self._made.get(id(layer), (None, None))[1] for layer in counted_layers(model)]
            put_in_order(new, made)


def is_by_attributes(layer: Any) -> bool:
    """Returns True if a layer is copied attribute by attribute: the copy shares the copies of the layers it holds."""
    inside = layer._flatten_layers()
    if any(not is_keras_class(type(inner)) or isinstance(inner, GatheredWeights) for inner in inside):
        return True
    # An outer layer's config lacks LoRA and quantization; the layer's own lacks the order of the weights and alpha.
    return any(inner.built and (getattr(inner, "lora_enabled", False) or inner.quantization_mode) for inner in inside)


def _build_like(made: Any, layer: Any) -> None:
    """Builds the layer `made` with the inputs with which `layer` was built."""
    if getattr(made, "_parent_path", None) is None:
        made._parent_path = getattr(layer, "_parent_path", None)
    nodes = layer._inbound_nodes
    # Keras' default `build`, marked as such, does not build inner layers: a call does.
    if not nodes or not getattr(made.build, "_is_default", False):
        made.build_from_config(layer.get_build_config())
        return

    def fresh(value: Any) -> Any:
        return keras.KerasTensor(value.shape, value.dtype) if isinstance(value, keras.KerasTensor) else value

    args, kwargs = keras.tree.map_structure(fresh, (nodes[0].arguments.args, nodes[0].arguments.kwargs))
    _Calling(made).compute_output_spec(*args, **kwargs)


class _Calling(keras.Operation):
    """An operation that calls a layer, so that the layer is built like an inner layer and gets no graph node."""

    def __init__(self, layer: Any) -> None:
        super().__init__(name=f"calling_{layer.name}")
        self._layer = layer

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer."""
        return self._layer(*args, **kwargs)
