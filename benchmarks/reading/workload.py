"""The definition of a measurement. Standard library only."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Workload:
    """One measurement, the same for all contenders.

    Attributes:
        folders: folder of the images in class folders.
        records: folder of the same images in TFRecord shards.
        image_size: height and width of the decoded images, pixels.
        batch_size: images in a batch.
        num_batches: number of batches per measurement.
        clock: "cpu" for the process' CPU seconds, "wall" for elapsed seconds.
    """

    folders: Path
    records: Path
    image_size: int
    batch_size: int
    num_batches: int
    clock: str
