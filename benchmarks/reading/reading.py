"""One contender in its process: draws batches and discards them."""

from __future__ import annotations

import time
from pathlib import Path

import keras
import tensorflow as tf
from harness.workers import Report
from imagenet import batches, data

from reading.workload import Workload

#: Steps of the training data: more than any measurement takes.
_MANY_STEPS = 10**9


def dataset(program: str, folder: Path, workload: Workload) -> tf.data.Dataset:
    """Returns an endless dataset of batches, whose first component is the images."""
    size, rows = workload.image_size, workload.batch_size
    match program:
        case "keras":
            return keras.utils.image_dataset_from_directory(
                folder / "val", image_size=(size, size), batch_size=rows, shuffle=False, verbose=False
            ).repeat()
        case "evaluation":
            return batches.evaluation_batches(data.open_split(folder, "val"), image_size=size, batch_size=rows).repeat()
        case "training":
            return batches.training_batches(
                # The same images as the other programs read.
                data.open_split(folder, "val"),
                image_size=size,
                batch_size=rows,
                seed=0,
                first_step=0,
                num_steps=_MANY_STEPS,
            )
    raise ValueError(f"Expected keras, evaluation or training. Received: {program!r}.")


def run(program: str, in_records: bool, workload: Workload, report: Report) -> None:
    """Draws `num_batches` batches per turn until the benchmark ends; reports images per second."""
    tf.get_logger().setLevel("ERROR")
    clock = time.process_time if workload.clock == "cpu" else time.perf_counter
    iterator = iter(dataset(program, workload.records if in_records else workload.folders, workload))
    while True:
        start, num_images = clock(), 0
        for _ in range(workload.num_batches):
            images, *_ = next(iterator)
            num_images += int(images.shape[0])
        report(num_images / (clock() - start))
