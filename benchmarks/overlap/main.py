"""Shows how much of the all-reduce overlaps with the backward pass: `python benchmarks/overlap/main.py`."""

import contextlib
import functools
import os
import sys
import tempfile
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `overlap`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_parallel.contenders import KINDS
from harness import clusters, environment, horovod_slots, program
from harness.workers import Workers
from mirrored.workload import Workload

from overlap import contenders

FLAGS = flags.FLAGS
program.define_contenders(("multi_worker", "horovod"), "The strategy; repeatable.")
flags.DEFINE_enum("model", "resnet50", ["small_cnn", "resnet50"], "What to train.")
flags.DEFINE_integer("batch_size", 16, "Images in one step of one process.", lower_bound=1)
program.define_processes()
program.define_timeout(300)


def main() -> None:
    """Traces each strategy in turn and prints the median of its traced steps."""
    # Allows a program to start and stop Horovod's timeline.
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    print(environment.describe(("tensorflow", "keras", "horovod")), flush=True)
    workload = Workload(FLAGS.model, FLAGS.batch_size, num_steps=1, num_skipped=3, num_rounds=1)
    for name in dict.fromkeys(FLAGS.contender):
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            contender = clusters.contender(
                KINDS[name].row,
                functools.partial(contenders.run, name, workload, folder),
                KINDS[name].cluster,
                FLAGS.processes,
                stack.enter_context(horovod_slots.rendezvous_of_each()),
            )
            stack.callback(Workers(contender, FLAGS.timeout_seconds).stop)
            print(f"\n## {KINDS[name].row}, {FLAGS.model}: {(folder / 'seen.txt').read_text()}", flush=True)


if __name__ == "__main__":
    program.run(main)
