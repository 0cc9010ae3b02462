"""The tuned model as a preset, and its adapters as a file, written by one process and complete or absent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def save_preset(task: Any, folder: Path) -> None:
    """Saves a task as a preset, which opens in plain KerasHub; all processes call it.

    Adapters are added to the kernels. Reading weights may be collective, so that all processes save, and the files of
    one are kept.
    """

    def save(part: Path) -> None:
        task.save_to_preset(str(part))

    _save(save, folder, task.distribute_strategy.is_chief)


def save_adapters(task: Any, path: Path) -> None:
    """Saves the adapters alone, for the backbone's `load_lora_weights` in plain KerasHub; all processes call it."""
    _save(lambda part: task.backbone.save_lora_weights(str(part)), path, task.distribute_strategy.is_chief)


def _save(save: Callable[[Path], None], target: Path, keeps: bool) -> None:
    # On the same file system, for a rename; a process that keeps nothing may run on another machine.
    with tempfile.TemporaryDirectory(dir=target.parent if keeps else None, prefix=".saving-") as folder:
        part = Path(folder) / target.name
        save(part)
        if not keeps:
            return
        if target.is_dir():
            shutil.rmtree(target)
        part.replace(target)
