"""The dims along which single weights of a layer are cut, or the reasons why they are not. Pure data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.expert.split_bank import DIMS, check_split
from keras_ext.tensor.custom_layers import is_custom, is_keras_class, layers_inside
from keras_ext.tensor.gathered import input_axis, output_axis
from keras_ext.tensor.lora import adapted_weight, adapter_dim
from strategies import layer_api


@dataclass(frozen=True)
class Cuts:
    """The weights of a layer that are cut, each with its dim, and the reason why large ones are not, if any."""

    dims: tuple[tuple[Any, int], ...] = ()
    reason: str = ""


def own_weights(layer: Any) -> list[Any]:
    """Returns the weights of a layer, without those of inner layers that have a path of their own."""
    inside = [inner for _, inner in layers_inside(layer)] if is_custom(layer) else []
    of_others = {id(weight) for inner in inside for weight in inner.weights}
    return [weight for weight in layer.weights if id(weight) not in of_others]


def column_cuts(layer: Any, num_shards: int, wanted: int | None = None) -> Cuts:
    """Cuts an ``EinsumDense`` along a dim of its output: the first that `num_shards` divides, else the largest.

    Args:
        layer: built.
        num_shards: size of the mesh axis "tensor".
        wanted: the dim of the kernel to cut instead.
    """
    kernel, bias = layer._kernel, layer.bias
    outputs = [dim for dim in range(kernel.ndim) if output_axis(layer.equation, dim) is not None]
    dim = _best(kernel.shape, outputs, num_shards) if wanted is None else wanted
    if dim is None:
        return Cuts(reason=_too_small(num_shards))
    axis = output_axis(layer.equation, dim) or -1
    letter = layer.equation.replace(" ", "").partition("->")[2][axis]
    has_letter = bias is not None and letter in layer.bias_axes
    found = [(kernel, dim), *([(bias, bias.ndim + axis)] if has_letter else [])]
    return Cuts((*found, *_adapter_cuts(layer, found)))


def row_cuts(layer: Any, num_shards: int, wanted: int | None = None) -> Cuts:
    """Cuts an ``EinsumDense`` along a dim over which it sums: the first that `num_shards` divides, else the largest.

    Args:
        layer: built.
        num_shards: size of the mesh axis "tensor".
        wanted: the dim of the kernel to cut instead.
    """
    kernel = layer._kernel
    summed = [dim for dim in range(kernel.ndim) if input_axis(layer.equation, dim) is not None]
    dim = _best(kernel.shape, summed, num_shards) if wanted is None else wanted
    if dim is None:
        return Cuts(reason=_too_small(num_shards))
    return Cuts(((kernel, dim), *_adapter_cuts(layer, [(kernel, dim)])))


def _adapter_cuts(layer: Any, dims: Iterable[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Cuts the adapters of a layer as `lora.AdaptedLayer` does, given the cuts of its other weights."""
    adapters = layer_api.adapters_of(layer)
    kernel = adapted_weight(layer) if adapters else None
    found = [(each, adapter_dim(each.name, kernel.ndim, dim)) for w, dim in dims if w is kernel for each in adapters]
    return [(each, dim) for each, dim in found if dim is not None]


def quantized_cuts(layer: Any, num_shards: int, wanted: int | None = None) -> Cuts:
    """Cuts the int8 kernel of a layer along a dim of its output, or its table along the vocabulary, and the scales.

    Args:
        layer: a built ``Dense``, ``EinsumDense``, ``Embedding`` or ``ReversibleEmbedding``.
        num_shards: size of the mesh axis "tensor".
        wanted: the dim of an ``EinsumDense``'s kernel to cut, if the output has it.
    """
    if isinstance(layer, keras.layers.Embedding):
        if layer.input_dim < num_shards:
            return Cuts(reason=_too_small(num_shards))
        found = [(layer._embeddings, 0), (layer.embeddings_scale, 0)]
        if not getattr(layer, "tie_weights", True):
            found += [(layer.reverse_embeddings, 1), (layer.reverse_embeddings_scale, 0)]
        return Cuts((*found, *_adapter_cuts(layer, found)))
    scale = layer.kernel_scale
    if isinstance(layer, keras.layers.EinsumDense):
        is_made = wanted is not None and output_axis(layer.equation, wanted) is not None
        cuts = column_cuts(layer, num_shards, wanted if is_made else None)
        axis = output_axis(layer.equation, cuts.dims[0][1]) if cuts.dims else None
    else:
        found = [(layer._kernel, 1), *([] if layer.bias is None else [(layer.bias, 0)])]
        cuts = Cuts((*found, *_adapter_cuts(layer, found))) if layer.units >= num_shards else Cuts()
        axis = -1
    if axis is None or not cuts.dims:
        return Cuts(reason=_too_small(num_shards))
    # Keras lays the scales out like the output, by which it divides them.
    if -axis > scale.ndim or scale.shape[axis] != layer._kernel.shape[cuts.dims[0][1]]:
        return Cuts(reason=f"its scales have the shape {tuple(scale.shape)}")
    return Cuts((*cuts.dims, (scale, scale.ndim + axis)))


def gathered_cuts(layer: Any, num_shards: int, least_size: float = 0.0) -> Cuts:
    """Cuts the weights with several dims and at least `least_size` elements, of a layer of any class.

    Each is cut along the largest dim that `num_shards` divides, else the largest. State, which a layer makes with
    ``trainable=False`` and may write in its call, stays whole: the call gets a tensor in place of a sharded weight.
    """
    adapters = {id(each) for each in layer_api.adapters_of(layer)}
    large = [
        weight
        for weight in own_weights(layer)
        if math.prod(weight.shape) >= max(least_size, 1) and id(weight) not in adapters
    ]
    if not large:
        return Cuts()
    if reason := _obstacle(layer):
        return Cuts(reason=reason)
    state = {id(each) for inner in layer._flatten_layers() for each in inner._non_trainable_variables}
    dims, reasons = [], []
    for weight in large:
        by_size = sorted(range(weight.ndim), key=lambda dim: -weight.shape[dim])
        dim = _best(weight.shape, by_size, num_shards)
        if layer_api.lie_on_replicas([weight]):
            reasons.append(f"{weight.name}: its rows lie on several replicas")
        elif id(weight) in state:
            reasons.append(f"{weight.name}: its layer may write it")
        elif weight.ndim < 2:
            reasons.append(f"{weight.name} is a vector")
        elif dim is None:
            reasons.append(f"{weight.name}: {_too_small(num_shards)}")
        else:
            dims.append((weight, dim))
    return Cuts((*dims, *_adapter_cuts(layer, dims)), "; ".join(reasons))


def hidden_cuts(mixture: MixtureOfExperts, num_shards: int) -> Cuts:
    """Cuts the experts of a mixture along their hidden dim, as the layer itself does when it is built.

    Raises:
        ValueError: the experts cannot be cut.
    """
    check_split(mixture, num_shards)
    inner = mixture.by_name()
    found = [(getattr(inner[name], kind), dim) for (name, kind), dim in DIMS.items() if name in inner]
    return Cuts(tuple((weight, dim) for weight, dim in found if weight is not None))


def cuts_along(layer: Any, dims: Mapping[int, int]) -> Cuts:
    """Cuts the weights whose ids are given, along the given dims.

    Raises:
        ValueError: the weights of this layer cannot be cut.
    """
    adapters = {id(each) for each in layer_api.adapters_of(layer)}
    found = [(each, dims[id(each)]) for each in own_weights(layer) if id(each) in dims and id(each) not in adapters]
    if found and (reason := _obstacle(layer)):
        raise ValueError(f"The weights of {layer.name!r} cannot be cut: {reason}. Received: {layer!r}.")
    return Cuts((*found, *_adapter_cuts(layer, found)))


def _best(shape: Any, dims: list[int], num_shards: int) -> int | None:
    """Returns the first dim that `num_shards` divides; else the largest with an element for each shard; else None."""
    even = [dim for dim in dims if shape[dim] % num_shards == 0 and shape[dim] > 0]
    large = [dim for dim in dims if shape[dim] >= num_shards]
    return even[0] if even else max(large, key=lambda dim: shape[dim], default=None)


def _too_small(num_shards: int) -> str:
    return f"no dim has {num_shards} numbers or more"


def _obstacle(layer: Any) -> str:
    """Returns the reason why no weight of a layer can be cut by itself; an empty string if they can."""
    if isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)):
        names = ("num_heads", "num_query_heads", "num_key_value_heads")
        heads = ", ".join(f"{name}={getattr(layer, name)}" for name in names if hasattr(layer, name))
        return f"its heads cannot be split evenly ({heads})"
    if not is_custom(layer) and layer._layers:
        return f"{type(layer).__name__} holds layers that are not looked into"
    if getattr(layer, "quantization_mode", None) is not None:
        return "it is quantized"
    cls = type(layer)
    writer = next(base for base in cls.__mro__ if "save_own_variables" in vars(base))
    if not is_keras_class(writer):
        return f"{cls.__name__} writes files in its own way (save_own_variables)"
    return ""
