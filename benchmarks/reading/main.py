"""Measures images/s and core of reading images, with our code and Keras': `python benchmarks/reading/main.py`."""

import contextlib
import sys
import tempfile
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `reading`, the shared code as `harness`, and the measured code as the example
    # `imagenet`.
    _BENCHMARKS = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(_BENCHMARKS), str(_BENCHMARKS.parent / "examples")]

from harness import environment, program, rounds

from reading import contenders
from reading.workload import Workload

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("clock", ["cpu", "wall"], ["cpu", "wall"], "What seconds are measured in; repeatable.")
flags.DEFINE_integer("rounds", 15, "Measurements of each contender, by each clock.", lower_bound=1)
flags.DEFINE_integer("images", 400, "Images that are read repeatedly.", lower_bound=10)
flags.DEFINE_integer("min_side", 375, "Shortest side of the images, pixels.", lower_bound=1)
flags.DEFINE_integer("max_side", 500, "Longest side of the images, pixels.", lower_bound=1)
flags.DEFINE_integer("image_size", 224, "Height and width of the outputs, pixels.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Images in a batch.", lower_bound=1)
flags.DEFINE_integer("batches", 20, "Measured batches in each round.", lower_bound=1)
flags.DEFINE_string("folder", None, "Where the images are made, and kept. Default: a temporary folder.")
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    if FLAGS.min_side > FLAGS.max_side:
        raise app.UsageError(f"--min_side is above --max_side. Received: {FLAGS.min_side}, {FLAGS.max_side}.")
    # Not at module level, which the contenders' processes import, too: their environment must be set first.
    from reading import images

    print(environment.describe(), flush=True)
    with contextlib.ExitStack() as stack:
        folder = FLAGS.folder or stack.enter_context(tempfile.TemporaryDirectory())
        folders, records = images.make(Path(folder), FLAGS.images, FLAGS.min_side, FLAGS.max_side)
        files = list((folders / "val").rglob("*.JPEG"))
        mean_bytes = sum(file.stat().st_size for file in files) / len(files)
        for clock in dict.fromkeys(FLAGS.clock):
            workload = Workload(folders, records, FLAGS.image_size, FLAGS.batch_size, FLAGS.batches, clock)
            unit = "images/s and core" if clock == "cpu" else "images/s"
            program.print_tables(
                f"{unit}: {len(files)} images of {FLAGS.min_side} to {FLAGS.max_side} pixels, "
                f"{mean_bytes / 1000:.0f} KB, to {FLAGS.image_size}, batches of {FLAGS.batch_size}, "
                f"{FLAGS.batches} batches, {FLAGS.rounds} rounds",
                contenders.comparisons(),
                rounds.measure_in_turn(contenders.contenders(workload), FLAGS.rounds, FLAGS.timeout_seconds),
                unit,
            )


if __name__ == "__main__":
    program.run(main)
