"""Measures the speedup of split layers over one device: `python benchmarks/tensor_parallel/main.py`."""

import sys
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `tensor_parallel`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, program, rounds

from tensor_parallel import contenders
from tensor_parallel.workload import Workload

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("model", ["mlp", "block"], ["mlp", "block"], "What to train; repeatable.")
program.define_contenders(contenders.KINDS)
flags.DEFINE_integer("shards", 2, "Shards of the split contenders, with one core and one thread each.", lower_bound=2)
flags.DEFINE_integer("rounds", 11, "Measurements of each contender.", lower_bound=1)
flags.DEFINE_integer("steps", 2, "Measured steps in each round.", lower_bound=1)
flags.DEFINE_integer("mlp_width", 4096, "Units at both ends of the MLP; four times as many between.", lower_bound=1)
flags.DEFINE_integer("mlp_batch_size", 64, "Rows of a step of the MLP.", lower_bound=1)
flags.DEFINE_integer("block_width", 1024, "Units of the transformer block; a multiple of 64.", lower_bound=64)
flags.DEFINE_integer("block_batch_size", 8, "Sequences of 64 tokens in a step of the block.", lower_bound=1)
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    if FLAGS.block_width % (64 * FLAGS.shards):
        raise app.UsageError(
            f"The block's heads of 64 units are shared by {FLAGS.shards} shards: --block_width must be a multiple of "
            f"{64 * FLAGS.shards}. Received: {FLAGS.block_width}."
        )
    known = {
        "mlp": (FLAGS.mlp_width, FLAGS.mlp_batch_size),
        "block": (FLAGS.block_width, FLAGS.block_batch_size),
    }
    print(environment.describe(("tensorflow", "keras", "numpy", "torch", "jax")), flush=True)
    names = program.installed(FLAGS.contender, contenders.KINDS)
    for model in dict.fromkeys(FLAGS.model):
        workload = Workload(model, *known[model], FLAGS.steps, FLAGS.rounds)
        measured = rounds.measure_in_turn(
            contenders.contenders(names, workload, FLAGS.shards),
            workload.num_rounds,
            FLAGS.timeout_seconds,
            # Every row needs all shards.
            combine=min,
        )
        program.print_tables(
            f"{model}: width {workload.width}, batch {workload.batch_size}, {FLAGS.shards} shards, "
            f"{workload.num_steps} steps, {workload.num_rounds} rounds",
            contenders.comparisons(model, names, FLAGS.shards),
            measured,
            "rows/s",
            contenders.speedups(measured, FLAGS.shards),
        )


if __name__ == "__main__":
    program.run(main)
