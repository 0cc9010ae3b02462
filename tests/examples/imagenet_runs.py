"""Runs of the ImageNet example that tests compare: in their own process, or as a program run by several processes.

As a program: `imagenet_runs.py STRATEGY FOLDER [MESH ...]`, where FOLDER has the images. Without meshes, it runs
`MESHES`, with two devices in each process; meshes named as arguments run with one.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.examples import EXAMPLES  # noqa: F401  Adds the examples to the path.

MESHES = ("data=-1", "data=-1,pipe=2", "data=-1,tensor=2")
#: Meshes in which a replica spans processes, by the number of processes, with one device each.
SPANNING_MESHES = {2: ("pipe=2", "tensor=2"), 4: ("data=2,pipe=2", "data=2,tensor=2", "pipe=2,tensor=2")}


def options(folder: Path, name: str, **changes: Any) -> Any:
    """Returns options for two epochs of a few steps, with an odd batch size, and odd files."""
    from imagenet import train

    few = train.Options(
        data_dir=str(folder / "images"),
        model="AlexNet",
        width=0.03,
        image_size=16,
        batch_size=13,
        epochs=2,
        warmup_epochs=1,
        learning_rate=0.05,
        dropout=0.0,
        microbatches=3,
        partition="uniform",
        run_dir=str(folder / name),
        verbose=0,
    )
    return replace(few, **changes)


def run(folder: Path, name: str, **changes: Any) -> dict[str, list[float]]:
    """Returns the loss curve, without the columns that measure time."""
    from imagenet import train

    history = train.run(options(folder, name, **changes)).outcome.history
    return {k: v for k, v in history.items() if "per_second" not in k and "waiting" not in k}


def counted() -> list[int]:
    """Makes the example record the numbers of the rows that this process decodes, in the returned list."""
    import tensorflow as tf
    from imagenet import batches, decoding

    seen: list[int] = []

    def note(row: Any) -> Any:
        seen.append(int(row))
        return row

    class Counting(decoding.Decoder):
        def __call__(self, number: tf.Tensor) -> Any:
            return super().__call__(tf.ensure_shape(tf.numpy_function(note, [number], tf.int64), []))

    mock.patch.object(batches, "Decoder", Counting).start()
    return seen


def main(strategy: str, folder: Path, *meshes: str) -> None:
    """Runs all meshes in this process, one of several; the folder of each run gets its curve."""
    for mesh in meshes:
        run(folder, f"{strategy} {mesh}", strategy=strategy, mesh=mesh, devices=1)
    if meshes:
        return
    for mesh in MESHES[1:]:
        run(folder, f"{strategy} {mesh}", strategy=strategy, mesh=mesh, devices=2)
    seen = counted()
    run(folder, f"{strategy} {MESHES[0]}", strategy=strategy, mesh=MESHES[0], devices=2)
    (folder / f"{strategy} rows of {os.getpid()}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
