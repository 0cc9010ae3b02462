"""The memory of a training step of a transformer on the device with the most, by kind, from formulas.

Source: Korthikanti et al. (arXiv:2205.05198), section 4 for activations; Rajbhandari et al. (arXiv:1910.02054),
section 5 for what `shard` divides. Keras' mixed precision: float32 weights, their copies in half precision, gradients
and two slots are 4 + 2 + 4 + 8 bytes for each parameter; Megatron's 2 + 4 + 12 are as many. Not covered: fragmentation,
buffers of collectives, and the libraries' own memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from strategies.planning.transformer import Layout, Transformer

# The copies in half precision are kept for the backward pass.
_WEIGHT_BYTES, _GRADIENT_BYTES, _SLOT_BYTES = 4 + 2, 4, 8


@dataclass(frozen=True)
class StepBytes:
    """Bytes by kind, on the device with the most.

    Attributes:
        weights: the weights, and their copies in half precision.
        gradients: their gradients.
        slots: moments of Adam.
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


def step_bytes(model: Transformer, layout: Layout) -> StepBytes:
    """Returns the bytes of a step.

    Args:
        model: the model.
        layout: the mesh and the micro-batches.
    """
    t, d = layout.num_tensor, layout.num_data
    parameters = layout.parameters_of_device(model)
    of_slots = 1 if layout.shard is None else d
    of_weights = d if layout.shard == "weights" else 1
    largest = max(model.parameters_of_layer, model.vocabulary_size * model.hidden_size) / t
    gathered = 2 * _WEIGHT_BYTES * largest if of_weights > 1 else 0.0
    return StepBytes(
        weights=_WEIGHT_BYTES * parameters / of_weights,
        gradients=_GRADIENT_BYTES * parameters / of_weights,
        slots=_SLOT_BYTES * parameters / of_slots,
        gathered=gathered,
        activations=activation_bytes(model, layout),
    )


def activation_bytes_of_layer(model: Transformer, layout: Layout) -> float:
    """Returns the bytes that a block keeps of a micro-batch for its backward pass (arXiv:2205.05198, table 2)."""
    t, s, h = layout.num_tensor, model.sequence_length, model.hidden_size
    numbers = layout.microbatch_size * s * h
    if layout.recompute == "full":
        return 2.0 * numbers
    scores = 0.0 if layout.recompute == "selective" else 5 * model.num_heads * s / h
    return numbers * ((34 + scores) / t if layout.sequence_parallel else 10 + (24 + scores) / t)


def activation_bytes_of_layers(model: Transformer, layout: Layout) -> float:
    """Returns the bytes that the blocks of the first stage keep: those of as many micro-batches as there are stages."""
    p, chunks = layout.num_stages, layout.num_chunks
    kept = model.num_layers * (1 + (p - 1) / (p * chunks) if chunks > 1 else 1)
    return kept * activation_bytes_of_layer(model, layout)


def activation_bytes(model: Transformer, layout: Layout) -> float:
    """Returns the bytes of all activations on the stage with the most: the first, or the last with its logits."""
    t, p, h = layout.num_tensor, layout.num_stages, model.hidden_size
    numbers = layout.microbatch_size * model.sequence_length * h
    of_blocks = activation_bytes_of_layers(model, layout)
    logits = 4 * numbers / t * (1 + model.vocabulary_size / h)
    # The first stage keeps micro-batches for all stages, the last one only that which it computes.
    first, last = of_blocks + numbers * p / t, of_blocks / p + logits
    found = first + logits if p == 1 else max(first, last)
    if layout.recompute == "full":
        # One block is computed again, and kept whole meanwhile.
        found += activation_bytes_of_layer(model, replace(layout, recompute=None))
    return found
