"""The memory of a training step of a transformer on the device with the most, by kind, from formulas.

Source: Korthikanti et al. (arXiv:2205.05198), section 4 for activations; Rajbhandari et al. (arXiv:1910.02054),
section 5 for what `shard` divides. Keras' mixed precision: float32 weights, their copies in half precision, gradients
and two slots are 4 + 2 + 4 + 8 bytes for each parameter; Megatron's 2 + 4 + 12 are as many. Frozen weights have neither
gradients nor slots, and int8 ones no kept copies. Not covered: fragmentation, buffers of collectives, and the
libraries' own memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from strategies.planning.layout import Layout
from strategies.planning.transformer import Transformer

# The copies in half precision are kept for the backward pass.
_WEIGHT_BYTES, _GRADIENT_BYTES, _SLOT_BYTES = 4 + 2, 4, 8
# By the bytes of a frozen weight: those of the weight and of its kept copy.
_FROZEN_BYTES = {4: 4 + 2, 2: 2, 1: 1}
# Blocks whose inputs are on the device at a time, if the others are in the host's memory.
_OFFLOADED_AHEAD = 2


@dataclass(frozen=True)
class StepBytes:
    """Bytes by kind, on the device with the most.

    Attributes:
        weights: the weights, and their copies in half precision.
        gradients: their gradients.
        slots: moments of Adam, and accumulated gradients.
        gathered: weights of other shards, while a block is computed.
        activations: what the backward pass needs.
    """

    weights: float
    gradients: float
    slots: float
    gathered: float
    activations: float

    @property
    def total(self) -> float:
        """All bytes."""
        return float(sum(getattr(self, field.name) for field in fields(self)))


def step_bytes(model: Transformer, layout: Layout, num_microbatches: int = 1) -> StepBytes:
    """Returns the bytes of a step.

    Args:
        model: the model.
        layout: the mesh and the micro-batches.
        num_microbatches: of a replica. Without a pipeline, several are accumulated gradients, which the optimizer
            keeps beside its slots.
    """
    t, d = layout.num_tensor, layout.num_data
    held, trained = layout.parameters_of_device(model), layout.trained_parameters(model)
    of_slots = 1 if layout.shard is None else d
    of_weights = d if layout.shard == "weights" else 1
    largest = max(model.parameters_of_layer / layout.num_expert, model.vocabulary_size * model.hidden_size) / t
    accumulates = layout.num_stages == 1 and num_microbatches > 1
    slot_bytes = _SLOT_BYTES + (_GRADIENT_BYTES if accumulates else 0)
    if model.lora is None:
        weight_bytes, frozen = _WEIGHT_BYTES, 0.0
    else:
        weight_bytes = _FROZEN_BYTES[model.lora.frozen_bytes]
        frozen = weight_bytes * held
    return StepBytes(
        weights=(frozen + _WEIGHT_BYTES * trained) / of_weights,
        gradients=_GRADIENT_BYTES * trained / of_weights,
        slots=slot_bytes * trained / of_slots,
        gathered=2 * weight_bytes * largest if of_weights > 1 else 0.0,
        activations=activation_bytes(model, layout),
    )


def activation_bytes_of_layer(model: Transformer, layout: Layout) -> float:
    """Returns the bytes that a block keeps of a micro-batch for its backward pass (arXiv:2205.05198, table 2)."""
    t, s, h = layout.num_tensor, model.sequence_length, model.hidden_size
    numbers = layout.microbatch_size * s * h
    if layout.recompute == "full":
        return 2.0 * numbers
    scores = 0.0 if layout.recompute == "selective" else 5 * model.num_heads * s / h
    # Feed-forward parts keep their input (2), the activation function's input (8) and output (8), and a mask (1). The
    # input of a frozen product is not kept, except where an adapter reads it.
    experts = 19 * (model.num_active_experts - 1)
    split = 24 + scores + experts - (10 if model.lora else 0)
    whole = 10 - (2 if model.lora else 0)
    return numbers * ((whole + split) / t if layout.sequence_parallel else whole + split / t)


def activation_bytes_of_layers(model: Transformer, layout: Layout) -> float:
    """Returns the bytes that the blocks of a device keep, on the device that keeps the most micro-batches.

    1F1B keeps as many micro-batches of the first stage as there are stages; zero-bubble schedules keep as many on all
    devices, and V-Half about half of them (arXiv:2405.15362, table 2).
    """
    p, chunks = layout.num_stages, layout.num_chunks
    kept = model.num_layers * (1 + (p - 1) / (p * chunks) if chunks > 1 else 1)
    if layout.schedule == "v_half":
        kept *= min(p + 2, 2 * p) / (2 * p)
    if layout.offload:
        kept = min(kept, _OFFLOADED_AHEAD)
    return kept * activation_bytes_of_layer(model, layout)


def activation_bytes(model: Transformer, layout: Layout) -> float:
    """Returns the bytes of all activations on the stage with the most: the first, or the last with its logits."""
    t, p, h = layout.num_tensor, layout.num_stages, model.hidden_size
    numbers = layout.microbatch_size * model.sequence_length * h
    # The last stage of a pipeline joins the logits of its shards.
    logits = 4 * numbers * (1 / t + model.vocabulary_size / h / (t if p == 1 else 1))
    if layout.recompute == "full" and p > 1:
        return _recomputed_stage_bytes(model, layout) + max(numbers * p / t, logits)
    of_blocks = activation_bytes_of_layers(model, layout)
    # With 1F1B the first stage keeps micro-batches for all stages, the last one only that which it computes.
    first, last = of_blocks + numbers * p / t, of_blocks / p + logits
    found = first + logits if p == 1 or layout.schedule != "1f1b" else max(first, last)
    if layout.recompute == "full":
        # One block is computed again, and kept whole meanwhile.
        found += activation_bytes_of_layer(model, replace(layout, recompute=None, offload=False))
    return found


def _recomputed_stage_bytes(model: Transformer, layout: Layout) -> float:
    """Returns the bytes of the first device's blocks if its stages keep their inputs and are computed again as a whole.

    `PipelineModel` recomputes so, with ``remat="all"``.
    """
    p, chunks = layout.num_stages, layout.num_chunks
    num_inputs = p * chunks + (p - 1 if chunks > 1 else 0)
    of_input = activation_bytes_of_layer(model, layout)
    of_block = activation_bytes_of_layer(model, replace(layout, recompute=None))
    return num_inputs * of_input + model.num_layers / (p * chunks) * of_block
