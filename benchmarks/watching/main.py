"""Measures steps of two processes with and without a status that is watched: `python benchmarks/watching/main.py`."""

import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `watching`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, program, rounds

from watching import contenders, reading

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 31, "Measurements of each contender.", lower_bound=1)
flags.DEFINE_integer("steps", 200, "Steps of each measurement.", lower_bound=1)
program.define_timeout()


def main() -> None:
    """Measures, and prints the tables to standard output; logs a line per measurement."""
    print(environment.describe(), flush=True)
    selected, port = contenders.contenders(FLAGS.steps)
    with reading.once_a_second(port):
        measured = rounds.measure_in_turn(selected, FLAGS.rounds, FLAGS.timeout_seconds, max)
    program.print_tables(
        f"milliseconds of a step of two processes, {FLAGS.steps} steps in each of {FLAGS.rounds} rounds",
        contenders.COMPARISONS,
        measured,
        "ms",
    )


if __name__ == "__main__":
    program.run(main)
