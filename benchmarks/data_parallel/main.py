"""Measures images/s of training on several processes of this machine: `python benchmarks/data_parallel/main.py`."""

import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `data_parallel`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, horovod_slots, program, rounds
from mirrored import options
from mirrored.workload import Workload

from data_parallel import contenders

_DEFAULTS = (Workload("small_cnn", 64, 150, 20, 21), Workload("resnet50", 16, 5, 2, 11))

FLAGS = flags.FLAGS
options.define_flags(_DEFAULTS, "one process")
program.define_contenders(contenders.KINDS)
program.define_processes()
flags.DEFINE_bool("autotune", True, "Whether tf.data chooses its threads and buffers, as it does by default.")
flags.DEFINE_string("before", "", "Another checkout, whose strategies are measured, too: contenders ..._before.")
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    print(environment.describe(("tensorflow", "keras", "numpy", "horovod", "torch")), flush=True)
    names = program.installed(FLAGS.contender, contenders.KINDS)
    names = [name for name in names if FLAGS.before or not name.endswith(contenders.BEFORE)]
    for workload in options.workloads(_DEFAULTS):
        with horovod_slots.rendezvous_of_each() as slots:
            measured = rounds.measure_in_turn(
                contenders.contenders(names, workload, FLAGS.processes, FLAGS.autotune, slots, FLAGS.before),
                workload.num_rounds,
                FLAGS.timeout_seconds,
            )
        program.print_tables(
            f"{workload.model}: {FLAGS.processes} processes, batch {workload.batch_size} each, {workload.num_steps} "
            f"steps, {workload.num_rounds} rounds, tf.data's autotune {'on' if FLAGS.autotune else 'off'}",
            contenders.comparisons(workload.model, names),
            measured,
            "images/s of all processes",
            contenders.efficiencies(measured),
        )


if __name__ == "__main__":
    program.run(main)
