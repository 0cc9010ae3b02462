"""Measures the first step of `model.fit`, ours, stock and plain in turn: `python benchmarks/first_step/main.py`."""

import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `first_step`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, program, rounds

from first_step import contenders

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("model", contenders.MODELS, contenders.MODELS, "What to train; repeatable.")
flags.DEFINE_multi_integer("devices", [2, 4, 8], "Numbers of logical CPU devices; repeatable.", lower_bound=2)
flags.DEFINE_integer("rounds", 3, "Measurements of each contender.", lower_bound=1)
flags.DEFINE_integer("blocks", 12, "Blocks of the GPT.", lower_bound=1)
flags.DEFINE_bool("memory", False, "Measure the growth of resident memory up to the end of the step, not its time.")
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    print(environment.describe(), flush=True)
    device_counts = sorted(set(FLAGS.devices))
    for model in dict.fromkeys(FLAGS.model):
        measured = rounds.measure_in_turn(
            contenders.contenders(model, FLAGS.blocks, device_counts, of_memory=FLAGS.memory),
            FLAGS.rounds,
            FLAGS.timeout_seconds,
        )
        program.print_tables(
            f"{model}: first step, {FLAGS.rounds} rounds",
            contenders.comparisons(model, device_counts, of_memory=FLAGS.memory),
            measured,
            "MB" if FLAGS.memory else "s",
        )


if __name__ == "__main__":
    program.run(main)
