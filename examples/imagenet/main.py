"""Trains an image classifier: `python examples/imagenet/main.py --data=/data/imagenet`."""

import sys
from pathlib import Path
from typing import Any

from absl import app, flags

if __name__ == "__main__":
    # Seen from the folder above, the example is the package `imagenet`, and its `train` is nobody else's.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import options

options.define_run_flags()
options.define_placing_flags()
flags.DEFINE_string(
    "data",
    "synthetic",
    "Folder of the images: class folders, TFRecord shards, or files named <wnid>_*.JPEG. Or synthetic: small images "
    "that are made first.",
)
flags.DEFINE_string("model", "ResNet50", "ResNet50, AlexNet, or a name of keras.applications, such as EfficientNetB0.")
flags.DEFINE_float("width", 1.0, "Multiplies the filters and units of ResNet50 and AlexNet.", 0.0)
flags.DEFINE_integer("image_size", 224, "Pixels on each side of a picture.", lower_bound=8)
flags.DEFINE_integer("batch_size", 256, "Global batch size: images in one step on all devices.", lower_bound=1)
flags.DEFINE_integer("epochs", 90, "Times to go through the training images.", lower_bound=1)
flags.DEFINE_enum("optimizer", "sgd", ["sgd", "adamw", "lamb"], "sgd has Nesterov momentum; lamb is for large batches.")
flags.DEFINE_float(
    "learning_rate",
    None,
    "The highest, for 256 images in an update; it grows with them. Default: 0.1 for sgd, 0.0003 for adamw, 0.0006 for "
    "lamb.",
    0.0,
)
flags.DEFINE_enum("decay", "cosine", ["cosine", "steps"], "How the learning rate falls: to 0, or to a tenth, thrice.")
flags.DEFINE_integer("warmup_epochs", 5, "Epochs in which the learning rate rises, at most half of all.", 0)
flags.DEFINE_float("momentum", 0.9, "Of sgd.", 0.0, 0.999)
flags.DEFINE_float("weight_decay", 5e-4, "Of weights, but not of norms and biases, apart from the gradient.", 0.0)
flags.DEFINE_float("label_smoothing", 0.1, "Part of each label that is spread over all classes.", 0.0, 0.9)
flags.DEFINE_float("dropout", 0.5, "Of AlexNet's dense layers.", 0.0, 0.9)
flags.DEFINE_integer("accumulation", 1, "Steps whose gradients make one update of the weights.", lower_bound=1)
flags.DEFINE_bool(
    "sync_batch_norm",
    True,
    "Whether ResNet50's batch normalisation sees the rows of all replicas: the numbers of one device, for a message "
    "per layer.",
)
flags.DEFINE_string("save", None, "Path, ending in .keras, to save the trained model to.")


def main(argv: list[str]) -> None:
    """Runs what the flags say and prints the result as the last line."""
    options.run_program(argv, _run)


def _run() -> Any:
    options.start_tensorflow()
    from imagenet import train

    return train.run(options.from_flags(train.Options))


if __name__ == "__main__":
    app.run(main)
