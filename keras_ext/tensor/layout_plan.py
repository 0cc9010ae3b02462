"""Plans made from Keras' own layout maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from keras_ext.tensor.custom_layers import plain_type
from keras_ext.tensor.cuts import own_weights
from keras_ext.tensor.gathered import output_axis

_DATA_AXES = ("batch", "data")


def kinds_and_dims(
    layers: Mapping[str, Any], layout_map: Any, num_shards: int
) -> tuple[dict[str, str | None], dict[int, int]]:
    """Returns the kind of split for each path, and the dims of the weights that are cut one by one, by their id.

    A weight's entry is found by its path, as in Keras. The first axis of the map's device mesh, and any axis called
    "batch" or "data", is a data axis, along which nothing is cut; the other one is "tensor".

    Args:
        layers: the layers, by path.
        layout_map: a ``keras.distribution.LayoutMap``.
        num_shards: size of the mesh axis "tensor".

    Raises:
        ValueError: an entry cuts a weight along two dims, or no entry matches a weight.
    """
    mesh = getattr(layout_map, "device_mesh", None)
    data_axes = (*_DATA_AXES, None, *(mesh.axis_names[:1] if mesh is not None else ()))
    kinds: dict[str, str | None] = {}
    dims: dict[int, int] = {}
    is_used = False
    for path, layer in layers.items():
        own: dict[str, int] = {}
        for weight in own_weights(layer) if layer.built else ():
            layout = layout_map[weight.path]
            is_used = is_used or layout is not None
            cut = [dim for dim, axis in enumerate(getattr(layout, "axes", layout) or ()) if axis not in data_axes]
            if len(cut) > 1:
                raise ValueError(
                    f"A weight is cut along one dim here, over the mesh axis 'tensor'. Received: {layout} for "
                    f"{weight.path!r}."
                )
            if cut and weight.shape[cut[0]] >= num_shards:
                own[weight.name] = cut[0]
                dims[id(weight)] = cut[0]
        kinds[path] = _kind(layer, own, num_shards)
    if not is_used:
        paths = [weight.path for layer in layers.values() for weight in own_weights(layer)]
        raise ValueError(
            "No weight of the model fits to an entry of the layout map. Received: keys "
            f"{list(layout_map.keys())}; weights {paths}."
        )
    return kinds, dims


def _kind(layer: Any, own: Mapping[str, int], num_shards: int) -> str | None:
    """Returns the kind of split that has a layer's cuts; "gathered" if no kind has, None without cuts."""
    cls = plain_type(layer)
    dim = own.get("kernel", own.get("embeddings", -1))
    if not own:
        return None
    if cls in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention):
        return "heads"
    if cls in (keras.layers.Dense, keras.layers.Conv2D) and dim >= 0 and getattr(layer, "groups", 1) == 1:
        from_end = dim - layer.kernel.ndim
        if from_end in (-1, -2) and layer.kernel.shape[dim] % num_shards == 0:
            return "column" if from_end == -1 else "row"
    if issubclass(cls, keras.layers.Embedding) and dim == 0:
        return "vocab"
    if cls is keras.layers.EinsumDense and dim >= 0 and output_axis(layer.equation, dim) is not None:
        return "column"
    return "gathered"
