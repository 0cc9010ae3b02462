"""Parity of quantized layers.

Float8 rounds activations, kernels and gradients to few values, by scales from earlier steps: with the same scales, each
row is rounded as on one device. No value of these data is so close to a rounding boundary that the order of a sum
changes its rounding.
"""

from __future__ import annotations

from typing import Any

import keras

from tests.strategies.parity.harness import Case, Model

L = keras.layers
opt = keras.optimizers


def quantized(optimizer: Any) -> Model:
    """Returns layers of each trainable kind: float8 trains all weights, int8 and int4 train biases and adapters."""
    inputs = keras.Input((6,))
    up, across = L.Dense(16, "relu"), L.EinsumDense("ab,bc->ac", output_shape=8, bias_axes="c", activation="tanh")
    adapted, down = L.Dense(8, "relu"), L.Dense(3)
    model = keras.Model(inputs, down(adapted(across(up(inputs)))))
    for layer, mode in ((up, "float8"), (across, "float8"), (adapted, "int8"), (down, "int4")):
        layer.quantize(mode)
    adapted.enable_lora(2, b_initializer="glorot_uniform")
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


CASES = [
    Case("float8, int8 with LoRA, int4", lambda: quantized(opt.SGD(0.1, 0.9))),
    Case(
        "float8, int8 with LoRA, int4, gradient_accumulation_steps, global_clipnorm",
        lambda: quantized(opt.SGD(0.1, gradient_accumulation_steps=3, global_clipnorm=0.1)),
    ),
]
