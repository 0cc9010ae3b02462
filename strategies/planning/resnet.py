"""ResNets by their sizes: time and memory of a step under data parallelism, from formulas.

Source of the architecture: He et al., arXiv:1512.03385, table 1, with bottleneck blocks. A convolution takes the longer
of its arithmetic and its memory traffic; batch normalizations, activation functions and additions take their memory
traffic. These times were not compared with measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from strategies.planning.hardware import Gpu
from strategies.planning.layout import Layout, Shard
from strategies.planning.search import TOO_LARGE, USABLE, Candidate, Search, in_order
from strategies.planning.step_bytes import StepBytes
from strategies.planning.step_time import StepTime, exposed_gradient_seconds, update_seconds

_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
# Times that an element is read or written in half precision besides the convolution's own input and output: twice for
# the statistics, and once each for normalization, activation and, in every third layer, addition. A backward pass moves
# twice as much.
_ELEMENT_BYTES = 2 * 6
# The output of a convolution and that of its activation function are kept.
_KEPT_BYTES = 2 * 2
# A weight, its copy in half precision, its gradient and the momentum.
_WEIGHT_BYTES, _GRADIENT_BYTES, _SLOT_BYTES = 4 + 2, 4, 4


@dataclass(frozen=True)
class Convolution:
    """A convolution and its normalization.

    Attributes:
        flops: of the forward pass of an image.
        inputs: elements of an image's input.
        outputs: elements of an image's output.
        parameters: of the kernel, and of the normalization.
    """

    flops: float
    inputs: int
    outputs: int
    parameters: int


@dataclass(frozen=True)
class ResNet:
    """A residual network for images, trained by SGD with momentum.

    Attributes:
        depth: 50, 101 or 152 layers.
        image_size: pixels of a side.
        num_classes: of the last layer.

    Example:

        assert round(ResNet(50).num_parameters / 1e6, 1) == 25.6
    """

    depth: int = 50
    image_size: int = 224
    num_classes: int = 1000

    def __post_init__(self) -> None:
        if self.depth not in _BLOCKS or self.image_size < 32 or self.num_classes < 1:
            raise ValueError(
                f"A ResNet has a depth of {', '.join(map(str, _BLOCKS))}, images of at least 32 pixels and a class. "
                f"Received: {vars(self)}."
            )

    def convolutions(self) -> Iterator[Convolution]:
        """Yields the convolutions, and the last layer, in order."""
        size = -(-self.image_size // 2)
        yield _convolution(7, 3, 64, self.image_size, size)
        size, channels = -(-size // 2), 64
        for stage, blocks in enumerate(_BLOCKS[self.depth]):
            width = 64 * 2**stage
            for block in range(blocks):
                before = size
                if block == 0 and stage > 0:
                    size = -(-size // 2)
                yield _convolution(1, channels, width, before, before)
                yield _convolution(3, width, width, before, size)
                yield _convolution(1, width, 4 * width, size, size)
                if block == 0:
                    yield _convolution(1, channels, 4 * width, before, size)
                channels = 4 * width
        parameters = (channels + 1) * self.num_classes
        yield Convolution(2.0 * channels * self.num_classes, channels, self.num_classes, parameters)

    @property
    def num_parameters(self) -> int:
        """The number of trained parameters."""
        return sum(each.parameters for each in self.convolutions())


def _convolution(kernel: int, channels: int, filters: int, before: int, after: int) -> Convolution:
    weights = kernel**2 * channels * filters
    return Convolution(2.0 * weights * after**2, channels * before**2, filters * after**2, weights + 2 * filters)


def resnet_time(model: ResNet, layout: Layout, batch_size: int, gpu: Gpu) -> StepTime:
    """Returns the time of a step.

    Args:
        model: the model, in half precision.
        layout: a mesh of replicas; micro-batches are accumulated gradients.
        batch_size: images of the global batch.
        gpu: the devices.

    Raises:
        ValueError: the batch does not divide into micro-batches.
    """
    num_microbatches, images = layout.num_microbatches(batch_size), layout.microbatch_size
    forward = 0.0
    for each in model.convolutions():
        traffic = 2 * (images * (each.inputs + each.outputs) + each.parameters)
        arithmetic = images * each.flops / gpu.flops_per_second
        forward += max(arithmetic, traffic / gpu.memory_bytes_per_second)
        forward += _ELEMENT_BYTES * images * each.outputs / gpu.memory_bytes_per_second
    layers = 3 * num_microbatches * forward
    gradients = exposed_gradient_seconds(
        model.num_parameters, layout, gpu, num_microbatches=num_microbatches, last_backward_seconds=2 * forward
    )
    owners = layout.num_data if layout.shard else 1
    return StepTime(layers=layers, gradients=gradients, update=update_seconds(model.num_parameters / owners, gpu))


def resnet_bytes(model: ResNet, layout: Layout, num_microbatches: int = 1) -> StepBytes:
    """Returns the bytes of a step on each device.

    Args:
        model: the model.
        layout: a mesh of replicas.
        num_microbatches: of a replica; several are accumulated gradients.
    """
    slots = _SLOT_BYTES + (_GRADIENT_BYTES if num_microbatches > 1 else 0)
    owners = layout.num_data if layout.shard else 1
    kept = sum(each.outputs for each in model.convolutions())
    return StepBytes(
        weights=_WEIGHT_BYTES * model.num_parameters,
        gradients=_GRADIENT_BYTES * model.num_parameters,
        slots=slots * model.num_parameters / owners,
        gathered=0.0,
        activations=_KEPT_BYTES * layout.microbatch_size * kept,
    )


def resnet_search(
    model: ResNet, batch_size: int, num_devices: int, gpu: Gpu, *, host_size: int = 8, num_best: int = 10
) -> Search:
    """Returns the fastest layouts of replicas that fit.

    Args:
        model: the model.
        batch_size: images of the global batch.
        num_devices: all devices are used.
        gpu: the devices.
        host_size: devices of a host.
        num_best: the number of layouts to return.

    Raises:
        ValueError: the images do not divide among the devices, or a number is out of range.
    """
    if min(batch_size, num_devices, host_size, num_best) < 1 or batch_size % num_devices:
        raise ValueError(
            "Each device has the same number of images, at least one. Received: "
            f"batch_size={batch_size}, num_devices={num_devices}, host_size={host_size}, num_best={num_best}."
        )
    refused: Counter[str] = Counter()
    found, usable = [], USABLE * gpu.memory_bytes
    shards: tuple[Shard, ...] = (None, "optimizer") if num_devices > 1 else (None,)
    images = batch_size // num_devices
    for size in (size for size in range(1, images + 1) if images % size == 0):
        for shard in shards:
            layout = Layout(num_devices, microbatch_size=size, shard=shard, host_size=host_size)
            memory = resnet_bytes(model, layout, images // size)
            if memory.total > usable:
                refused[TOO_LARGE] += 1
            else:
                found.append(Candidate(layout, resnet_time(model, layout, batch_size, gpu), memory))
    return Search(tuple(in_order(found)[:num_best]), dict(refused), usable)
