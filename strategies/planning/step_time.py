"""The time of a training step of a transformer on GPUs, by part, from formulas.

Three constants, the fractions of their peaks that matrix products, memory and NVLink reach (`hardware`), were fitted on
the rows of 1.7, 3.6 and 7.5 billion parameters of table 1 of Narayanan et al. (arXiv:2104.04473); the other seven rows
are predicted within 4.2 % (``make validate-plan``). Not covered: contention in the network, ranks that are slower than
others, matrix products too small for a GPU.

Source of the bytes of each operation: Korthikanti et al. (arXiv:2205.05198), section 4.1; of the pipeline's bubble:
arXiv:2104.04473, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from strategies.planning.hardware import Gpu
from strategies.planning.transformer import Layout, Transformer

# Seconds: of each hop of an all-reduce, and of a message between stages.
_HOP_SECONDS = 4e-6
_MESSAGE_SECONDS = 2e-5
# Bytes of a weight where replicas all-gather it: in a step, and after the update.
_COMPUTED_BYTES, _UPDATED_BYTES = 4, 4
# Bytes that mixed-precision Adam reads and writes for each parameter.
_UPDATE_BYTES = 46


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by part; a part that overlaps with another one is not counted.

    Attributes:
        layers: forward and backward passes of the blocks.
        recompute: what the backward pass computes again.
        logits: the last layer and the loss.
        tensor: all-reduces between the shards of layers.
        messages: activations and gradients between stages.
        bubble: waiting of the stages for each other.
        gradients: the all-reduce of gradients, and the all-gather of sharded weights.
        update: the optimizer's update.
    """

    layers: float
    recompute: float
    logits: float
    tensor: float
    messages: float
    bubble: float
    gradients: float
    update: float

    @property
    def total(self) -> float:
        """The seconds of the step."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Returns the seconds by part."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def step_time(model: Transformer, layout: Layout, batch_size: int, gpu: Gpu) -> StepTime:
    """Returns the time of a step.

    Args:
        model: the model, in half precision with float32 master weights, trained by Adam.
        layout: the mesh and the micro-batches.
        batch_size: rows of the global batch.
        gpu: the devices.

    Raises:
        ValueError: the batch does not divide into micro-batches.
    """
    num_microbatches = layout.num_microbatches(batch_size)
    p = layout.num_stages
    forward, backward, attention = _layer_seconds(model, layout, gpu)
    of_shards = _all_reduce_seconds(model, layout, gpu)
    recomputed = {"full": forward + 2 * of_shards, "selective": attention, None: 0.0}[layout.recompute]
    num_layers = model.num_layers / p
    message = _message_seconds(model, layout, gpu) * layout.num_chunks
    of_microbatch = num_layers * (forward + backward + recomputed + 4 * of_shards) + message
    layers = num_microbatches * num_layers * (forward + backward)
    return StepTime(
        layers=layers,
        recompute=num_microbatches * num_layers * recomputed,
        logits=num_microbatches * _logit_seconds(model, layout, gpu),
        tensor=num_microbatches * num_layers * 4 * of_shards,
        messages=num_microbatches * message,
        bubble=(p - 1) * of_microbatch / layout.num_chunks,
        gradients=_gradient_seconds(model, layout, gpu, num_microbatches, layers),
        update=_UPDATE_BYTES * _updated_parameters(model, layout) / gpu.memory_bytes_per_second,
    )


def _layer_seconds(model: Transformer, layout: Layout, gpu: Gpu) -> tuple[float, float, float]:
    """Returns the seconds of a block's forward and backward pass of a micro-batch, and of its attention's scores."""
    t, s, h = layout.num_tensor, model.sequence_length, model.hidden_size
    tokens = layout.microbatch_size * s * h
    scores = layout.microbatch_size * model.num_heads * s**2 / t
    flops, memory = gpu.flops_per_second, gpu.memory_bytes_per_second
    products = 24 * tokens * h / (t * flops)
    of_heads = max(4 * layout.microbatch_size * s**2 * h / (t * flops), (8 * tokens / t + 4 * scores) / memory)
    whole = 22 * tokens / (t if layout.sequence_parallel else 1)
    elementwise = (whole + 36 * tokens / t) / memory
    softmax = 9 * scores / memory
    forward = products + of_heads + elementwise + softmax
    backward = 2 * (products + of_heads + elementwise) + 11 * scores / memory
    return forward, backward, of_heads + softmax


def _all_reduce_seconds(model: Transformer, layout: Layout, gpu: Gpu) -> float:
    """Returns the seconds of one all-reduce of a micro-batch's activations over the shards of a layer."""
    t = layout.num_tensor
    num_bytes = 2.0 * layout.microbatch_size * model.sequence_length * model.hidden_size
    rate = gpu.host_bytes_per_second if t <= layout.host_size else gpu.network_bytes_per_second
    return 2 * (t - 1) / t * num_bytes / rate + _HOP_SECONDS * (t - 1)


def _message_seconds(model: Transformer, layout: Layout, gpu: Gpu) -> float:
    """Returns the seconds of an activation and a gradient between two stages; each shard sends its part."""
    if layout.num_stages == 1:
        return 0.0
    crosses = layout.num_tensor * layout.num_stages > layout.host_size
    rate = gpu.network_bytes_per_second if crosses else gpu.host_bytes_per_second
    num_bytes = 2.0 * layout.microbatch_size * model.sequence_length * model.hidden_size
    return 2 * num_bytes / layout.num_tensor / rate + _MESSAGE_SECONDS


def _logit_seconds(model: Transformer, layout: Layout, gpu: Gpu) -> float:
    """Returns the seconds of the last layer and the loss of a micro-batch, for which all stages wait."""
    tokens = layout.microbatch_size * model.sequence_length
    numbers = tokens * model.vocabulary_size / layout.num_tensor
    return 6 * numbers * model.hidden_size / gpu.flops_per_second + 24 * numbers / gpu.memory_bytes_per_second


def _updated_parameters(model: Transformer, layout: Layout) -> float:
    owners = 1 if layout.shard is None else layout.num_data
    return layout.parameters_of_device(model) / owners


def _gradient_seconds(
    model: Transformer, layout: Layout, gpu: Gpu, num_microbatches: int, layers_seconds: float
) -> float:
    """Returns the seconds of exchanges between replicas that do not overlap with the backward passes of one stage."""
    d = layout.num_data
    in_host = layout.num_devices <= layout.host_size
    # Replicas of one host share its network cards with fewer others.
    beside = max(1, layout.host_size // (layout.num_tensor * layout.num_stages))
    rate = gpu.host_bytes_per_second if in_host else gpu.network_bytes_per_second * beside
    message = (d - 1) / d * layout.parameters_of_device(model) / rate
    gradients, weights = layout.gradient_bytes * message, _COMPUTED_BYTES * message
    backward = 2 / 3 * layers_seconds if layout.num_stages == 1 else 0.0
    if layout.shard == "weights":
        # All-gathered in both passes of each micro-batch; gradients are reduce-scattered once.
        return max(0.0, 2 * num_microbatches * weights + gradients - backward)
    # The reduce-scatter overlaps with the backward pass of the last micro-batch.
    hidden = backward / num_microbatches
    if layout.shard is None:
        return max(0.0, 2 * gradients - hidden)
    return max(0.0, gradients - hidden) + _UPDATED_BYTES * message
