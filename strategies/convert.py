"""Converts files of weights into each other, and lists what is in them: ``python -m strategies.convert``.

    python -m strategies.convert run/checkpoints model.weights.h5
    python -m strategies.convert run/checkpoints resharded --ranks 8
    python -m strategies.convert run/checkpoints for_a_hub --ranks 8 --whole
    python -m strategies.convert weights.safetensors model.weights.h5 --names names.json
    python -m strategies.convert model.keras --list

A sharded checkpoint becomes a file that plain Keras loads, `model.load_weights("model.weights.h5")`, with the state of
the optimizer; any file becomes a checkpoint for another number of ranks. Tensors are read one after the other, and no
device is used.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strategies.converting import open_tensors, sources, targets, write_tensors
from strategies.replica.stored_array import StoredArray, ranges


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or lists; returns the exit code: 1 if something is wrong with the files.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2 for invalid flags.
    """
    parser = argparse.ArgumentParser(
        prog="python -m strategies.convert",
        description="Converts files of weights into each other, and lists what is in them.",
        epilog="example: python -m strategies.convert run/checkpoints model.weights.h5",
    )
    parser.add_argument("source", type=Path, help=sources.KINDS)
    parser.add_argument("target", type=Path, nargs="?", help=targets.KINDS)
    parser.add_argument("--ranks", type=int, default=1, help="the number of files of a sharded checkpoint")
    parser.add_argument("--whole", action="store_true", help="with a folder: no tensor is divided among files")
    parser.add_argument("--names", type=Path, help="a file of JSON: the target's name of each of the source's tensors")
    parser.add_argument("--list", action="store_true", help="print names, dtypes, shapes and sums")
    flags = parser.parse_args(argv)
    if flags.list == (flags.target is not None):
        parser.error("pass either a target or --list")
    if flags.ranks < 1:
        parser.error(f"--ranks is to be at least 1. Received: {flags.ranks}")
    try:
        names = None if flags.names is None else json.loads(flags.names.read_text())
        with open_tensors(flags.source) as tensors:
            named = tensors if names is None else renamed(tensors, names)
            if flags.list:
                print(listed(named))
            else:
                write_tensors(flags.target, named, flags.ranks, whole=flags.whole)
                print(f"{len(named)} tensors, {_bytes(named):,} bytes: {flags.target}")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def renamed(tensors: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns tensors by other names.

    Raises:
        ValueError: tensors have no new name, or names no tensor, or two tensors one name; all of them are named.
    """
    lines = [f"no name for: {name}" for name in tensors if name not in names]
    lines += [f"no tensor: {name}" for name in names if name not in tensors]
    new = list(names.values())
    lines += [f"named twice: {name}" for name in dict.fromkeys(new) if new.count(name) > 1]
    if lines:
        raise ValueError("The names do not fit the tensors. Received:\n" + "\n".join(sorted(lines)))
    return {names[name]: tensor for name, tensor in tensors.items()}


def listed(tensors: Mapping[str, Any]) -> str:
    """Returns a line for each tensor: name, dtype, shape, and the sum of its elements."""
    rows = [
        (name, tensor.dtype.name, "x".join(map(str, tensor.shape)) or "scalar", f"{_sum(tensor):.9g}")
        for name, tensor in sorted(tensors.items(), key=_in_order)
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    lines = [
        "  ".join([*(each.ljust(width) for each, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    return "\n".join([*lines, f"{len(rows)} tensors, {_bytes(tensors):,} bytes"])


def _in_order(item: tuple[str, Any]) -> list[tuple[int, str]]:
    """Orders names such that numbers in them are in the order of numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", item[0])]


def _sum(tensor: Any) -> float:
    array, total = StoredArray(tensor), 0.0
    for begin, end in ranges(math.prod(tensor.shape), tensor.dtype.itemsize):
        total += float(np.sum(array.flat(begin, end).astype(np.float64)))
    return total


def _bytes(tensors: Mapping[str, Any]) -> int:
    return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors.values())


if __name__ == "__main__":
    sys.exit(main())
