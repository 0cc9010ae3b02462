"""Measures GB/s of all-reduce between processes of this machine: `python benchmarks/all_reduce/main.py`."""

import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    # Import the benchmark as the package `all_reduce`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, horovod_slots, program, rounds

from all_reduce import contenders
from all_reduce.cases import by_case, make_cases, num_turns

FLAGS = flags.FLAGS
program.define_contenders(contenders.KINDS)
flags.DEFINE_multi_float("megabytes", [0.1, 1, 10, 100], "Sizes to reduce; repeatable.", lower_bound=0.001)
program.define_processes()
flags.DEFINE_integer("rounds", 7, "Each case is measured twice in each.", lower_bound=1)
flags.DEFINE_bool(
    "processor_time",
    False,
    "Whether to count the seconds of a process' core only: what bytes cost a core that computes.",
)
program.define_timeout(300)


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    print(environment.describe(("tensorflow", "numpy", "horovod", "torch")), flush=True)
    names = program.installed(FLAGS.contender, contenders.KINDS)
    cases = make_cases(list(dict.fromkeys(FLAGS.megabytes)), FLAGS.processor_time)
    with horovod_slots.rendezvous_of_each() as slots:
        turns = rounds.measure_in_turn(
            contenders.contenders(names, cases, FLAGS.processes, slots),
            num_turns(cases, FLAGS.rounds),
            FLAGS.timeout_seconds,
            # An all-reduce ends when its last process has finished it.
            combine=min,
        )
    program.print_tables(
        f"all-reduce: {FLAGS.processes} processes, float32, {FLAGS.rounds} rounds"
        f"{', of processor time' if FLAGS.processor_time else ''}",
        contenders.comparisons(cases, names),
        by_case(turns, cases),
        "GB/s",
    )


if __name__ == "__main__":
    program.run(main)
