"""Saves files of several processes: rank 0 writes, and a file appears whole or not at all.

Every process may call ``save``, as callbacks do, or rank 0 alone, as programs for Horovod do: saving waits for no other
process, since rank 0 has everything that is saved. Gradients that are accumulated over several steps are the exception,
see ``steps.partial_sums.PartialSumVariable``. Where a replica spans processes, or processes share the optimizer's work,
rank 0 does not hold all variables: there every process calls ``save``.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from strategies.engine import save_counter
from strategies.engine.engine import Engine
from strategies.replica.driving import is_driving
from strategies.saving.driving import drive
from strategies.steps.explained import explained

_Result = TypeVar("_Result")


def write_on_rank_0(
    engine: Engine, filepath: object, variables: Sequence[Any], write: Callable[[object], _Result]
) -> _Result | None:
    """Calls ``write`` on rank 0, with a temporary path beside ``filepath`` that then replaces it.

    Other processes write nothing; they serve rank 0 if it does not hold all variables, see :func:`drive`.

    Args:
        engine: the engine of a strategy in which several processes take part.
        filepath: the path of a file or a folder. Anything that is not a local path, such as a cloud address, is written
            to directly.
        variables: the Keras variables that are written, in the same order on all processes.
        write: takes the path to write to.

    Returns:
        What ``write`` returned; None on other ranks.

    Raises:
        ValueError: where rank 0 does not hold all variables, on other ranks, when ``write`` failed on rank 0.
    """
    path = _local_path(filepath)
    number = 0 if path is None else engine.save_counter.count(path)
    if path is None:
        return drive(engine, variables, lambda: write(filepath))
    return drive(engine, variables, lambda: _replace(engine, path, number, write))


def _replace(engine: Engine, path: pathlib.Path, number: int, write: Callable[[object], _Result]) -> _Result:
    for left in save_counter.unfinished(path):
        # Removes what a program left that was killed while it wrote this file.
        if left.is_file():
            left.unlink(missing_ok=True)
    unfinished = save_counter.name_unfinished(path)
    try:
        result = write(str(unfinished))
        modified_ns = unfinished.stat().st_mtime_ns
        if path.is_dir():
            shutil.rmtree(path)
        unfinished.replace(path)
        engine.save_counter.announce(path, number, modified_ns)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink(missing_ok=True)
    return result


def wait_until_written(engine: Engine | None, filepath: object) -> None:
    """Waits until rank 0 has written the file that is to be read.

    Before weights are read into a model of several processes, all of them run a barrier. A model that is loaded outside
    any scope belongs to one process: rank 0 reads at once, the others wait for the file to appear.

    Args:
        engine: the engine of the strategy in which several processes read; None for a process that reads for itself.
        filepath: the path to be read.
    """
    if is_driving():
        return
    if engine is not None and engine.num_processes > 1:
        with explained(engine.member):
            engine.process_group.barrier()
        return
    path = _local_path(filepath)
    known = save_counter.save_counters()
    if path is not None and known and known[0].rank > 0:
        save_counter.wait_for(path)


def _local_path(filepath: object) -> pathlib.Path | None:
    if not isinstance(filepath, (str, os.PathLike)) or "://" in str(filepath):
        return None
    return pathlib.Path(filepath)
