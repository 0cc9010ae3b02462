"""Measures experts and tables on two processes of one core each, in turn: `python benchmarks/experts/across.py`."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from pathlib import Path
from typing import Any, Literal

from absl import flags

if __name__ == "__main__":
    # Seen from the folder above, the benchmark is the package `experts`, and what it shares is `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import clusters, environment, horovod_slots, program, rounds
from harness.ratios import Comparison
from harness.workers import Contender, Report

from experts.workload import Workload

#: One process with the batch of two: a step of these takes at most so much of its time.
TARGET = 1 / 1.7

Kind = Literal["experts", "table"]

FLAGS = flags.FLAGS
flags.DEFINE_enum("kind", "experts", ["experts", "table"], "A block of experts, or an embedding.")
flags.DEFINE_integer("table_rows", 10_000_000, "Rows of the table.", lower_bound=2)
flags.DEFINE_integer("columns", 64, "Columns of the table.", lower_bound=1)
flags.DEFINE_integer("lookups", 4096, "Lookups of a global batch.", lower_bound=2)
flags.DEFINE_enum("optimizer", "sgd", ["sgd", "adagrad"], "Of the table.")
flags.DEFINE_integer("steps", 10, "Measured steps in each round.", lower_bound=1)
flags.DEFINE_integer("rounds", 9, "Measurements of each contender.", lower_bound=1)
program.define_timeout()


def run_experts(cluster: str, workload: Workload, report: Report) -> None:
    """Reports milliseconds of a step of a block until nobody asks any more; `cluster` as of `contender`."""
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
    shape = (workload.rows, workload.length, workload.features)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    _measure(model, x, x, workload.num_steps, report)


def run_table(
    is_sharded: bool, rows: int, columns: int, lookups: int, optimizer: str, num_steps: int, report: Report
) -> None:
    """Reports milliseconds of a step of an embedding until nobody asks any more."""
    import keras
    import numpy as np

    import keras_ext
    import strategies

    strategy = strategies.MultiWorkerMirroredStrategy(shard="optimizer" if is_sharded else None)
    keras.utils.set_random_seed(0)
    table = keras_ext.ShardedEmbedding if is_sharded else keras.layers.Embedding
    with strategy.scope():
        made = [keras.Input((8,), dtype="int32"), table(rows, columns, embeddings_initializer="zeros")]
        model = keras.Sequential([*made, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(optimizer, "mse", jit_compile=False)
    x = np.random.default_rng(0).integers(0, rows, (lookups // 8, 8)).astype("int32")
    _measure(model, x, np.zeros((len(x), 1), "float32"), num_steps, report)


def _measure(model: Any, x: Any, y: Any, num_steps: int, report: Report) -> None:
    """Reports milliseconds of a step of ``fit``, whose batches are all the same."""
    import numpy as np

    rows = len(x)
    x, y = (np.concatenate([each] * num_steps) for each in (x, y))
    while True:
        # Warms up what has cooled down while waiting.
        model.fit(x[:rows], y[:rows], batch_size=rows, verbose=0)
        start = time.perf_counter()
        model.fit(x, y, batch_size=rows, shuffle=False, verbose=0)
        report((time.perf_counter() - start) / num_steps * 1e3)


def contenders(kind: Kind, horovod_slots: clusters.Slots) -> list[Contender]:
    """All contenders of one kind.

    Args:
        kind: of what is measured.
        horovod_slots: makes the environments of one Horovod job.
    """
    if kind == "experts":
        # As much for each of two processes as `main.py` has for one.
        workload = Workload(8, 2, 512, 1792, 8, 128, FLAGS.steps)
        found = [("one process", "none", 1), ("MultiWorkerMirrored, expert=2", "tensorflow", 2)]
        found.append(("Horovod, expert=2", "horovod", 2))
        return [
            clusters.contender(row, functools.partial(run_experts, cluster, workload), cluster, count, horovod_slots)
            for row, cluster, count in found
        ]
    sizes = (FLAGS.table_rows, FLAGS.columns, FLAGS.lookups, FLAGS.optimizer, FLAGS.steps)
    return [
        clusters.contender(row, functools.partial(run_table, is_sharded, *sizes), "tensorflow", 2, horovod_slots)
        for row, is_sharded in (("keras.layers.Embedding", False), ("ShardedEmbedding", True))
    ]


def comparisons(kind: Kind) -> list[Comparison]:
    """Returns the comparisons."""
    if kind == "table":
        return [Comparison("ShardedEmbedding / a table on each", "ShardedEmbedding", "keras.layers.Embedding")]
    return [
        Comparison(f"{row} / one process", row, "one process", TARGET, at_most=True)
        for row in ("MultiWorkerMirrored, expert=2", "Horovod, expert=2")
    ]


def main() -> None:
    """Runs what the flags say; the tables go to standard output, a line for each measurement to the log."""
    print(environment.describe(("tensorflow", "keras", "numpy")), flush=True)
    with horovod_slots.rendezvous_of_each() as slots:
        measured = rounds.measure_in_turn(contenders(FLAGS.kind, slots), FLAGS.rounds, FLAGS.timeout_seconds)
    title = "8 experts, top 2, 512 x 1792, 1024 tokens"
    if FLAGS.kind == "table":
        title = f"{FLAGS.table_rows:,} x {FLAGS.columns}, {FLAGS.lookups} lookups, {FLAGS.optimizer}"
    program.print_tables(
        f"{title}, {FLAGS.steps} steps, {FLAGS.rounds} rounds", comparisons(FLAGS.kind), measured, "ms a step"
    )


if __name__ == "__main__":
    program.run(main)
