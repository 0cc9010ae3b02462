"""Measures experts and tables on two processes of one core each, in turn: `python benchmarks/experts/across.py`."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import Any, Literal

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `experts`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import clusters, environment, horovod_slots, program, rounds
from harness.ratios import Comparison
from harness.turns import by_case, row_of
from harness.workers import Contender, Report
from sharded.cases import MEASURES, SENT, STEP
from sharded.tables import medians

from experts.workload import Table, Workload

#: The greatest time of a step of two processes, relative to one process with the same global batch.
TARGET_OF_EXPERTS = 1 / 1.7
#: The greatest time of a step with a table sharded over two processes, relative to a whole table on each.
TARGET_OF_TABLES = 1 / 10
NUM_SKIPPED = 2
#: The row of two processes that train independently.
HALVES = "two processes, half of the batch each, nothing between them"

Kind = Literal["experts", "table"]

FLAGS = flags.FLAGS
flags.DEFINE_enum("kind", "experts", ["experts", "table"], "A block of experts, or an embedding.")
TABLES = ("keras.layers.Embedding", "ShardedEmbedding")
flags.DEFINE_multi_enum(
    "table", TABLES, TABLES, "Which tables, where memory is too small for both at once; repeatable."
)
flags.DEFINE_integer("table_rows", 10_000_000, "Rows of the table.", lower_bound=2)
flags.DEFINE_integer("columns", 64, "Columns of the table.", lower_bound=1)
flags.DEFINE_integer("lookups", 4096, "Lookups of a global batch.", lower_bound=16)
flags.DEFINE_enum("optimizer", "adagrad", ["sgd", "adagrad", "adam"], "Of the table.")
flags.DEFINE_integer("features", 512, "Of each token.", lower_bound=1)
flags.DEFINE_integer("hidden_dim", 1792, "Of each expert.", lower_bound=1)
flags.DEFINE_integer("tokens", 1024, "Tokens of a global batch.", lower_bound=16)
flags.DEFINE_integer("steps", 10, "Measured steps in each round.", lower_bound=1)
flags.DEFINE_integer("rounds", 9, "Measurements of each contender.", lower_bound=1)
program.define_timeout()


def run_experts(cluster: str, num_parts: int, workload: Workload, report: Report) -> None:
    """Reports measurements of steps of a block until the benchmark ends.

    Args:
        cluster: see `clusters.contender`.
        num_parts: divisor of the global batch, for a process that trains alone.
        workload: its batch is global.
        report: takes a measurement.
        report: takes a measurement.
    """
    import keras
    import numpy as np

    import keras_ext
    import strategies

    strategy = None
    if cluster == "tensorflow":
        strategy = strategies.MultiWorkerMirroredStrategy(mesh={"expert": 2})
    elif cluster == "horovod":
        strategy = strategies.HorovodStrategy(mesh={"expert": 2})
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        block = keras_ext.MixtureOfExperts(workload.num_experts, workload.hidden_dim, workload.top_k)
        model = keras.Sequential([keras.Input((workload.length, workload.features)), block])
        model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)
    shape = (workload.rows // num_parts, workload.length, workload.features)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    _train(model, x, x, workload.num_steps, report)


def run_table(is_sharded: bool, table: Table, report: Report) -> None:
    """Reports measurements of steps of an embedding until the benchmark ends."""
    import keras
    import numpy as np

    import keras_ext
    import strategies

    strategy = strategies.MultiWorkerMirroredStrategy(shard="optimizer" if is_sharded else None)
    keras.utils.set_random_seed(0)
    make = keras_ext.ShardedEmbedding if is_sharded else keras.layers.Embedding
    with strategy.scope():
        made = [keras.Input((8,), dtype="int32"), make(table.rows, table.columns, embeddings_initializer="zeros")]
        model = keras.Sequential([*made, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(table.optimizer, "mse", jit_compile=False)
    x = np.random.default_rng(0).integers(0, table.rows, (table.lookups // 8, 8)).astype("int32")
    _train(model, x, np.zeros((len(x), 1), "float32"), table.num_steps, report)


def _train(model: Any, x: Any, y: Any, num_steps: int, report: Report) -> None:
    """Trains in one `fit`, an epoch per turn; all batches are the same."""
    import tensorflow as tf
    from sharded.keras_training import StepClock

    options = tf.data.Options()
    # Autotuning assumes a core of its own, and each process here has only one.
    options.autotune.enabled = False
    batches = tf.data.Dataset.from_tensors((x, y)).repeat().with_options(options)
    model.fit(
        batches,
        epochs=sys.maxsize,
        steps_per_epoch=NUM_SKIPPED + num_steps,
        callbacks=[StepClock(NUM_SKIPPED, num_steps, report)],
        verbose=0,
        shuffle=False,
    )


def contenders(kind: Kind, workload: Workload, table: Table, horovod_slots: clusters.Slots) -> list[Contender]:
    """Returns all contenders of one kind.

    Args:
        kind: the kind of measurement.
        workload: the sizes for "experts".
        table: the sizes for "table".
        horovod_slots: makes the environments of a Horovod job.
    """
    if kind == "experts":
        rows = [("one process", "none", 1, 1), (HALVES, "none", 2, 2)]
        rows += [("MultiWorkerMirrored, expert=2", "tensorflow", 2, 1), ("Horovod, expert=2", "horovod", 2, 1)]
        return [
            clusters.contender(
                row, functools.partial(run_experts, cluster, parts, workload), cluster, count, horovod_slots
            )
            for row, cluster, count, parts in rows
        ]
    return [
        clusters.contender(row, functools.partial(run_table, row == TABLES[1], table), "tensorflow", 2, horovod_slots)
        for row in dict.fromkeys(FLAGS.table)
    ]


def comparisons(kind: Kind) -> list[Comparison]:
    """Returns the comparisons of times."""
    if kind == "table":
        tables = Comparison("ShardedEmbedding / a table on each", TABLES[1], TABLES[0], TARGET_OF_TABLES, at_most=True)
        return [tables] if set(FLAGS.table) == set(TABLES) else []
    ours = ("MultiWorkerMirrored, expert=2", "Horovod, expert=2")
    return [
        *(Comparison(f"{row} / one process", row, "one process", TARGET_OF_EXPERTS, at_most=True) for row in ours),
        Comparison("half of the batch / one process", HALVES, "one process"),
        *(Comparison(f"{row} / half of the batch", row, HALVES) for row in ours),
    ]


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    print(environment.describe(("tensorflow", "keras", "numpy", "horovod")), flush=True)
    kind, steps = FLAGS.kind, FLAGS.steps
    workload = Workload(8, 2, FLAGS.features, FLAGS.hidden_dim, 8, FLAGS.tokens // 8, steps)
    table = Table(FLAGS.table_rows, FLAGS.columns, FLAGS.lookups, FLAGS.optimizer, steps)
    with horovod_slots.rendezvous_of_each() as slots:
        turns = rounds.measure_in_turn(
            contenders(kind, workload, table, slots),
            FLAGS.rounds * len(MEASURES),
            FLAGS.timeout_seconds,
            # A step ends when its last process has finished it.
            combine=max,
        )
    measured = by_case(turns, MEASURES)
    times = {row: measured[row_of(row, STEP)] for row in turns}
    what = workload if kind == "experts" else table
    program.print_tables(f"{what.label}, {steps} steps, {FLAGS.rounds} rounds", comparisons(kind), times, "ms/step")
    print(f"\n{medians(measured, turns)}", flush=True)
    print(f"\n{SENT.label} by the formula, of two: {what.sent(2) / 1e6:.4g}", flush=True)


if __name__ == "__main__":
    program.run(main)
