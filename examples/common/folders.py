"""Run folders: one for each set of options; a folder of a run with other options is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

import strategies
from common.files import write_whole
from common.options import OptionError

#: Options that do not change the numbers of a run: they may differ when it is resumed.
_FREE = (
    "run_dir",
    "checkpoint_steps",
    "checkpoint_form",
    "profile",
    "verbose",
    "save",
    "save_preset",
    "save_adapters",
    "sample_length",
    "prompt",
    "temperature",
)
#: Options of placement may differ, too: every mesh gives the same numbers up to rounding. (Exceptions are layers that
#: combine rows of a batch, such as batch normalisation within a micro-batch.)
_PLACES = ("strategy", "mesh", "devices", "microbatches", "schedule", "partition", "remat", "shard")

_OPTIONS, _DATA = "options.json", "data.txt"


def run_folder(example: str, options: Any, runs: str = "runs") -> Path:
    """Returns the folder of a run with these options (a dataclass); equal options give the same folder.

    The folder is `run_dir`, if that is set. A folder of a run with other options is refused, except for options that do
    not change the numbers: a run may be resumed under another strategy or mesh. `keep_run` writes the record of a run.

    Raises:
        OptionError: the folder cannot be made, or belongs to another run.
    """
    if options.run_dir is None:
        deciding = {name: value for name, value in dataclasses.asdict(options).items() if name not in _FREE}
        digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:8]
        folder = Path(runs) / f"{example}-{digest}"
    else:
        folder = Path(options.run_dir)
    make_folder("--run_dir", folder)
    if (folder / _OPTIONS).is_file():
        _check(folder / _OPTIONS, _numbers(options))
    return folder


def keep_run(folder: Path, options: Any, data_digest: str, strategy: tf.distribute.Strategy) -> None:
    """Writes a run's options and data digest into its folder; all processes call it when training begins.

    Args:
        folder: the folder from `run_folder`.
        options: as passed to `run_folder`.
        data_digest: a digest of this process' data.
        strategy: the strategy that connects the processes.

    Raises:
        OptionError: the data of this process differ from those of rank 0, or from those of the run in the folder.
    """

    def check_on_rank_0() -> str:
        kept = folder / _DATA
        if kept.is_file() and kept.read_text() != data_digest:
            raise ValueError(
                f"--run_dir: {folder} is a run with other data. Restore the data that it was started with, or choose "
                "another folder."
            )
        write_whole(folder / _OPTIONS, json.dumps(_numbers(options), indent=1, sort_keys=True) + "\n")
        write_whole(kept, data_digest)
        return data_digest

    try:
        digest_of_rank_0 = strategies.load_on_all(strategy, check_on_rank_0, [])
    except OSError as error:
        raise OptionError(f"--run_dir: {folder} cannot be written ({error.strerror}).") from error
    except ValueError as error:
        raise OptionError(str(error)) from error
    if digest_of_rank_0 != data_digest:
        raise OptionError("The data of this process differ from those of rank 0: give all processes the same files.")


def _numbers(options: Any) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(options).items() if k not in (*_FREE, *_PLACES)}


def _check(record: Path, numbers: dict[str, Any]) -> None:
    try:
        before = json.loads(record.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise OptionError(f"--run_dir: {record} cannot be read ({error}). Choose another folder.") from error
    others = [name for name in sorted({*numbers, *before}) if before.get(name) != numbers.get(name)]
    if others:
        differences = ", ".join(f"--{name}={before.get(name)} (now {numbers.get(name)})" for name in others)
        raise OptionError(
            f"--run_dir: {record.parent} is a run with {differences}. Use the same options to resume it, or choose "
            "another folder."
        )


def make_folder(flag: str, folder: Path) -> None:
    """Makes the folder named by `flag`, and checks that it is writable.

    Raises:
        OptionError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{flag}: cannot make the folder {folder} ({error.strerror})"
        raise OptionError(f"{reason}. Choose a writable one.") from error
    if not os.access(folder, os.W_OK):
        raise OptionError(f"{flag}: the folder {folder} is not writable. Choose a writable one.")


def check_saved_model(path: str) -> None:
    """Checks the path of `--save` and makes its folder.

    Raises:
        OptionError: the path does not end in .keras, is a folder, or cannot be written.
    """
    file = Path(path)
    if file.suffix != ".keras" or file.is_dir():
        raise OptionError(f"--save: expected the path of a file that ends in .keras, received {file}.")
    make_folder("--save", file.parent)
