"""Trains a digit classifier under a strategy: `python examples/mnist/main.py --devices=2`."""

import sys
from pathlib import Path
from typing import Any

from absl import app, flags

if __name__ == "__main__":
    # Seen from the folder above, the example is the package `mnist`, and its `train` is nobody else's.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import options

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "data_dir",
    None,
    "Folder with the four MNIST files (IDX, plain or gzip). Default: the best that is on this machine.",
)
flags.DEFINE_enum(
    "strategy",
    "mirrored",
    options.STRATEGIES,
    "How the devices work together: those of one process; of the processes that strategies.launch has started; of "
    "those that horovodrun has started, one device each.",
)
flags.DEFINE_integer(
    "devices",
    None,
    "Number of GPUs of a process, or of logical CPU devices where there is none. Default: all, or one CPU device.",
    lower_bound=1,
)
flags.DEFINE_integer("epochs", 15, "Times to go through the training images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Global batch size: images in one step on all devices.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate", 2e-3, "First learning rate of Adam, which falls to 0 along a cosine.", lower_bound=0.0
)
flags.DEFINE_float("dropout", 0.25, "Share of the features dropped in training.", lower_bound=0.0, upper_bound=0.9)
flags.DEFINE_integer("seed", 0, "Seed of the weights, the order of the images and dropout.", lower_bound=0)
flags.DEFINE_string("tensorboard_dir", None, "Folder for TensorBoard's logs.")
flags.DEFINE_string("save", None, "Path, ending in .keras, to save the trained model to.")
flags.DEFINE_integer(
    "verbose", 1, "Keras' output: 0 none, 1 a progress bar, 2 a line per epoch.", lower_bound=0, upper_bound=2
)


def main(argv: list[str]) -> None:
    """Runs what the flags say and prints the result as the last line."""
    options.run_program(argv, _run)


def _run() -> Any:
    from mnist import data, idx

    try:
        digits = data.load(FLAGS.data_dir)
    except idx.DataError as error:
        raise options.OptionError(str(error)) from error

    options.start_tensorflow()
    from mnist import train

    return train.run(options.from_flags(train.Options), digits)


if __name__ == "__main__":
    app.run(main)
