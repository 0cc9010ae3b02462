"""A mixture of experts as the dense sum over all of them, in plain Keras, with the losses of one device."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops


class DenseMixture(keras.Layer):
    """The gated mixture without bias: three banks, every expert for every token.

    Args:
        num_experts: number of experts.
        hidden_dim: hidden units of each expert.
        top_k: number of experts per token.
        balance: factor of the load-balancing loss.
        z: factor of the z-loss.
        bias_step: step of the router's bias; 0 for none.
        capacity_factor: None for no capacity.
        **kwargs: arguments of every layer.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_dim: int,
        top_k: int,
        balance: float = 0.0,
        z: float = 0.0,
        bias_step: float = 0.0,
        capacity_factor: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sizes = num_experts, hidden_dim, top_k
        self.balance, self.z, self.bias_step, self.capacity_factor = balance, z, bias_step, capacity_factor
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Makes the weights in the order of the sparse layer."""
        experts, hidden, _ = self.sizes
        features = input_shape[-1]
        self.router = self.add_weight(shape=(features, experts))
        if self.bias_step:
            self.ones = self.add_weight(shape=(experts,), trainable=False)
            self.bias = self.add_weight(shape=(experts,), initializer="zeros", trainable=False)
        self.gate = self.add_weight(shape=(experts, features, hidden))
        self.up = self.add_weight(shape=(experts, features, hidden))
        self.down = self.add_weight(shape=(experts, hidden, features))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Returns the weighted sum."""
        experts, _, top_k = self.sizes
        logits = ops.matmul(inputs, self.router)
        scores = ops.softmax(logits, axis=-1)
        chosen = ops.top_k(scores + self.bias if self.bias_step else scores, top_k)[1]
        is_of = ops.one_hot(chosen, experts)  # [..., k, E]
        counted = ops.ones_like(inputs[..., 0]) if mask is None else ops.cast(mask, "float32")
        weights = scores * ops.sum(is_of, axis=-2)
        weights = weights / ops.sum(weights, axis=-1, keepdims=True)
        if training:
            counts = ops.sum(is_of * counted[..., None, None], axis=tuple(range(len(inputs.shape))))
            number = ops.sum(counted)
            if self.balance:
                mean = ops.sum(scores * counted[..., None] / number, axis=tuple(range(len(inputs.shape) - 1)))
                self.add_loss(self.balance * experts * ops.sum(counts / (number * top_k) * mean))
            if self.z:
                self.add_loss(self.z * ops.sum(ops.logsumexp(logits, axis=-1) ** 2 * counted) / number)
            if self.bias_step:
                self.bias.assign(self.bias + self.bias_step * ops.sign(ops.mean(counts) - counts))
            if self.capacity_factor:
                weights = weights * self._kept(is_of, counted, number)
        hidden = ops.silu(ops.einsum("...i,eio->...eo", inputs, self.gate))
        hidden = hidden * ops.einsum("...i,eio->...eo", inputs, self.up)
        outputs = ops.einsum("...ei,eio->...eo", hidden, self.down)
        return ops.sum(outputs * weights[..., None], axis=-2)

    def _kept(self, is_of: Any, counted: Any, number: Any) -> Any:
        """Returns 1 for each expert of a token that has room for it, `[..., experts]`."""
        experts, _, top_k = self.sizes
        capacity = ops.ceil(number * top_k * self.capacity_factor / experts)
        by_choice = ops.reshape(is_of * counted[..., None, None], (-1, top_k, experts))
        in_order = ops.reshape(ops.transpose(by_choice, (1, 0, 2)), (-1, experts))
        kept = in_order * ops.cast(ops.cumsum(in_order, axis=0) <= capacity, "float32")
        kept = ops.sum(ops.reshape(kept, (top_k, -1, experts)), axis=0)
        return ops.reshape(kept, (*ops.shape(counted), experts))


def skewed(num_tokens: int, features: int, num_experts: int, load: str, seed: int = 0) -> tuple[Any, Any]:
    """Returns tokens, and a router kernel that routes them as `load` says: "even", "skewed", "empty" or "one".

    The first feature is 1: its row of the kernel is a bias.
    """
    generator = np.random.default_rng(seed)
    tokens = generator.normal(size=(num_tokens, features)).astype("float32")
    tokens[:, 0] = 1.0
    kernel = generator.normal(size=(features, num_experts)).astype("float32") * 0.3
    kernel[0] = {
        "even": np.zeros(num_experts),
        "skewed": np.linspace(2.0, 0.0, num_experts),
        # Two experts have no tokens.
        "empty": np.where(np.arange(num_experts) % 2, -20.0, 0.0),
        # All tokens have the same experts.
        "one": np.where(
            np.arange(num_experts) == num_experts - 1, 40.0, np.where(np.arange(num_experts) == 0, 20.0, 0)
        ),
    }[load]
    return tokens, kernel
