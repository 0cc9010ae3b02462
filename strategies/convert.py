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

import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from strategies.command_line import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or lists; returns the exit code: 1 if something is wrong with the files.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2 for invalid flags.
    """
    parser = _parser()
    flags = parser.parse_args(argv)
    if flags.list == (flags.target is not None):
        parser.error("pass either a target or --list")
    if flags.ranks < 1:
        parser.error(f"--ranks is to be at least 1. Received: {flags.ranks}")
    # TensorFlow takes seconds to import: the help, and the report of a wrong flag, do not wait for it.
    from strategies.converting import open_tensors, write_tensors
    from strategies.converting.listing import listed, num_bytes, renamed

    try:
        names = None if flags.names is None else json.loads(flags.names.read_text())
        with open_tensors(flags.source) as tensors:
            named = tensors if names is None else renamed(tensors, names)
            if flags.list:
                print(listed(named))
            else:
                write_tensors(flags.target, named, flags.ranks, whole=flags.whole)
                print(f"{len(named)} tensors, {num_bytes(named):,} bytes: {flags.target}")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> Parser:
    parser = Parser("convert", "source [target]")
    parser.add_argument(
        "source",
        type=Path,
        help="a sharded checkpoint or a folder of them, *.h5, *.keras, *.safetensors or a folder of them, a folder of "
        "Orbax, or the prefix of a tf.train.Checkpoint",
    )
    parser.add_argument(
        "target",
        type=Path,
        nargs="?",
        help="*.weights.h5, *.safetensors, or a folder for a sharded checkpoint",
    )
    parser.add_argument("--list", action="store_true", help="print names, dtypes, shapes and sums")
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="the number of files of a sharded checkpoint; default 1"
    )
    parser.add_argument("--whole", action="store_true", help="with a folder: no tensor is divided among files")
    parser.add_argument(
        "--names", type=Path, metavar="FILE", help="a file of JSON: the target's name of each of the source's tensors"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
