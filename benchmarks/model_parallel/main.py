"""Measures one model over two processes, as stages and as shards: `python benchmarks/model_parallel/main.py`."""

import sys
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `model_parallel`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, horovod_slots, program, rounds
from harness.turns import by_case

from model_parallel import contenders, tables
from model_parallel.cases import NUM_PARTS, Case, workloads

_MODELS = ["dense", "mlp", "block"]

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("model", _MODELS, _MODELS, "What to train: dense in stages, the others in shards; repeatable.")
program.define_contenders(contenders.KINDS)
flags.DEFINE_integer("rounds", 7, "Measurements of each contender in each case.", lower_bound=1)
flags.DEFINE_integer("steps", 2, "Measured steps in each round.", lower_bound=1)
flags.DEFINE_integer("microbatches", 8, "dense: of a batch.", lower_bound=1)
flags.DEFINE_multi_enum(
    "schedule",
    ["1f1b", "eager_1f1b"],
    ["1f1b", "eager_1f1b"],
    "dense: of our pipelines; torch's is 1F1B beside both. Repeatable.",
)
flags.DEFINE_integer("dense_width", 1024, "dense: units of each of the eight layers.", lower_bound=1)
flags.DEFINE_multi_integer("dense_batch_size", [512, 2048], "dense: rows of a step; repeatable.", lower_bound=1)
flags.DEFINE_integer("mlp_width", 4096, "mlp: units at both ends; four times as many between.", lower_bound=1)
flags.DEFINE_integer("mlp_batch_size", 64, "mlp: rows of a step.", lower_bound=1)
flags.DEFINE_integer("block_width", 1024, "block: units; a multiple of 128.", lower_bound=64)
flags.DEFINE_integer("block_batch_size", 8, "block: sequences of 64 tokens in a step.", lower_bound=1)
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    uneven = [rows for rows in FLAGS.dense_batch_size if rows % FLAGS.microbatches]
    if uneven:
        raise app.UsageError(
            f"torch's micro-batches are equal in size: make --dense_batch_size a multiple of --microbatches. Received: "
            f"{FLAGS.microbatches} micro-batches of {uneven} rows."
        )
    if FLAGS.block_width % (64 * NUM_PARTS):
        raise app.UsageError(
            f"The block's heads of 64 units are shared by {NUM_PARTS} shards: --block_width must be a multiple of "
            f"{64 * NUM_PARTS}. Received: {FLAGS.block_width}."
        )
    cases = [
        Case("dense", FLAGS.dense_width, rows, FLAGS.microbatches, schedule)
        for rows in FLAGS.dense_batch_size
        for schedule in FLAGS.schedule
    ]
    cases += [
        Case("mlp", FLAGS.mlp_width, FLAGS.mlp_batch_size),
        Case("block", FLAGS.block_width, FLAGS.block_batch_size),
    ]
    print(environment.describe(("tensorflow", "keras", "numpy", "horovod", "torch")), flush=True)
    installed = program.installed(FLAGS.contender, contenders.KINDS)
    for workload in workloads(FLAGS.model, cases, FLAGS.steps, FLAGS.rounds):
        names = [name for name in installed if workload.cases[0].axis in contenders.KINDS[name].axes]
        with horovod_slots.rendezvous_of_each() as slots:
            turns = rounds.measure_in_turn(
                contenders.contenders(names, workload, slots),
                workload.num_rounds * len(workload.turns),
                FLAGS.timeout_seconds,
                # Joint work of several processes ends when the last one has finished.
                combine=max,
            )
        measured = by_case(turns, workload.turns)
        own = workload.cases
        program.print_tables(
            f"{own[0].model} over the axis {own[0].axis!r}: {workload.num_steps} steps, {workload.num_rounds} rounds",
            tables.comparisons(own, names),
            {row: values for row, values in measured.items() if row.endswith(", step")},
            "ms/step",
            tables.speedups(own, measured, names),
        )
        for case in own:
            print(f"\n{tables.bounds_table(case, measured, names)}", flush=True)


if __name__ == "__main__":
    program.run(main)
