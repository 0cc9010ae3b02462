"""The seconds of a block of a transformer for a micro-batch: computation, and the collectives inside it.

Source of the bytes of each operation: Korthikanti et al. (arXiv:2205.05198), section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.planning.hardware import Gpu
from strategies.planning.layout import Layout
from strategies.planning.transformer import Transformer

# Seconds of each hop of a collective.
_HOP_SECONDS = 4e-6


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a block for a micro-batch.

    Attributes:
        forward: computation of the forward pass.
        backward: computation of the backward pass.
        recompute: what the backward pass computes again, with its collectives.
        tensor: all-reduces between the shards of the block, in both passes.
        expert: all-to-alls between experts, in both passes.
    """

    forward: float
    backward: float
    recompute: float
    tensor: float
    expert: float

    @property
    def total(self) -> float:
        """The seconds of both passes."""
        return self.forward + self.backward + self.recompute + self.tensor + self.expert


def layer_time(model: Transformer, layout: Layout, gpu: Gpu) -> LayerTime:
    """Returns the time of a block.

    Args:
        model: the model.
        layout: the mesh and the micro-batches.
        gpu: the devices.
    """
    t, s, h = layout.num_tensor, model.sequence_length, model.hidden_size
    numbers = layout.microbatch_size * s * h
    scores = layout.microbatch_size * model.num_heads * s**2 / t
    memory = gpu.memory_bytes_per_second
    active = model.num_active_experts
    # Two operations for each parameter of the four products of attention, and of the active feed-forward parts.
    products = gpu.matmul_seconds(2 * (4 + 8 * active) * numbers * h / t, h / t)
    heads_bytes = 8 * numbers / t + 4 * scores
    heads = max(gpu.matmul_seconds(4 * numbers * s / t, h / t), heads_bytes / memory)
    # Norms, dropout and residuals; biases and the activation function of the feed-forward parts.
    whole = 22 * numbers / (t if layout.sequence_parallel else 1)
    elementwise = (whole + (12 + 24 * active) * numbers / t) / memory
    softmax = 9 * scores / memory
    forward = products + heads + elementwise + softmax
    # Gradients of frozen weights are not computed.
    backward = (1 if model.lora else 2) * products + 2 * (heads + elementwise) + 11 * scores / memory
    all_reduce = all_reduce_seconds(numbers, layout, gpu)
    all_to_all = all_to_all_seconds(numbers * active, layout, gpu) if model.experts else 0.0
    recomputed = {"full": forward + 2 * all_reduce + 2 * all_to_all, "selective": heads + softmax, None: 0.0}
    # Two all-reduces in each pass. One that runs while gradients of weights are computed takes no time; with parts of
    # the sequence only its second half does, and its first half is needed at once.
    exposed = 2.0 if not layout.overlap_tensor else 1.0 if layout.sequence_parallel else 0.0
    return LayerTime(forward, backward, recomputed[layout.recompute], (2 + exposed) * all_reduce, 4 * all_to_all)


def all_reduce_seconds(numbers: float, layout: Layout, gpu: Gpu) -> float:
    """Returns the seconds of one all-reduce of a micro-batch's activations over the shards of a layer.

    Args:
        numbers: of the activations, in half precision.
        layout: the mesh.
        gpu: the devices.
    """
    t = layout.num_tensor
    rate = gpu.host_bytes_per_second if layout.is_in_host(t) else gpu.network_bytes_per_second
    return 2 * (t - 1) / t * 2.0 * numbers / rate + _HOP_SECONDS * (t - 1)


def all_to_all_seconds(numbers: float, layout: Layout, gpu: Gpu) -> float:
    """Returns the seconds of one all-to-all of the tokens' features over the axis "expert".

    Args:
        numbers: of the features, once for each expert that computes a token, in half precision.
        layout: the mesh.
        gpu: the devices.
    """
    e = layout.num_expert
    in_host = layout.is_in_host(e * layout.num_stages * layout.num_tensor)
    rate = gpu.host_bytes_per_second if in_host else gpu.network_bytes_per_second
    return (e - 1) / e * 2.0 * numbers / layout.num_tensor / rate + _HOP_SECONDS * (e - 1)
