"""Runs the grid of Keras' surface: ``python -m tests.surface docs/surface.md`` (``make surface``).

All cells take about an hour and a half on two cores, in a process for each layer. ``--seconds=600`` draws cells at
random instead, and prints the seed that repeats them. It ends with 1 if a cell is wrong, or crashed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

Cell = tuple[str, str, str]
_RESULTS = Path("build/surface.jsonl")
_ROW_LIMIT_SECONDS = 3600


def main() -> int:
    """Runs what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.surface", description="Runs the grid of Keras' surface.")
    parser.add_argument("page", type=Path, nargs="?", help="written from all results, those of earlier runs included")
    parser.add_argument("--results", type=Path, default=_RESULTS, help=f"a line for each cell ({_RESULTS})")
    parser.add_argument("--rows", nargs="*", help="names of layers; all if left out")
    parser.add_argument("--columns", nargs="*", help="names of columns; all if left out")
    parser.add_argument("--meshes", nargs="*", help="names of meshes; all if left out")
    parser.add_argument("--seconds", type=float, help="draw cells at random for this time")
    parser.add_argument("--seed", type=int, help="of the draw; a new one, which is printed, if left out")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--here", action="store_true", help="in this process, and print a line for each cell")
    arguments = parser.parse_args()
    if arguments.here:
        for line in _here(arguments):
            print(line, flush=True)
        return 0
    if arguments.seconds is not None and arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(2**31)
        print(f"--seconds={arguments.seconds:g} --seed={arguments.seed}", flush=True)
    found = _by_processes(arguments)
    bad = [(cell, each) for cell, each in found.items() if each["kind"] in ("wrong", "crash")]
    print(f"{len(found)} cells, {len(bad)} wrong or crashed")
    if arguments.page:
        from tests.surface.page import page

        arguments.page.write_text(page(_read(arguments.results)))
    return 1 if bad else 0


def _here(arguments: argparse.Namespace) -> Iterator[str]:
    """Runs cells, one after the other, all meshes of a layer and column together."""
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    # Rewriting the graphs takes most of the time, and changes roundings only.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    import keras

    # The place of an error tells whose words it has.
    keras.config.disable_traceback_filtering()
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
            yield json.dumps({"cell": [row, column, mesh], **asdict(cells.outcome(row, column, mesh))})


def _by_processes(arguments: argparse.Namespace) -> Mapping[Cell, Mapping[str, Any]]:
    """Runs cells in processes, a layer in each, or a random part in each; notes results as they come."""
    given: list[str] = []
    for name in ("columns", "meshes"):
        if values := getattr(arguments, name):
            given += [f"--{name}", *values]
    if arguments.seconds is None:
        from tests.surface.rows import ROWS

        parts = [["--rows", row] for row in arguments.rows or ROWS]
    else:
        rows = ["--rows", *arguments.rows] if arguments.rows else []
        draws = [(arguments.seed + i, arguments.seconds) for i in range(arguments.workers)]
        parts = [[*rows, "--seed", str(seed), "--seconds", str(seconds)] for seed, seconds in draws]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    found: dict[Cell, Mapping[str, Any]] = {}
    with ThreadPoolExecutor(arguments.workers) as pool, arguments.results.open("a") as results:
        for lines in pool.map(lambda part: list(_lines([*given, *part])), parts):
            for line in lines:
                cell, each = _parsed(line)
                found[cell] = each
                results.write(line + "\n")
                results.flush()
                if each["kind"] in ("wrong", "crash"):
                    print(f"{each['kind']}: {', '.join(cell)}: {each['words'][:300]}", flush=True)
    return found


def _lines(arguments: Iterable[str]) -> Iterator[str]:
    """Runs cells in one process, and yields the line that it prints for each."""
    command = [sys.executable, "-m", "tests.surface", "--here", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_ROW_LIMIT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    yield from (line for line in done.stdout.splitlines() if line.startswith('{"cell"'))


def _parsed(line: str) -> tuple[Cell, Mapping[str, Any]]:
    each = json.loads(line)
    row, column, mesh = each.pop("cell")
    return (row, column, mesh), each


def _read(results: Path) -> Mapping[Cell, Mapping[str, Any]]:
    """The latest outcome of every cell."""
    return dict(_parsed(line) for line in results.read_text().splitlines())


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
