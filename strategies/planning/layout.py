"""The layout of a transformer on devices: a mesh, micro-batches, a schedule, shards and recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strategies.planning.transformer import Recompute, Transformer

#: The state that is sharded over replicas, as the strategies' argument.
Shard = Literal["optimizer", "gradients", "weights"] | None
#: The schedules by the names that `PipelineModel` accepts; "1f1b" with chunks is "interleaved_1f1b".
ScheduleName = Literal["1f1b", "zb_h1", "zb_v", "v_half"]


class MeshSizes:
    """The numbers that follow from the sizes of a mesh's axes, which subclasses have as attributes.

    Attributes:
        num_data: size of the axis "data".
        num_stages: size of the axis "pipe".
        num_tensor: size of the axis "tensor".
        num_expert: size of the axis "expert".
    """

    num_data: int
    num_stages: int
    num_tensor: int
    num_expert: int

    @property
    def num_replicas(self) -> int:
        """The number of groups of devices that compute different rows."""
        return self.num_data * self.num_expert

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return self.num_replicas * self.num_stages * self.num_tensor

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh as the strategies take it; "expert" only if experts are divided."""
        expert = {"expert": self.num_expert} if self.num_expert > 1 else {}
        return {"data": self.num_data, **expert, "pipe": self.num_stages, "tensor": self.num_tensor}


@dataclass(frozen=True)
class Layout(MeshSizes):
    """A mesh, and how a batch is computed on it.

    Attributes:
        num_data: size of the axis "data".
        num_stages: stages of a pipeline.
        num_tensor: shards of each layer.
        microbatch_size: rows of a micro-batch.
        num_chunks: chunks of layers of each stage (interleaved 1F1B); 1 if a stage is one chunk.
        recompute: what the backward pass computes again.
        sequence_parallel: True if normalization and dropout work on parts of the sequence.
        shard: as the strategies' argument.
        host_size: devices of a host.
        gradient_bytes: bytes of a gradient where replicas exchange it.
        schedule: of the pipeline. "zb_v" and "v_half" have two chunks on each device, whatever `num_chunks` is.
        num_expert: size of the axis "expert", over which experts and rows are divided.
        offload: True if the inputs of recomputed blocks are kept in the host's memory; needs ``recompute="full"``, and
            one stage.
        overlap_tensor: True if the all-reduces of a backward pass run while gradients of weights are computed.

    Example:

        layout = Layout(num_data=2, num_stages=2, num_tensor=2)
        assert layout.mesh == {"data": 2, "pipe": 2, "tensor": 2}
    """

    num_data: int = 1
    num_stages: int = 1
    num_tensor: int = 1
    microbatch_size: int = 1
    num_chunks: int = 1
    recompute: Recompute = None
    sequence_parallel: bool = False
    shard: Shard = None
    host_size: int = 8
    gradient_bytes: int = 4
    schedule: ScheduleName = "1f1b"
    num_expert: int = 1
    offload: bool = False
    overlap_tensor: bool = False

    def __post_init__(self) -> None:
        numbers = (self.num_data, self.num_stages, self.num_tensor, self.microbatch_size, self.num_chunks)
        if min(*numbers, self.host_size, self.num_expert) < 1:
            raise ValueError(f"All sizes of a layout are at least 1. Received: {self}.")
        if self.offload and (self.recompute != "full" or self.num_stages > 1):
            raise ValueError(
                "Only the inputs of blocks that are computed again can be kept in the host's memory, without stages: "
                f"offload needs recompute='full'. Received: recompute={self.recompute!r}, num_stages={self.num_stages}."
            )
        if self.schedule != "1f1b" and self.num_chunks > 1:
            raise ValueError(
                f"Chunks belong to the schedule '1f1b'. Received: schedule={self.schedule!r}, "
                f"num_chunks={self.num_chunks}."
            )

    @property
    def chunks_of_device(self) -> int:
        """The number of stages on each device."""
        return 2 if self.schedule in ("zb_v", "v_half") else self.num_chunks

    def is_in_host(self, num_neighbours: int) -> bool:
        """Returns True if every group of n neighbouring devices is inside a host."""
        return num_neighbours <= self.host_size and (
            self.num_devices <= self.host_size or self.host_size % num_neighbours == 0
        )

    @property
    def pipeline(self) -> dict[str, object] | None:
        """The arguments of `PipelineModel` apart from micro-batches; None without a pipeline."""
        if self.num_stages == 1:
            return None
        name = "interleaved_1f1b" if self.num_chunks > 1 else self.schedule
        remat = {"remat": "all"} if self.recompute == "full" else {}
        return {"num_stages": self.num_stages * self.chunks_of_device, "schedule": name, **remat}

    def num_microbatches(self, batch_size: int) -> int:
        """Returns the number of micro-batches of each replica.

        Raises:
            ValueError: the batch is not a multiple of the rows that all replicas compute at a time.
        """
        rows = self.num_replicas * self.microbatch_size
        if batch_size % rows:
            raise ValueError(
                f"The batch is a multiple of the rows that {self.num_replicas} replicas compute at a time, {rows}. "
                f"Received: batch_size={batch_size}."
            )
        return batch_size // rows

    def shared_parameters(self, model: Transformer) -> float:
        """Returns the parameters apart from experts and adapters on the device with the most, before `shard`."""
        blocks = model.num_layers * model.shared_parameters / (self.num_tensor * self.num_stages)
        return blocks + model.vocabulary_size * model.hidden_size / self.num_tensor

    def expert_parameters(self, model: Transformer) -> float:
        """Returns the parameters of experts on a device, before `shard`."""
        return model.num_layers * model.expert_parameters / (self.num_expert * self.num_tensor * self.num_stages)

    def parameters_of_device(self, model: Transformer) -> float:
        """Returns the parameters without adapters on the device with the most, before `shard` divides them."""
        return self.shared_parameters(model) + self.expert_parameters(model)

    def trained_parameters(self, model: Transformer) -> float:
        """Returns the trained parameters on the device with the most, before `shard` divides them."""
        if model.lora is None:
            return self.parameters_of_device(model)
        return model.num_layers * model.adapter_parameters / (self.num_tensor * self.num_stages)
