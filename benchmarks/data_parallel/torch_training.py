"""A torch contender in its process: a training loop, alone or under DistributedDataParallel over gloo."""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.distributed
from harness.workers import Report
from mirrored.workload import Workload
from torch import nn

from data_parallel import torch_models


def run(name: str, workload: Workload, report: Report) -> None:
    """Trains the same number of steps per turn as the others, until the benchmark ends. The loss is its only metric."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    subject = torch_models.MODELS[workload.model]
    model: nn.Module = subject.make_model()
    if name == "torch_ddp":
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = subject.make_optimizer(model.parameters())
    loss_function = nn.CrossEntropyLoss()
    random = np.random.default_rng(0)
    size = (torch_models.BATCHES_IN_MEMORY, workload.batch_size)
    images = torch.from_numpy(random.random((*size, *subject.image_shape), dtype=np.float32))
    labels = torch.from_numpy(random.integers(torch_models.NUM_CLASSES, size=size))

    def step(index: int) -> None:
        optimizer.zero_grad()
        batch = index % len(images)
        loss_function(model(images[batch]), labels[batch]).backward()
        optimizer.step()

    while True:
        for index in range(workload.num_skipped):
            step(index)
        start = time.perf_counter()
        for index in range(workload.num_steps):
            step(index)
        report(workload.num_steps * workload.batch_size / (time.perf_counter() - start))
