"""Measures steps with an optimizer sharded over processes: `python benchmarks/sharded/main.py`."""

import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `sharded`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, horovod_slots, program, rounds
from harness.turns import by_case

from sharded import contenders, tables
from sharded.cases import MEASURES, Workload

_MODELS = ["mlp", "resnet50"]

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("model", _MODELS, _MODELS, "What to train; repeatable.")
program.define_contenders(contenders.KINDS)
program.define_processes()
flags.DEFINE_integer("rounds", 7, "Measurements of each contender.", lower_bound=1)
flags.DEFINE_integer("mlp_layers", 12, "mlp: dense layers before the last one.", lower_bound=1)
flags.DEFINE_integer("mlp_width", 1024, "mlp: units of each of them.", lower_bound=1)
flags.DEFINE_integer("mlp_batch_size", 64, "mlp: rows of a step in each process.", lower_bound=1)
flags.DEFINE_integer("mlp_steps", 10, "mlp: measured steps in each round.", lower_bound=1)
flags.DEFINE_integer("resnet_batch_size", 16, "ResNet50: images of a step in each process.", lower_bound=1)
flags.DEFINE_integer("resnet_steps", 4, "ResNet50: measured steps in each round.", lower_bound=1)
flags.DEFINE_bool("torch_fused", True, "Whether torch's Adam is its fused kernel, or what torch chooses itself.")
flags.DEFINE_string("before", "", "Another checkout, whose strategies are measured, too: contenders ..._before.")
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    print(environment.describe(("tensorflow", "keras", "numpy", "horovod", "torch")), flush=True)
    names = program.installed(FLAGS.contender, contenders.KINDS)
    names = [name for name in names if FLAGS.before or not name.endswith(contenders.BEFORE)]
    for model in dict.fromkeys(FLAGS.model):
        workload = _workload(model)
        with horovod_slots.rendezvous_of_each() as slots:
            turns = rounds.measure_in_turn(
                contenders.contenders(names, workload, FLAGS.processes, slots, FLAGS.before),
                workload.num_rounds * len(MEASURES),
                FLAGS.timeout_seconds,
                # A step ends when its last process has finished it.
                combine=max,
            )
        measured = by_case(turns, MEASURES)
        times = tables.times_of(measured, names)
        program.print_tables(
            f"{workload.label}: {FLAGS.processes} processes, batch {workload.batch_size} each, {workload.num_steps} "
            f"steps, {workload.num_rounds} rounds",
            tables.comparisons(names),
            times,
            "ms/step",
            tables.shares(times, names),
        )
        print(f"\n{tables.all_measured(measured, names)}", flush=True)


def _workload(model: str) -> Workload:
    if model == "mlp":
        sizes = (FLAGS.mlp_layers, FLAGS.mlp_width, FLAGS.torch_fused)
        return Workload(model, FLAGS.mlp_batch_size, FLAGS.mlp_steps, 3, FLAGS.rounds, *sizes)
    return Workload(model, FLAGS.resnet_batch_size, FLAGS.resnet_steps, 2, FLAGS.rounds, fused=FLAGS.torch_fused)


if __name__ == "__main__":
    program.run(main)
