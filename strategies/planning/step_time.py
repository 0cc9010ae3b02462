"""The time of a training step of a transformer on GPUs, by part, from formulas.

Three constants of `hardware`, the fractions of their peaks that matrix products and memory reach and the loss of narrow
shards, were fitted on the rows of 1.7, 3.6 and 1,008 billion parameters of table 1 of Narayanan et al.
(arXiv:2104.04473). The other seven rows are predicted within 4.4 %, and table 5 of Korthikanti et al.
(arXiv:2205.05198) within 6.4 % (``make validate-plan``). The fraction for NVLink is that of NCCL's all-reduces. Not
covered: contention in the network, and ranks that are slower than others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from strategies.planning.bubble import bubble_passes
from strategies.planning.hardware import Gpu
from strategies.planning.layer_time import layer_time
from strategies.planning.layout import Layout
from strategies.planning.transformer import Transformer

# Seconds of a message between stages, besides its bytes.
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
        experts: all-to-alls between experts.
        messages: activations and gradients between stages.
        bubble: waiting of the stages for each other.
        offload: copies of activations to the host's memory and back.
        gradients: the all-reduce of gradients, and the all-gather of sharded weights.
        update: the optimizer's update.
    """

    layers: float
    recompute: float = 0.0
    logits: float = 0.0
    tensor: float = 0.0
    experts: float = 0.0
    messages: float = 0.0
    bubble: float = 0.0
    offload: float = 0.0
    gradients: float = 0.0
    update: float = 0.0

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
    block = layer_time(model, layout, gpu)
    num_layers = model.num_layers / layout.num_stages
    # A pass of each block, for all micro-batches.
    passes = num_microbatches * num_layers
    message = _message_seconds(model, layout, gpu) * layout.chunks_of_device
    idle = bubble_passes(layout.schedule, layout.num_stages, layout.num_chunks, num_microbatches)
    return StepTime(
        layers=passes * (block.forward + block.backward),
        recompute=passes * block.recompute,
        logits=num_microbatches * _logit_seconds(model, layout, gpu),
        tensor=passes * block.tensor,
        experts=passes * block.expert,
        messages=num_microbatches * message,
        bubble=idle * (num_layers * block.total + message),
        offload=passes * _offload_seconds(model, layout, gpu, block.total),
        gradients=_gradient_seconds(model, layout, gpu, num_microbatches, passes * block.backward),
        update=update_seconds(_updated_parameters(model, layout), gpu),
    )


def update_seconds(num_parameters: float, gpu: Gpu) -> float:
    """Returns the seconds of an optimizer's update of the parameters of a device."""
    return _UPDATE_BYTES * num_parameters / gpu.memory_bytes_per_second


def exposed_gradient_seconds(
    num_parameters: float, layout: Layout, gpu: Gpu, *, num_microbatches: int, last_backward_seconds: float
) -> float:
    """Returns the seconds of the exchange of gradients that do not overlap with backward passes.

    Args:
        num_parameters: trained parameters of a replica, all of which it has on one device.
        layout: a mesh of replicas.
        gpu: the devices.
        last_backward_seconds: of the backward pass of a micro-batch.
        num_microbatches: of a replica.
    """
    n = layout.num_replicas
    half = layout.gradient_bytes * (n - 1) / n * num_parameters / _replica_rate(layout, gpu)
    if layout.shard is None:
        return max(0.0, 2 * half - last_backward_seconds)
    # The gradients of shards are reduce-scattered in each accumulated micro-batch.
    return num_microbatches * max(0.0, half - last_backward_seconds) + half * _UPDATED_BYTES / layout.gradient_bytes


def _message_seconds(model: Transformer, layout: Layout, gpu: Gpu) -> float:
    """Returns the seconds of an activation and a gradient between two stages; each shard sends its part."""
    if layout.num_stages == 1:
        return 0.0
    in_host = layout.is_in_host(layout.num_tensor * layout.num_stages)
    rate = gpu.host_bytes_per_second if in_host else gpu.network_bytes_per_second
    num_bytes = 2.0 * layout.microbatch_size * model.sequence_length * model.hidden_size
    return 2 * num_bytes / layout.num_tensor / rate + _MESSAGE_SECONDS


def _logit_seconds(model: Transformer, layout: Layout, gpu: Gpu) -> float:
    """Returns the seconds of the last layer and the loss of a micro-batch, for which all stages wait."""
    t, h = layout.num_tensor, model.hidden_size
    numbers = layout.microbatch_size * model.sequence_length * model.vocabulary_size / t
    # The table is frozen in training by adapters.
    products = gpu.matmul_seconds((4 if model.lora else 6) * numbers * h, h / t)
    return products + 24 * numbers / gpu.memory_bytes_per_second


def _offload_seconds(model: Transformer, layout: Layout, gpu: Gpu, block_seconds: float) -> float:
    """Returns the seconds by which a block waits for copies of its input to the host's memory and back."""
    if not layout.offload:
        return 0.0
    num_bytes = 2.0 * layout.microbatch_size * model.sequence_length * model.hidden_size
    # One copy in each pass, while the next block is computed.
    return max(0.0, 2 * num_bytes / gpu.offload_bytes_per_second - block_seconds)


def _updated_parameters(model: Transformer, layout: Layout) -> float:
    owners = 1 if layout.shard is None else layout.num_data
    return layout.trained_parameters(model) / owners


def _gradient_seconds(
    model: Transformer, layout: Layout, gpu: Gpu, num_microbatches: int, backward_seconds: float
) -> float:
    """Returns the seconds of exchanges between replicas that do not overlap with the backward passes of one stage."""
    gradients = layout.gradient_bytes * _ring_seconds(model, layout, gpu, trained=True)
    weights = _ring_seconds(model, layout, gpu, trained=False) * (
        model.lora.frozen_bytes if model.lora else _COMPUTED_BYTES
    )
    backward = backward_seconds if layout.num_stages == 1 else 0.0
    # The gradients of shards are reduce-scattered in each accumulated micro-batch; a pipeline does so once.
    num_times = num_microbatches if layout.num_stages == 1 else 1
    if layout.shard == "weights":
        # All-gathered in both passes of each micro-batch.
        return max(0.0, 2 * num_microbatches * weights + num_times * gradients - backward)
    hidden = backward / num_microbatches
    if layout.shard is None:
        # Overlaps with the backward pass of the last micro-batch.
        return max(0.0, 2 * gradients - hidden)
    updated = _UPDATED_BYTES * _ring_seconds(model, layout, gpu, trained=True)
    return num_times * max(0.0, gradients - hidden) + updated


def _ring_seconds(model: Transformer, layout: Layout, gpu: Gpu, *, trained: bool) -> float:
    """Returns the seconds of a reduce-scatter or an all-gather over replicas, for each byte of a parameter.

    Args:
        model: the model.
        layout: the mesh.
        gpu: the devices.
        trained: True for the parameters with gradients, False for all.
    """
    rate = _replica_rate(layout, gpu)
    if trained and model.lora is not None:
        shared, of_experts = layout.trained_parameters(model), 0.0
    else:
        shared, of_experts = layout.shared_parameters(model), layout.expert_parameters(model)
    n, d = layout.num_replicas, layout.num_data
    return ((n - 1) / n * shared + (d - 1) / d * of_experts) / rate


def _replica_rate(layout: Layout, gpu: Gpu) -> float:
    """Returns the bytes per second of a device in exchanges between replicas."""
    if layout.num_devices <= layout.host_size:
        return gpu.host_bytes_per_second
    # Replicas of one host share its network cards with fewer others.
    beside = max(1, layout.host_size // (layout.num_tensor * layout.num_stages))
    return gpu.network_bytes_per_second * beside
