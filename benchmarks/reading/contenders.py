"""The contenders and their comparisons. Pure data: TensorFlow is imported in the contenders' own processes."""

from __future__ import annotations

import functools

from harness.ratios import Comparison
from harness.workers import Contender, Report

from reading.workload import Workload

# Release criterion of our reading: per core, it is not slower than Keras' own.
TARGET_OF_KERAS = 1.0

KERAS = "keras.utils.image_dataset_from_directory"
KERAS_AGAIN = f"{KERAS}, a second process"
FOLDERS = "evaluation_batches, class folders"
RECORDS = "evaluation_batches, TFRecords"
TRAINING_FOLDERS = "training_batches, class folders"
TRAINING_RECORDS = "training_batches, TFRecords"


#: By name: the program in `reading.reading`, and whether it reads TFRecords.
_PROGRAMS = {
    KERAS: ("keras", False),
    FOLDERS: ("evaluation", False),
    RECORDS: ("evaluation", True),
    KERAS_AGAIN: ("keras", False),
    TRAINING_FOLDERS: ("training", False),
    TRAINING_RECORDS: ("training", True),
}


def contenders(workload: Workload) -> list[Contender]:
    """Returns all contenders. They freeze between turns: otherwise they would prefetch during the turns of others."""
    return [
        Contender(name, functools.partial(_run, program, in_records, workload), freezes=True)
        for name, (program, in_records) in _PROGRAMS.items()
    ]


def comparisons() -> list[Comparison]:
    """Returns the comparisons."""
    return [
        Comparison("class folders / Keras", FOLDERS, KERAS, TARGET_OF_KERAS),
        Comparison("TFRecords / Keras", RECORDS, KERAS, TARGET_OF_KERAS),
        Comparison("training, class folders / Keras without augmentation", TRAINING_FOLDERS, KERAS, TARGET_OF_KERAS),
        Comparison("training, TFRecords / Keras without augmentation", TRAINING_RECORDS, KERAS, TARGET_OF_KERAS),
        Comparison("Keras / Keras, the noise", KERAS_AGAIN, KERAS),
    ]


def _run(program: str, in_records: bool, workload: Workload, report: Report) -> None:
    from reading import reading

    reading.run(program, in_records, workload, report)
