"""Measures how long saving a checkpoint stops training, with two processes: `python benchmarks/checkpoints/main.py`."""

import contextlib
import sys
import tempfile
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `checkpoints`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, program, rounds

from checkpoints import contenders

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 9, "Measurements of each contender.", lower_bound=1)
flags.DEFINE_integer("megabytes", 400, "Bytes of weights and slots, in MB.", lower_bound=1)
flags.DEFINE_string("folder", None, "Where the checkpoints are written. Default: a temporary folder.")
program.define_timeout()


def main() -> None:
    """Measures, and prints the tables to standard output; logs a line per measurement."""
    print(environment.describe(), flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(FLAGS.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        selected = contenders.contenders(folder, FLAGS.megabytes)
        measured = rounds.measure_in_turn(selected, FLAGS.rounds, FLAGS.timeout_seconds, contenders.combine)
        program.print_tables(
            f"seconds to save {FLAGS.megabytes} MB from two processes, {FLAGS.rounds} rounds",
            contenders.comparisons(),
            measured,
            "seconds",
        )


if __name__ == "__main__":
    program.run(main)
