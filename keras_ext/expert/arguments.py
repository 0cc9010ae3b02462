"""Checks the arguments of a mixture of experts, and converts them to a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

_PLAIN = (
    "num_experts",
    "hidden_dim",
    "top_k",
    "gated",
    "router_activation",
    "normalize_top_k",
    "router_bias",
    "router_jitter",
    "shared_hidden_dim",
    "load_balancing_loss",
    "z_loss",
    "capacity_factor",
    "use_bias",
)


def check(layer: Any) -> None:
    """Refuses invalid arguments of a layer.

    Raises:
        ValueError: an argument is invalid.
    """
    _positive(layer, ("num_experts", "hidden_dim", "top_k"))
    _positive(layer, [name for name in ("shared_hidden_dim", "capacity_factor") if getattr(layer, name) is not None])
    if layer.top_k > layer.num_experts:
        raise ValueError(
            f"A token takes at most all experts: top_k <= num_experts. Received: top_k={layer.top_k}, "
            f"num_experts={layer.num_experts}."
        )
    if layer.router_activation not in ("softmax", "sigmoid"):
        raise ValueError(f"router_activation is 'softmax' or 'sigmoid'. Received: {layer.router_activation!r}.")
    if not 0 <= layer.router_jitter < 1:
        raise ValueError(f"router_jitter is in [0, 1). Received: {layer.router_jitter}.")
    for name in ("load_balancing_loss", "z_loss", "router_bias"):
        if (getattr(layer, name) or 0) < 0:
            raise ValueError(f"{name} is not negative; 0 to leave it out. Received: {getattr(layer, name)}.")


def config_of(layer: Any) -> dict[str, Any]:
    """Returns the arguments of a layer as plain values."""
    config: dict[str, Any] = {name: getattr(layer, name) for name in _PLAIN}
    config["activation"] = keras.activations.serialize(layer.activation)
    for kind in ("initializer", "regularizer", "constraint"):
        serialize = getattr(keras, f"{kind}s").serialize
        for weight in ("kernel", "bias"):
            config[f"{weight}_{kind}"] = serialize(getattr(layer, f"{weight}_{kind}"))
    return config


def refuse_quantized(layers: Sequence[Any], name: str) -> None:
    """Refuses quantized layers: the matrix products of single experts do not take integer banks.

    Raises:
        ValueError: a layer is quantized.
    """
    for layer in layers:
        if getattr(layer, "quantization_mode", None) is not None:
            raise ValueError(
                "A MixtureOfExperts does not compute with quantized experts. Save the model, open it in plain Keras, "
                f"and quantize it there. Received: {name!r} with quantization_mode={layer.quantization_mode!r}."
            )


def _positive(layer: Any, names: Sequence[str]) -> None:
    for name in names:
        if getattr(layer, name) <= 0:
            raise ValueError(f"{name} is positive. Received: {name}={getattr(layer, name)}.")
