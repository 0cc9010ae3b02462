"""torch contenders in their processes: one process, or one for each stage or shard over gloo."""

from __future__ import annotations

import torch
import torch.distributed
from harness.workers import Report
from pipeline import torch_training as stages
from tensor_parallel import torch_training as shards
from torch import nn

from model_parallel import clock
from model_parallel.cases import NUM_PARTS, Case, Workload


def run(is_split: bool, workload: Workload, report: Report) -> None:
    """Trains until the benchmark ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if is_split:
        torch.distributed.init_process_group("gloo")

    def make_step(case: Case) -> clock.Call:
        if case.axis == "tensor":
            return shards.make_step(case.in_shards, NUM_PARTS if is_split else 1)
        return stages.make_step("1f1b", case.in_stages(NUM_PARTS)) if is_split else _one_device_step(case)

    clock.measure(workload, make_step, _make_exchange if is_split else None, report)


def _one_device_step(case: Case) -> clock.Call:
    model = stages.make_stage(0, case.in_stages(1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x, y = stages.make_batch(case.in_stages(1))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def _make_exchange(case: Case, num_values: int) -> clock.Call:
    # Zeros, because repeated sums must not grow.
    value = torch.empty(num_values).zero_()
    if case.axis == "tensor":

        def sum_up() -> None:
            for _ in range(clock.NUM_IN_A_ROW):
                torch.distributed.all_reduce(value)

        return sum_up
    rank = torch.distributed.get_rank()

    def round_trip() -> None:
        for index in range(clock.NUM_IN_A_ROW):
            if index % NUM_PARTS == rank:
                torch.distributed.send(value, 1 - rank)
            else:
                torch.distributed.recv(value, 1 - rank)

    return round_trip
