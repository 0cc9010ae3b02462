"""A process of torch's distributed checkpoints, run by another Python: saves on request, and prints seconds.

Each of the two processes has half of the state on the CPU, in tensors as large as those of `checkpoints.saving`. The
stager is kept from save to save, so that its memory is reused; all else is as torch has it by default.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

_UNITS = 1024


def main(program: str, folder: Path, megabytes: int) -> None:
    """Measures once for each line of standard input, until it ends.

    Args:
        program: "torch", a save that training waits for; "torch stall", how long `async_save` takes, which copies the
            tensors first; "torch written", the time until such a save is complete.
        folder: where the checkpoints are written; both processes share it.
        megabytes: the size of the state of both processes.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # As many as weights and Adam's two slots, half of them here.
    count = 3 * max(1, megabytes * 1_000_000 // (3 * 4 * _UNITS * _UNITS))
    own = range(rank, count, dist.get_world_size())
    state = {f"weights.{i}": torch.full((_UNITS, _UNITS), float(i)) for i in own}
    stager = DefaultStager(StagingOptions(False, False, False, False))
    for number in itertools.count():
        if not sys.stdin.readline():
            return
        path = folder / str(number)
        begin = time.perf_counter()
        if program == "torch":
            dcp.save(state, checkpoint_id=path)
            saved = time.perf_counter()
        else:
            future = dcp.async_save(state, checkpoint_id=path, async_stager=stager)
            saved = time.perf_counter()
            future.result()
        if rank == 0:
            shutil.rmtree(folder / str(number - 1), ignore_errors=True)
        print((saved if program == "torch stall" else time.perf_counter()) - begin, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
