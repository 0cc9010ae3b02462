"""torch.distributed over gloo, in its process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed
from harness.workers import Report

from all_reduce import clock
from all_reduce.cases import Case


def run(all_cases: Sequence[Case], report: Report) -> None:
    """Reduces until the benchmark ends."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    clock.measure(all_cases, _make_call, report)


def _make_call(case: Case) -> Callable[[], object]:
    # Zeros, because the reduction is in place: other numbers would grow to infinity.
    tensors = [torch.empty(size).zero_() for size in case.tensor_sizes]

    def call() -> None:
        pending = [torch.distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in pending:
            work.wait()

    return call
