"""The plain form of a mixture of experts: a Functional Keras model that computes all experts for every token.

        inputs ──┬── router ── softmax ─┬─ (selection) ── top_k ── one_hot ─┐
                 │                      └───────────── weights ─────────────┤
                 └── gate, up ── activation ── down ── outputs of all ──────┴── weighted sum (+ shared expert)

Its banks are `EinsumDense` layers with kernels `[experts, in, out]`. Arguments of the mixture that none of its layers
has are stored in the name of its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
from keras import ops

from keras_ext.expert.split_bank import bank_class
from strategies import layer_api

#: The beginning of the input's name.
TITLE = "keras_ext.MixtureOfExperts"
#: The mixture's arguments that follow `TITLE` in the name, because the model's layers do not have them.
NOTED = (
    "top_k",
    "router_activation",
    "normalize_top_k",
    "router_bias",
    "router_jitter",
    "load_balancing_loss",
    "z_loss",
    "capacity_factor",
)


def inner_layers(layer: Any, features: int) -> dict[str, Any]:
    """Returns the inner layers of a mixture by name, not built, in the order in which the model has them.

    Args:
        layer: the mixture.
        features: the number of features of its inputs.

    Raises:
        ValueError: the banks cannot be split along the mesh axis "tensor".
    """
    kernel = {"kernel_regularizer": layer.kernel_regularizer, "kernel_initializer": layer.kernel_initializer}
    bias = {"bias_regularizer": layer.bias_regularizer, "bias_initializer": layer.bias_initializer}
    constraints = {"kernel_constraint": layer.kernel_constraint, "bias_constraint": layer.bias_constraint}
    common = {**kernel, **bias, **constraints, "dtype": layer.dtype_policy}

    # One letter per dim instead of "...": with "...", TensorFlow 2.21 computes a kernel gradient for each token before
    # it adds them up, which exhausts memory; and on CPUs, in float16, "...i,eio->...eo" returns wrong products.
    dims = "abcdfghjklmn"[: layer.num_dims - 1]
    of_tokens, of_experts = f"{dims}i,eio->{dims}eo", f"{dims}ei,eio->{dims}eo"

    bank_cls = bank_class(layer)

    def bank(name: str, equation: str, size: int, activation: Any = None) -> Any:
        return bank_cls(
            equation,
            (*[None] * (layer.num_dims - 2), layer.num_experts, size),
            activation=activation,
            bias_axes="eo" if layer.use_bias else None,
            name=name,
            **_fresh(common),
        )

    def dense(name: str, size: int, activation: Any = None) -> Any:
        own = _fresh(common)
        return keras.layers.Dense(size, activation=activation, use_bias=layer.use_bias, name=name, **own)

    first = layer.activation
    router = keras.layers.Dense(layer.num_experts, use_bias=False, dtype="float32", name="router", **_fresh(kernel))
    made = {"router": router}
    if layer.router_bias is not None:
        # Adds the bias to the scores. Keras has no layer with a bias and without a kernel, so the kernel is all ones.
        made["selection"] = keras.layers.EinsumDense(
            "...e,e->...e",
            (layer.num_experts,),
            bias_axes="e",
            kernel_initializer="ones",
            trainable=False,
            dtype="float32",
            name="selection",
        )
    if layer.gated:
        made["gate"] = bank("gate", of_tokens, layer.hidden_dim, first)
    made["up"] = bank("up", of_tokens, layer.hidden_dim, None if layer.gated else first)
    made["down"] = bank("down", of_experts, features)
    if layer.shared_hidden_dim is not None:
        if layer.gated:
            made["shared_gate"] = dense("shared_gate", layer.shared_hidden_dim, first)
        made["shared_up"] = dense("shared_up", layer.shared_hidden_dim, None if layer.gated else first)
        made["shared_down"] = dense("shared_down", features)
    return made


def shapes_of_inputs(layer: Any, inner: Mapping[str, Any], shape: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """Yields each inner layer with the shape of its input, in the order of `inner`.

    Args:
        layer: the mixture.
        inner: its inner layers by name.
        shape: the shape of the mixture's inputs.
    """
    of_inputs = {
        "selection": (*shape[:-1], layer.num_experts),
        "down": (*shape[:-1], layer.num_experts, layer.hidden_dim),
        "shared_down": (*shape[:-1], layer.shared_hidden_dim),
    }
    for name, each in inner.items():
        yield each, of_inputs.get(name, shape)


def shared_output(inner: Mapping[str, Any], inputs: Any) -> Any:
    """Returns the output of the shared expert."""
    hidden = inner["shared_up"](inputs)
    if "shared_gate" in inner:
        hidden = inner["shared_gate"](inputs) * hidden
    return inner["shared_down"](hidden)


def model_of(layer: Any) -> Any:
    """Returns the Functional model of a built mixture, which shares the mixture's layers and so adds no weights."""
    inner = layer.by_name()
    features = int(inner["router"].kernel.shape[0])
    with layer_api.global_state_kept():
        shape = (*[None] * (layer.num_dims - 1), features)
        inputs = keras.Input(batch_shape=shape, dtype=layer.compute_dtype, name=_noted(layer))
        model = keras.Model(inputs, _outputs(layer, inner, inputs), name=layer.name)
    model.trainable = layer.trainable
    return model


def _outputs(layer: Any, inner: Mapping[str, Any], inputs: Any) -> Any:
    logits = inner["router"](inputs)
    scores = ops.softmax(logits, axis=-1) if layer.router_activation == "softmax" else ops.sigmoid(logits)
    hidden = inner["up"](inputs)
    if layer.gated:
        hidden = ops.multiply(inner["gate"](inputs), hidden)
    outputs = inner["down"](hidden)
    _, experts = ops.top_k(inner["selection"](scores) if "selection" in inner else scores, layer.top_k)
    weights = ops.multiply(scores, ops.sum(ops.one_hot(experts, layer.num_experts, dtype="float32"), axis=-2))
    if layer.normalize_top_k:
        weights = ops.divide(weights, ops.sum(weights, axis=-1, keepdims=True))
    weights = ops.expand_dims(ops.cast(weights, layer.compute_dtype), -1)
    outputs = ops.sum(ops.multiply(outputs, weights), axis=-2)
    if layer.shared_hidden_dim is None:
        return outputs
    return ops.add(outputs, shared_output(inner, inputs))


def _noted(layer: Any) -> str:
    """Returns the name of the model's input, which contains the arguments in `NOTED`."""
    return " ".join([TITLE, *(f"{name}={getattr(layer, name)}" for name in NOTED)])


def noted(name: str) -> dict[str, Any] | None:
    """Parses the arguments in the name of a model's input; returns None if the model is not a mixture of experts."""
    title, *rest = name.split(" ")
    if title != TITLE:
        return None
    texts: dict[str, str] = dict(part.split("=", 1) for part in rest)
    return {name: _read(text) for name, text in texts.items()}


def _read(text: str) -> Any:
    named: dict[str, Any] = {"None": None, "True": True, "False": False}
    if text in named:
        return named[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _fresh(common: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments with cloned initializers, because a shared random initializer would draw the same values."""
    return {
        name: value.clone() if isinstance(value, keras.initializers.Initializer) else value
        for name, value in common.items()
    }
