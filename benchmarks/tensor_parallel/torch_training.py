"""torch contenders in their processes: one process, or one for each shard over gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed
from harness.workers import Report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tensor_parallel import clock
from tensor_parallel.sizes import HEAD_SIZE, LENGTH
from tensor_parallel.workload import Workload


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.activation = activation
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps ``(..., width)`` to the same shape."""
        y: torch.Tensor = self.down(self.activation(self.up(x)))
        return y


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.feed_forward = FeedForward(width, nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps ``(batch, tokens, width)`` to the same shape."""
        n = self.norm_1(x)
        # The heads of this shard.
        heads = [
            layer(n).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        h = x + self.output(attended.transpose(1, 2).flatten(2))
        y: torch.Tensor = h + self.feed_forward(self.norm_2(h))
        return y


def run(workload: Workload, num_shards: int, report: Report) -> None:
    """Trains until the benchmark ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if num_shards > 1:
        torch.distributed.init_process_group("gloo")
    clock.measure(make_step(workload, num_shards), workload, report)


def make_step(workload: Workload, num_shards: int) -> Callable[[], None]:
    """Returns a function that trains once: on one device, or this process' shard of an existing process group."""
    is_mlp = workload.model == "mlp"
    model: Any = FeedForward(workload.width, nn.ReLU()) if is_mlp else Block(workload.width)
    if num_shards > 1:
        prefix = "" if is_mlp else "feed_forward."
        plan: dict[str, Any] = {f"{prefix}up": ColwiseParallel(), f"{prefix}down": RowwiseParallel()}
        if not is_mlp:
            plan |= {name: ColwiseParallel() for name in ("query", "key", "value")} | {"output": RowwiseParallel()}
        model = parallelize_module(model, init_device_mesh("cpu", (num_shards,)), plan)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    shape = (workload.batch_size, workload.width) if is_mlp else (workload.batch_size, LENGTH, workload.width)
    x, y = torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step
