"""Folders of runs: one for each set of options, and refused where they do not fit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from common.options import OptionError

#: Options that change neither numbers nor what they mean, so that a run may go on with others.
_FREE = ("run_dir", "checkpoint_steps", "profile", "verbose")
#: Options that decide where numbers are computed, not which.
_PLACES = ("strategy", "mesh", "devices")


def run_folder(example: str, options: Any, runs: str = "runs") -> Path:
    """The folder of the run that `options`, a dataclass, describe; one of the same options is the same.

    With `run_dir` it is that folder. A run there with other options is refused, those excepted that change no numbers:
    it may go on under another strategy or mesh.

    Raises:
        OptionError: the folder cannot be made, or is that of another run.
    """
    values = dataclasses.asdict(options)
    deciding = {name: value for name, value in values.items() if name not in _FREE}
    if options.run_dir is None:
        digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:8]
        folder = Path(runs) / f"{example}-{digest}"
    else:
        folder = Path(options.run_dir)
    make_folder("--run_dir", folder)
    record = folder / "options.json"
    numbers = {name: value for name, value in deciding.items() if name not in _PLACES}
    if record.is_file():
        _check(record, numbers)
        return folder
    # Whole or not at all, and of whichever process comes first.
    unfinished = folder / f".options.{os.getpid()}.json"
    unfinished.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n")
    unfinished.replace(record)
    return folder


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
