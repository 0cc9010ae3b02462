"""Copies the state of a layer to its copy: weights and their attributes, random states, settings, vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_ext.cloning.pairing import pairs
from keras_ext.tensor.custom_layers import is_graph
from strategies import layer_api

#: Attributes of Keras variables and of `SplitWeight`s, except those that are passed when a variable is created.
ATTRIBUTES = ("trainable", "regularizer", "constraint", "overwrite_with_gradient", "_autocast")


def copy_state(old: Any, new: Any) -> None:
    """Copies the weights, random states and other learnt state of a layer or model to its built copy.

    Then all processes take the values of rank 0: the model that is copied may differ between processes, since it may
    have been made outside of the strategy's scope. All processes call this.

    Raises:
        ValueError: the weights of a layer differ from those of its copy in number or shape.
    """
    alike = pairs(old, new)
    for one, other in alike:
        take_settings(one, other)
        take_form(one, other)
    inside: set[int] = set()
    for one, other in alike:
        if not is_graph(one) and id(one) not in inside:
            inside.update(id(layer) for layer in one._flatten_layers(include_self=False))
            _copy_weights(one, other)
        if is_graph(one) and isinstance(other, one.__class__):
            copy_weights(own_variables(one), own_variables(other))
    for one, other in alike:
        if len(one._seed_generators) == len(other._seed_generators):
            for its, theirs in zip(one._seed_generators, other._seed_generators, strict=True):
                layer_api.copy_value(its.state, theirs.state)
        take_vocabulary(one, other)
        if isinstance(other, keras.layers.RNN) and one.stateful:
            # Keras does not count these as variables of the layer.
            for its, theirs in zip(keras.tree.flatten(one.states), keras.tree.flatten(other.states), strict=True):
                layer_api.copy_value(its, theirs)
    layer_api.agree_on(new.variables)
    for _, other in alike:
        if isinstance(other, keras.layers.Normalization):
            # Recomputes the tensors that a Normalization derives from its weights.
            other.finalize_state()


def take_settings(old: Any, new: Any) -> None:
    """Copies the settings that a program can change on a layer, and that an outer layer's config does not contain."""
    if new.name != old.name:
        new.name = old.name
    if new.trainable != old.trainable:
        new.trainable = old.trainable
    # Keras cannot compare two maps of policies, which quantized models have in their files.
    is_map = isinstance(old.dtype_policy, keras.dtype_policies.DTypePolicyMap)
    if not new.built and (is_map or new.dtype_policy != old.dtype_policy):
        new.dtype_policy = old.dtype_policy


def take_form(old: Any, new: Any) -> None:
    """Adds to a built copy the weights that `quantize` and `enable_lora` have added to the built layer."""
    if not (old.built and new.built):
        return
    mode = getattr(old, "quantization_mode", None)
    if mode is not None and getattr(new, "quantization_mode", None) is None and not new._layers:
        new.quantize(mode, type_check=False)
    if getattr(old, "lora_enabled", False):
        if not new.lora_enabled:
            new.enable_lora(old.lora_rank, lora_alpha=old.lora_alpha)
        # Some of Keras' layers get another alpha from the same config.
        new.lora_rank, new.lora_alpha = old.lora_rank, old.lora_alpha


def take_vocabulary(old: Any, new: Any) -> None:
    """Copies a vocabulary that was adapted or set, and is therefore in no config."""
    if not isinstance(old, (keras.layers.StringLookup, keras.layers.IntegerLookup)):
        return
    words = old.get_vocabulary()
    if words == new.get_vocabulary():
        return
    weights = old.idf_weights_const.numpy()[: len(words)] if old.output_mode == "tf_idf" else None
    new.set_vocabulary(words, idf_weights=weights)


def own_variables(layer: Any) -> list[Any]:
    """Returns the variables that a layer holds itself, without those of inner layers."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def copy_weights(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Copies the values of weights, and all other settable properties, to other weights. All processes call this.

    Raises:
        ValueError: the weights differ in number or shape.
    """
    copy_values(old, new)
    # A variable that is sharded over the replicas is still one variable to a program, so only split weights are joined.
    weights, copies = layer_api.joined(old, only_split=True), layer_api.joined(new, only_split=True)
    for weight, its_copy in zip(weights, copies, strict=True):
        take_attributes(weight, its_copy)


def copy_values(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Copies the values of variables to others, one weight after the other. All processes call this.

    Raises:
        ValueError: the weights differ in number or shape.
    """
    weights, copies = layer_api.joined(old), layer_api.joined(new)
    if [tuple(weight.shape) for weight in weights] != [tuple(weight.shape) for weight in copies]:
        raise ValueError(_shapes(weights) + " are to go into " + _shapes(copies))
    for weight, its_copy in zip(weights, copies, strict=True):
        layer_api.copy_value(weight, its_copy)


def take_attributes(old: Any, new: Any) -> None:
    """Copies all settings of a weight but its value to a new weight, a variable or a `SplitWeight`.

    The copy has the path of the old weight, and an optimizer treats both alike: one that is excluded from weight decay
    stays excluded.
    """
    for name in ATTRIBUTES:
        value = getattr(old, name)
        if getattr(new, name) is not value:
            setattr(new, name, value)
    layer_api.note_copy(old, new)


def _shapes(weights: Sequence[Any]) -> str:
    return f"weights of shapes {[tuple(weight.shape) for weight in weights]}"


def _copy_weights(old: Any, new: Any) -> None:
    try:
        copy_weights(old.weights, new.weights)
    except ValueError as error:
        raise ValueError(
            f"The copy of the layer {old.name!r} has other weights: its get_config() does not contain all that "
            f"determines them. Let that of {type(old).__name__} return all arguments of its __init__. Received: "
            f"{error}."
        ) from error
