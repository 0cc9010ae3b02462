"""A torch contender in its process, over gloo: weights and optimizer replicated, or sharded by torch."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch
import torch.distributed
from data_parallel import torch_models
from harness.workers import Report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from sharded.cases import Workload
from sharded.clock import Clock

_LEARNING_RATE = 1e-3


def subject(workload: Workload) -> torch_models.Subject:
    """Returns the model of a workload with its images and its optimizer."""
    adam = functools.partial(torch.optim.Adam, lr=_LEARNING_RATE, fused=workload.fused or None)
    if workload.model != "mlp":
        return dataclasses.replace(torch_models.MODELS[workload.model], make_optimizer=adam)

    def mlp() -> nn.Module:
        hidden = [
            nn.Sequential(nn.Linear(workload.width, workload.width), nn.ReLU()) for _ in range(workload.num_layers)
        ]
        return nn.Sequential(*hidden, nn.Linear(workload.width, torch_models.NUM_CLASSES))

    return torch_models.Subject((workload.width,), mlp, adam)


def run(name: str, workload: Workload, report: Report) -> None:
    """Trains the same number of steps per turn as the others, until the benchmark ends. The loss is its only metric."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    trained = subject(workload)
    model, optimizer = _distributed(name, trained, workload.fused)
    loss_function = nn.CrossEntropyLoss()
    random = np.random.default_rng(0)
    size = (torch_models.BATCHES_IN_MEMORY, workload.batch_size)
    images = torch.from_numpy(random.random((*size, *trained.image_shape), dtype=np.float32))
    labels = torch.from_numpy(random.integers(torch_models.NUM_CLASSES, size=size))

    def step(index: int) -> None:
        optimizer.zero_grad()
        batch = index % len(images)
        loss_function(model(images[batch]), labels[batch]).backward()
        optimizer.step()

    clock = Clock(workload.num_steps, report)
    while True:
        for index in range(workload.num_skipped):
            step(index)
        clock.start()
        for index in range(workload.num_steps):
            step(index)
        clock.stop()
        clock.hold(*_held_bytes(model, optimizer))
        clock.hand_over()


def _distributed(name: str, trained: torch_models.Subject, fused: bool) -> tuple[nn.Module, Any]:
    model: Any = trained.make_model()
    if name in ("torch_fsdp2", "torch_fsdp2_reshard"):
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        shard = functools.partial(fully_shard, mesh=mesh, reshard_after_forward=name == "torch_fsdp2_reshard")
        # A group for each layer or block, as in torch's guide; the model itself last.
        for part in model:
            if any(True for _ in part.parameters()):
                shard(part)
        shard(model)
        return model, trained.make_optimizer(model.parameters())
    model = nn.parallel.DistributedDataParallel(model)
    if name == "torch_ddp":
        return model, trained.make_optimizer(model.parameters())
    return model, ZeroRedundancyOptimizer(
        model.parameters(),
        torch.optim.Adam,
        parameters_as_bucket_view=True,
        lr=_LEARNING_RATE,
        fused=fused or None,
    )


def _held_bytes(model: nn.Module, optimizer: Any) -> tuple[int, int]:
    """Returns the bytes of the weights that this process holds, statistics included, and of the optimizer's state."""
    own = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    slots = [value for state in own.state.values() for value in state.values() if torch.is_tensor(value)]
    return _num_bytes([*model.parameters(), *model.buffers()]), _num_bytes(slots)


def _num_bytes(tensors: list[Any]) -> int:
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    return sum(each.numel() * each.element_size() for each in local)
