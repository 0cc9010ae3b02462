"""Sparse versions of KerasHub's mixtures of experts: each class replaces only `call` of one KerasHub class.

Inputs, outputs and the order of operations are KerasHub's. The differences: experts compute only their own tokens, and
the load-balancing loss is that of the global batch. KerasHub's classes are found by name, so that KerasHub is not
imported; tests check them against each release.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras import ops

from keras_ext.expert.bank import weighted_sum_over_experts
from keras_ext.expert.loads import Load, load_balancing_loss
from strategies import layer_api


class _Block:
    """The base of the mix-ins, which read attributes of the plain class."""

    #: The name of the attribute that has the weights of the experts, and no other weights.
    bank_attribute = "expert_bank"
    #: The name of the attribute that has the factor of the load-balancing loss.
    factor_attribute: str | None = None

    @property
    def synchronized(self) -> bool:
        """True if this layer runs a collective over replicas while it computes, as a synchronized batch norm does."""
        own: Any = self
        return self._has_loss or layer_api.lie_on_replicas(own.variables)

    @property
    def _has_loss(self) -> bool:
        return bool(self.factor_attribute and getattr(self, self.factor_attribute))

    def _weighted_sum(self, tokens: Any, experts: Any, weights: Any, banks: Sequence[Any], feed_forward: Any) -> Any:
        experts, weights = ops.cast(experts, "int32"), ops.cast(weights, tokens.dtype)
        # The sort by experts is undone, so row i of the output belongs to token i, which the ops do not show.
        return layer_api.as_rows(weighted_sum_over_experts(tokens, experts, weights, banks, feed_forward), tokens)

    def _balance(self, probabilities: Any, experts: Any, mask: Any) -> None:
        """Adds the load-balancing loss; `mask` is None or has one value per token, 0 for padding."""
        own: Any = self
        if not self._has_loss:
            return
        counted = None if mask is None else ops.cast(ops.reshape(mask, (-1,)), "float32")
        load = Load.from_experts(experts, own.num_experts, counted)
        loss = load_balancing_loss(load, ops.cast(probabilities, "float32"), counted)
        own.add_loss(getattr(self, str(self.factor_attribute)) * loss)


class MixtralBlock(_Block):
    """The block of Mixtral. It returns router logits; padding does not count in the load."""

    factor_attribute = "router_aux_loss_coef"

    def call(self, hidden_states: Any, attention_mask: Any = None, training: bool = False) -> Any:
        """Returns the outputs and the router's logits."""
        own: Any = self
        if training and own.router_jitter_noise > 0:
            # With jitter, the experts' inputs change, too, and KerasHub draws it without a seed.
            return super().call(hidden_states, attention_mask=attention_mask, training=training)  # type: ignore[misc]
        shape = ops.shape(hidden_states)
        tokens = ops.reshape(hidden_states, (-1, own.hidden_dim))
        logits = own._sparse_feedforward_gate_dense(tokens)
        probabilities = ops.softmax(logits, axis=-1)
        weights, experts = ops.top_k(probabilities, k=own.top_k)
        weights = weights / ops.sum(weights, axis=-1, keepdims=True)
        bank = own.expert_bank
        banks = (
            bank._expert_feedforward_gate_dense,
            bank._expert_feedforward_intermediate_dense,
            bank._expert_feedforward_output_dense,
        )

        def feed_forward(x: Any, gate: Any, intermediate: Any, output: Any) -> Any:
            gated = _in_float32(bank.activation, ops.matmul(x, gate))
            return ops.matmul(ops.matmul(x, intermediate) * gated, output)

        outputs = self._weighted_sum(tokens, experts, weights, banks, feed_forward)
        if training:
            self._balance(probabilities, experts, attention_mask)
        return ops.reshape(outputs, shape), logits


class QwenBlock(_Block):
    """The block of Qwen-MoE, Qwen3-MoE and Qwen3.5-MoE. Gate and up are one bank; some models have a shared expert."""

    factor_attribute = "router_aux_loss_coefficient"
    #: The names of attributes: of the router, and of the shared expert and its gate (None without a shared expert).
    router = "_sparse_feedforward_gate_dense"
    shared: tuple[str, str] | None = None

    def call(self, hidden_states: Any, attention_mask: Any = None, training: bool | None = None) -> Any:
        """Returns the outputs and the router's logits."""
        own: Any = self
        shape = ops.shape(hidden_states)
        tokens = ops.reshape(hidden_states, (-1, own.hidden_dim))
        logits = getattr(own, self.router)(tokens)
        probabilities = ops.softmax(logits, axis=-1)
        weights, experts = ops.top_k(probabilities, k=own.top_k)
        if getattr(own, "norm_top_k_prob", True):
            weights = weights / ops.sum(weights, axis=-1, keepdims=True)
        bank = own.expert_bank
        banks = bank._expert_feedforward_gate_dense, bank._expert_feedforward_output_dense

        def feed_forward(x: Any, gate_up: Any, output: Any) -> Any:
            gate, up = ops.split(ops.matmul(x, gate_up), 2, axis=-1)
            # The experts of Qwen3.5 have no activation argument.
            gate = bank.activation(gate) if hasattr(bank, "activation") else _in_float32(ops.silu, gate)
            return ops.matmul(up * gate, output)

        outputs = self._weighted_sum(tokens, experts, weights, banks, feed_forward)
        if self.shared is not None:
            expert, gate = (getattr(own, name) for name in self.shared)
            outputs = outputs + expert(tokens) * ops.sigmoid(gate(tokens))
        if training:
            mask = attention_mask
            if mask is not None and len(mask.shape) == 3:
                # An attention mask, `[batch, tokens, tokens]`: padding attends to no token.
                mask = ops.any(mask, axis=-1)
            self._balance(probabilities, experts, mask)
        return ops.reshape(outputs, shape), logits


class QwenMoeBlock(QwenBlock):
    """The block of Qwen-MoE."""

    shared = "shared_expert_dense", "shared_expert_gate_dense"


class Qwen35Block(QwenBlock):
    """The block of Qwen3.5-MoE."""

    router = "_router_gate"
    shared = "shared_expert", "_shared_expert_gate"


class GptOssBlock(_Block):
    """The block of GPT-OSS: experts with biases and clipped activations, no load-balancing loss."""

    bank_attribute = "experts"

    def call(self, hidden_states: Any) -> Any:
        """Returns the outputs and the router's scores."""
        own: Any = self
        shape = ops.shape(hidden_states)
        tokens = ops.reshape(hidden_states, (-1, own.hidden_dim))
        scores = own.router(tokens)
        # Experts that are not chosen have zero scores.
        weights, experts = ops.top_k(scores, k=own.top_k)
        bank = own.experts
        banks = bank.gate_up_proj, bank.gate_up_proj_bias, bank.down_proj, bank.down_proj_bias

        def feed_forward(x: Any, gate_up: Any, gate_up_bias: Any, down: Any, down_bias: Any) -> Any:
            both = ops.matmul(x, gate_up) + gate_up_bias
            gate = ops.clip(both[..., ::2], -1e9, bank.limit)
            up = ops.clip(both[..., 1::2], -bank.limit, bank.limit)
            return ops.matmul((up + 1) * (gate * ops.sigmoid(gate * bank.alpha)), down) + down_bias

        return ops.reshape(self._weighted_sum(tokens, experts, weights, banks, feed_forward), shape), scores


#: The mix-ins by the module (below keras_hub.src.models) and the name of KerasHub's class.
BLOCKS: Mapping[tuple[str, str], type[_Block]] = {
    ("mixtral.mixtral_decoder", "MixtralSparseMoeBlock"): MixtralBlock,
    ("qwen_moe.qwen_moe_decoder", "QwenSparseMoeBlock"): QwenMoeBlock,
    ("qwen3_moe.qwen3_moe_decoder", "Qwen3SparseMoeBlock"): QwenBlock,
    ("qwen3_5_moe.qwen3_5_moe_decoder", "Qwen3_5MoeSparseMoeBlock"): Qwen35Block,
    ("gpt_oss.gpt_oss_decoder", "GptOssSparseMoeBlock"): GptOssBlock,
}


def is_dense_block(layer: Any) -> bool:
    """Returns True if a layer is one of KerasHub's blocks that compute all experts for every token."""
    return _key(type(layer)) in BLOCKS


def bank_of(block: Any) -> list[Any]:
    """Returns the expert weights of a KerasHub block: variables of shape `[num_experts, ...]`."""
    return list(getattr(block, BLOCKS[_key(type(block))].bank_attribute).variables)


def make_sparse(block: Any) -> None:
    """Makes a KerasHub block compute its experts sparsely, by changing its class to a subclass."""
    cls: Any = type(block)
    block.__class__ = sparse_class(cls)
    # The shapes of matrices depend on values, which XLA cannot compile.
    block.supports_jit = False


@functools.cache
def sparse_class(plain_class: Any) -> Any:
    """Returns the sparse subclass of one of KerasHub's classes."""
    names = {"__module__": plain_class.__module__, "__qualname__": f"Sparse{plain_class.__qualname__}"}
    return type(plain_class.__name__, (BLOCKS[_key(plain_class)], plain_class), names)


def _key(cls: type) -> tuple[str, str]:
    return cls.__module__.removeprefix("keras_hub.src.models."), cls.__qualname__


def _in_float32(activation: Callable[[Any], Any], x: Any) -> Any:
    return ops.cast(activation(ops.cast(x, "float32")), x.dtype)
