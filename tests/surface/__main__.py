"""Runs the grids of Keras' surface: ``python -m tests.surface docs/numbers/surface.md`` (``make surface``).

All cells take two to three hours on two cores, with a process for each layer. ``--seconds=600`` draws cells of layers
at random instead, and prints the seed that repeats them. It exits with 1 if a cell is wrong or crashed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

#: Layers, callbacks and readers in one process, readers over two.
GRIDS = ("layers", "callbacks", "readers", "processes")
_RESULTS = Path("build/surface.jsonl")
_LIMIT_SECONDS = 3 * 3600


def main() -> int:
    """Runs the cells that the arguments select; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.surface", description="Runs the grids of Keras' surface.")
    parser.add_argument("page", type=Path, nargs="?", help="written from all results, those of earlier runs included")
    parser.add_argument("--results", type=Path, default=_RESULTS, help=f"a line for each cell ({_RESULTS})")
    parser.add_argument("--grids", nargs="*", choices=GRIDS, help="all if left out, and no names are given")
    parser.add_argument("--rows", nargs="*", help="names of layers; all if left out")
    parser.add_argument("--columns", nargs="*", help="names of columns; all if left out")
    parser.add_argument("--meshes", nargs="*", help="names of meshes; all if left out")
    parser.add_argument("--seconds", type=float, help="draw cells of layers at random for this time")
    parser.add_argument("--seed", type=int, help="of the draw; a new one, which is printed, if left out")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--here", action="store_true", help="in this process, and print a line for each cell")
    arguments = parser.parse_args()
    only_layers = arguments.seconds is not None or arguments.rows or arguments.columns or arguments.meshes
    grids = arguments.grids or (("layers",) if only_layers else GRIDS)
    if arguments.here:
        for line in _here(grids[0], arguments):
            print(line, flush=True)
        return 0
    if arguments.seconds is not None and arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(2**31)
        print(f"--seconds={arguments.seconds:g} --seed={arguments.seed}", flush=True)
    found = _by_processes(grids, arguments)
    bad = [each for each in found if each["kind"] in ("wrong", "crash")]
    print(f"{len(found)} cells, {len(bad)} wrong or crashed")
    if arguments.page:
        from tests.surface.page import page

        arguments.page.write_text(page(_parsed(arguments.results.read_text().splitlines())))
    return 1 if bad else 0


def _here(grid: str, arguments: argparse.Namespace) -> Iterator[str]:
    """Runs cells of a grid in this process, one after the other, and yields a line for each."""
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    # Rewriting the graphs takes most of the time, and changes only roundings.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    import keras

    # The location of an error tells whose message it has.
    keras.config.disable_traceback_filtering()
    for cell, outcome in _layers(arguments) if grid == "layers" else _others(grid):
        yield json.dumps({"grid": grid, "cell": cell, **asdict(outcome)})


def _layers(arguments: argparse.Namespace) -> Iterator[tuple[list[str], Any]]:
    """Runs cells of layers; all meshes of a layer and column run together."""
    from tests.surface import cells
    from tests.surface.columns import COLUMNS
    from tests.surface.meshes import MESHES
    from tests.surface.rows import ROWS

    pairs = [(row, column) for row in arguments.rows or ROWS for column in arguments.columns or COLUMNS]
    if arguments.seed is not None:
        random.Random(arguments.seed).shuffle(pairs)
    end = time.monotonic() + (arguments.seconds or float("inf"))
    for row, column in pairs:
        for mesh in arguments.meshes or MESHES:
            if time.monotonic() > end:
                return
            yield [row, column, mesh], cells.outcome(row, column, mesh)


def _others(grid: str) -> Iterator[tuple[list[str], Any]]:
    from tests.surface import callbacks, reader_runs

    if grid == "callbacks":
        for row in callbacks.ROWS:
            for mesh in callbacks.MESHES:
                yield [row, mesh], callbacks.outcome(row, mesh)
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = reader_runs.outcomes() if grid == "readers" else reader_runs.outcomes_over_processes(Path(folder))
        for reader, strategy, outcome in runs:
            yield [reader, strategy], outcome


def _by_processes(grids: Iterable[str], arguments: argparse.Namespace) -> list[Mapping[str, Any]]:
    """Runs cells in processes, one for each layer, grid or random part; records results as they arrive."""
    given: list[str] = []
    for name in ("columns", "meshes"):
        if values := getattr(arguments, name):
            given += [f"--{name}", *values]
    parts: list[list[str]] = [["--grids", grid] for grid in grids if grid != "layers"]
    if arguments.seconds is not None:
        rows = ["--rows", *arguments.rows] if arguments.rows else []
        draws = [["--seed", str(arguments.seed + i)] for i in range(arguments.workers)]
        parts = [[*given, *rows, *draw, "--seconds", str(arguments.seconds)] for draw in draws]
    elif "layers" in grids:
        from tests.surface.rows import ROWS

        parts += [[*given, "--rows", row] for row in arguments.rows or ROWS]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    found: list[Mapping[str, Any]] = []
    with ThreadPoolExecutor(arguments.workers) as pool, arguments.results.open("a") as results:
        for lines in pool.map(_lines, parts):
            results.writelines(line + "\n" for line in lines)
            results.flush()
            for each in _parsed(lines):
                found.append(each)
                if each["kind"] in ("wrong", "crash"):
                    print(f"{each['kind']}: {', '.join(each['cell'])}: {each['words'][:300]}", flush=True)
    return found


def _lines(arguments: Iterable[str]) -> list[str]:
    """Runs cells in one process, and returns the line printed for each."""
    command = [sys.executable, "-m", "tests.surface", "--here", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    if done.returncode:
        print(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}", flush=True)
    return [line for line in done.stdout.splitlines() if line.startswith('{"grid"')]


def _parsed(lines: Iterable[str]) -> list[Mapping[str, Any]]:
    """Returns the latest outcome of every cell."""
    return list({str((each["grid"], each["cell"])): each for each in map(json.loads, lines)}.values())


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
