"""Measures GB/s of all-reduce between processes of this machine: `python benchmarks/all_reduce/main.py`."""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

from absl import app, flags, logging

_BENCHMARKS = Path(__file__).resolve().parents[1]
_KINDS = ("multi_worker", "stock", "horovod", "raw_horovod", "torch")

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("contender", list(_KINDS), list(_KINDS), "What to measure; repeatable.")
flags.DEFINE_multi_float("megabytes", [0.1, 1, 10, 100], "Sizes to reduce; repeatable.", lower_bound=0.001)
flags.DEFINE_integer("processes", 2, "Processes of each contender, with one core and one thread each.", lower_bound=2)
flags.DEFINE_integer("rounds", 7, "Each case is measured twice in each.", lower_bound=1)
flags.DEFINE_bool(
    "processor_time",
    False,
    "Whether to count the seconds of a process' core only: what bytes cost a core that computes.",
)
flags.DEFINE_float(
    "timeout_seconds", 300, "How long a contender may take to start, and for one measurement.", lower_bound=1
)


def main(argv: list[str]) -> None:
    """Runs what the flags say; the tables go to standard output, a line for each measurement to the log."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are understood, received {argv[1:]}.")
    if not FLAGS["verbosity"].present:
        logging.set_verbosity(logging.INFO)
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Processes on cores are what is measured.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    from harness import environment, horovod_slots, ratios, rounds

    from all_reduce import contenders
    from all_reduce.cases import by_case, make_cases, num_turns

    print(environment.describe(("tensorflow", "numpy", "horovod", "torch")), flush=True)
    names = []
    for name in dict.fromkeys(FLAGS.contender):
        if importlib.util.find_spec(contenders.KINDS[name].requires) is None:
            print(f"Left out: {contenders.KINDS[name].row}; {contenders.KINDS[name].requires} is not installed.")
        else:
            names.append(name)
    cases = make_cases(list(dict.fromkeys(FLAGS.megabytes)), FLAGS.processor_time)
    with contextlib.ExitStack() as stack:
        turns = rounds.measure_in_turn(
            contenders.contenders(
                names, cases, FLAGS.processes, lambda count: stack.enter_context(horovod_slots.rendezvous(count))
            ),
            num_turns(cases, FLAGS.rounds),
            FLAGS.timeout_seconds,
            # An all-reduce has ended when it has ended everywhere.
            combine=min,
        )
    measured = by_case(turns, cases)
    print(
        f"\n## all-reduce: {FLAGS.processes} processes, float32, {FLAGS.rounds} rounds"
        f"{', of processor time' if FLAGS.processor_time else ''}\n\n"
        f"{ratios.ratio_table(contenders.comparisons(cases, names), measured)}\n\n"
        f"{ratios.value_table(measured, 'GB/s')}",
        flush=True,
    )


if __name__ == "__main__":
    # Seen from the folder above, the benchmark is the package `all_reduce`, and what it shares is `harness`.
    sys.path.insert(0, str(_BENCHMARKS))
    # In a clone with nothing installed, the library is the clone's own. An installed one comes first:
    # it is what the user means to run, and the clone's may be of another version.
    if importlib.util.find_spec("strategies") is None:
        sys.path.append(str(_BENCHMARKS.parent))
    app.run(main)
