"""Measures images/s of `model.fit`, ours, stock and plain in turn: `python benchmarks/mirrored/main.py`."""

import sys
from dataclasses import replace
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `mirrored`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, program, rounds

from mirrored import contenders, options, price
from mirrored.workload import Workload

_DEFAULTS = (Workload("small_cnn", 64, 100, 10, 41), Workload("resnet50", 32, 4, 2, 11))

FLAGS = flags.FLAGS
options.define_flags(_DEFAULTS, "all devices")
flags.DEFINE_multi_integer("devices", [2, 4], "Numbers of logical CPU devices; repeatable.", lower_bound=2)
flags.DEFINE_bool("jit", False, "Compile with XLA: plain Keras, and ours. TensorFlow's strategy cannot.")
flags.DEFINE_bool("price", False, "Measure instead what each part of the exactness of ours costs.")
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    workloads = [replace(each, jit_compile=FLAGS.jit) for each in options.workloads(_DEFAULTS)]
    device_counts = list(dict.fromkeys(FLAGS.devices))
    for workload in workloads:
        if any(workload.batch_size % count for count in device_counts):
            # TensorFlow's fails in `fit` when its first batch does not divide; ours has no such limit.
            raise app.UsageError(
                f"TensorFlow's strategy needs batches that divide by the number of devices. Received: "
                f"{workload.batch_size} images for {workload.model}, devices {device_counts}."
            )
    print(environment.describe(), flush=True)
    for workload in workloads:
        if FLAGS.price:
            measured = rounds.measure_in_turn(price.contenders(workload), workload.num_rounds, FLAGS.timeout_seconds)
            compared = price.comparisons(workload.model)
            program.print_tables(f"{workload.model}: the price of exactness", compared, measured, "images/s")
            continue
        measured = rounds.measure_in_turn(
            contenders.contenders(workload, device_counts), workload.num_rounds, FLAGS.timeout_seconds
        )
        program.print_tables(
            f"{workload.model}: global batch {workload.batch_size}, {workload.num_steps} steps, "
            f"{workload.num_rounds} rounds{', with XLA' * workload.jit_compile}",
            contenders.comparisons(device_counts, jit_compile=workload.jit_compile),
            measured,
            "images/s",
        )


if __name__ == "__main__":
    program.run(main)
