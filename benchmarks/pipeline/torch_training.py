"""torch contenders in their processes, one for each stage, over gloo."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed
from harness.workers import Report
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleZBVZeroBubble

from pipeline import clock
from pipeline.cases import Case, Workload
from pipeline.kinds import KINDS
from pipeline.sizes import NUM_DENSE, bounds

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def run(name: str, workload: Workload, report: Report) -> None:
    """Trains until the benchmark ends. Each process measures its own steps; the slowest one counts."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    clock.measure(workload, lambda case: make_step(KINDS[name].schedule or "", case), report)


def make_stage(number: int, case: Case) -> nn.Module:
    """Returns the layers of one stage; all layers if it is the only stage."""
    start, end = bounds(NUM_DENSE, case.num_stages)[number : number + 2]
    width = int(case.size)
    return nn.Sequential(*(layer for _ in range(start, end) for layer in (nn.Linear(width, width), nn.ReLU())))


def make_batch(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and targets."""
    x, y = np.random.default_rng(0).standard_normal((2, case.batch_size, int(case.size)), dtype=np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


def make_step(schedule_name: str, case: Case) -> clock.Step:
    """Returns a function that trains this process' stage, or its two stages, once."""
    rank, is_v = torch.distributed.get_rank(), schedule_name == "zb_v"
    stages = case.with_stages_per_device(2, shorter=False) if is_v else case
    last = stages.num_stages - 1
    numbers = [rank, last - rank] if is_v else [rank]
    modules = [make_stage(number, stages) for number in numbers]
    optimizer = torch.optim.SGD([weight for module in modules for weight in module.parameters()], 1e-3)
    own = [
        PipelineStage(module, number, stages.num_stages, torch.device("cpu"))
        for number, module in zip(numbers, modules, strict=True)
    ]
    loss = nn.functional.mse_loss
    schedule = (
        ScheduleZBVZeroBubble(own, case.num_microbatches, loss_fn=loss)
        if is_v
        else SCHEDULES[schedule_name](own[0], case.num_microbatches, loss_fn=loss)
    )
    x, y = make_batch(case)
    inputs = (x,) if 0 in numbers else ()
    target = y if last in numbers else None

    def step() -> None:
        optimizer.zero_grad()
        # Nobody reads the outputs of the batch, so they need not be concatenated.
        schedule.step(*inputs, target=target, losses=None if target is None else [], return_outputs=False)
        optimizer.step()

    return step
