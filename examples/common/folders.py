"""Folders of runs: one for each set of options, and refused where they do not fit."""

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

#: Options that change neither numbers nor what they mean, so that a run may go on with others.
_FREE = ("run_dir", "checkpoint_steps", "profile", "verbose", "save", "sample_length", "prompt", "temperature")
#: Options that decide where numbers are computed, not which: to rounding, and but for what looks at several rows.
_PLACES = ("strategy", "mesh", "devices", "microbatches", "schedule", "partition", "remat")

_OPTIONS, _DATA = "options.json", "data.txt"


def run_folder(example: str, options: Any, runs: str = "runs") -> Path:
    """The folder of the run that `options`, a dataclass, describe; one of the same options is the same.

    With `run_dir` it is that folder. A run there with other options is refused, those excepted that change no numbers:
    it may go on under another strategy or mesh. What a run is of is written down by `keep_run`.

    Raises:
        OptionError: the folder cannot be made, or is that of another run.
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
    """Writes down what the run in `folder` is of, now that all is well and training begins; all processes call it.

    Args:
        folder: of `run_folder`.
        options: as given to it.
        data_digest: tells the data that this process has from others.
        strategy: joins the processes.

    Raises:
        OptionError: this process has other data than rank 0, or the run in the folder was of other data.
    """

    def of_rank_0() -> str:
        kept = folder / _DATA
        if kept.is_file() and kept.read_text() != data_digest:
            raise ValueError(
                f"--run_dir: {folder} is a run with other data than there is now. Put the data back as they were, or "
                "name another folder."
            )
        write_whole(folder / _OPTIONS, json.dumps(_numbers(options), indent=1, sort_keys=True) + "\n")
        write_whole(kept, data_digest)
        return data_digest

    try:
        told = strategies.load_on_all(strategy, of_rank_0, [])
    except OSError as error:
        raise OptionError(f"--run_dir: {folder} cannot be written ({error.strerror}).") from error
    except ValueError as error:
        raise OptionError(str(error)) from error
    if told != data_digest:
        raise OptionError("The data here are not those of rank 0: give all processes the same files.")


def _numbers(options: Any) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(options).items() if k not in (*_FREE, *_PLACES)}


def _check(record: Path, numbers: dict[str, Any]) -> None:
    try:
        before = json.loads(record.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise OptionError(f"--run_dir: {record} cannot be read ({error}). Name another folder.") from error
    others = [name for name in sorted({*numbers, *before}) if before.get(name) != numbers.get(name)]
    if others:
        told = ", ".join(f"--{name}={before.get(name)} (now {numbers.get(name)})" for name in others)
        raise OptionError(
            f"--run_dir: {record.parent} is a run with {told}. Give the same to go on with it, or name another folder."
        )


def make_folder(flag: str, folder: Path) -> None:
    """Makes a folder that can be written, for what `flag` names.

    Raises:
        OptionError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{flag}: cannot make the folder {folder} ({error.strerror})"
        raise OptionError(f"{reason}. Name one that can be written.") from error
    if not os.access(folder, os.W_OK):
        raise OptionError(f"{flag}: the folder {folder} is not writable. Name one that is.")


def check_saved_model(path: str) -> None:
    """Makes the folder for the file that `--save` names.

    Raises:
        OptionError: it does not end in .keras, is a folder, or cannot be written.
    """
    file = Path(path)
    if file.suffix != ".keras" or file.is_dir():
        raise OptionError(f"--save: expected the path of a file that ends in .keras, received {file}.")
    make_folder("--save", file.parent)
