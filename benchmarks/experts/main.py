"""Measures training steps of mixtures of experts, sparse and dense, in turn: `python benchmarks/experts/main.py`."""

import os
import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `experts`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, program, rounds

from experts import contenders
from experts.workload import Workload

FLAGS = flags.FLAGS
flags.DEFINE_integer("experts", 8, "Number of experts.", lower_bound=1)
flags.DEFINE_integer("top_k", 2, "Experts that each token takes.", lower_bound=1)
flags.DEFINE_integer("features", 512, "Size of a token.", lower_bound=1)
flags.DEFINE_integer("hidden_dim", 1792, "Size between the two projections of an expert.", lower_bound=1)
flags.DEFINE_integer("rows", 4, "Rows of a batch.", lower_bound=1)
flags.DEFINE_integer("length", 128, "Tokens of a row.", lower_bound=1)
flags.DEFINE_integer("steps", 2, "Measured steps in each round.", lower_bound=1)
flags.DEFINE_integer("rounds", 9, "Measurements of each contender.", lower_bound=1)
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    workload = Workload(
        FLAGS.experts, FLAGS.top_k, FLAGS.features, FLAGS.hidden_dim, FLAGS.rows, FLAGS.length, FLAGS.steps
    )
    print(environment.describe(("tensorflow", "keras", "keras-hub", "numpy")), flush=True)
    core = max(os.sched_getaffinity(0))
    measured = rounds.measure_in_turn(contenders.contenders(workload, core), FLAGS.rounds, FLAGS.timeout_seconds)
    program.print_tables(
        f"{workload.num_experts} experts, top {workload.top_k}, {workload.features} x {workload.hidden_dim}, "
        f"{workload.rows * workload.length} tokens, {workload.num_steps} steps, {FLAGS.rounds} rounds",
        contenders.comparisons(),
        measured,
        "ms a step",
    )


if __name__ == "__main__":
    program.run(main)
