"""The images that are read: made once, of ImageNet's typical size, in class folders and in TFRecord shards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from imagenet import synthetic

_CONVERTER = Path(__file__).resolve().parents[2] / "examples" / "imagenet" / "to_tfrecords.py"

#: Gives about 100 KB for 500 x 375 pixels, as in ImageNet.
NOISE = 15.0


def make(folder: Path, num_images: int, min_side: int, max_side: int) -> tuple[Path, Path]:
    """Makes the missing images and shards; returns the folder with class folders, and the folder with shards.

    Raises:
        DataError: the images cannot be made.
        CalledProcessError: the shards cannot be made; the reason has been printed.
    """
    num_classes = min(10, num_images)
    request = synthetic.Request(
        num_classes=num_classes,
        images_per_class=1,
        val_images_per_class=num_images // num_classes,
        min_side=min_side,
        max_side=max_side,
        noise=NOISE,
        odd_files=False,
    )
    name = f"{num_images}-{min_side}-{max_side}"
    folders = synthetic.make_synthetic(folder / f"folders-{name}", request)
    records = folder / f"records-{name}"
    flags = [f"--data_dir={folders}", f"--output_dir={records}", "--num_shards=1", "--num_val_shards=4", "--verbose=0"]
    subprocess.run([sys.executable, str(_CONVERTER), *flags, "--processes=1"], check=True, stdout=subprocess.DEVNULL)
    return folders, records
