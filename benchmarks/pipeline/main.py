"""Measures the gains of models in stages: `python benchmarks/pipeline/main.py`."""

import sys
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `pipeline`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, program

from pipeline import measuring, parts
from pipeline.kinds import KINDS

_PARTS = list(parts.PARTS)
_MOST_STAGES = 8

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("part", _PARTS, _PARTS, "What to find out; repeatable.")
program.define_contenders(KINDS, "What to measure, where a part has it; repeatable.")
flags.DEFINE_multi_integer(
    "stages",
    None,
    "Of the pipelines; repeatable; each part's own if left out.",
    lower_bound=2,
    upper_bound=_MOST_STAGES,
)
flags.DEFINE_multi_integer("microbatches", None, "Of a batch; repeatable; each part's own if left out.", lower_bound=1)
flags.DEFINE_integer("rounds", None, "Measurements of each contender; each part's own if left out.", lower_bound=1)
flags.DEFINE_integer("steps", None, "Measured steps in each round; each part's own if left out.", lower_bound=1)
flags.DEFINE_float("sleep_ms", 20, "sleep: of a stage forward; twice that backward.", lower_bound=0)
flags.DEFINE_integer("width", 1024, "dense, one_stage: units of each of the eight layers.", lower_bound=1)
flags.DEFINE_multi_integer("batch_size", [512, 2048], "dense, one_stage: rows of a step; repeatable.", lower_bound=1)
flags.DEFINE_float("megabytes", 268, "memory: activations between the layers, of a batch.", lower_bound=0)
flags.DEFINE_integer("blocks", 8, "trace: of the transformer.", lower_bound=1)
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    if "trace" in FLAGS.part and FLAGS.blocks < max(FLAGS.stages or [4]):
        raise app.UsageError(
            f"A stage has a block of the transformer at least: raise --blocks, or lower --stages. Received: "
            f"{FLAGS.blocks} blocks."
        )
    uneven = [(rows, m) for rows in FLAGS.batch_size for m in FLAGS.microbatches or [8] if rows % m]
    if "dense" in FLAGS.part and uneven:
        raise app.UsageError(
            f"torch's micro-batches are equal in size: make --batch_size a multiple of their number. Received: batches "
            f"and micro-batches {uneven}."
        )
    sizes = {
        "sleep": FLAGS.sleep_ms,
        "dense": FLAGS.width,
        "one_stage": FLAGS.width,
        "memory": FLAGS.megabytes,
        "trace": FLAGS.blocks,
    }
    print(environment.describe(("tensorflow", "keras", "numpy", "torch")), flush=True)
    for part in dict.fromkeys(FLAGS.part):
        names = program.installed((name for name in parts.PARTS[part].contenders if name in FLAGS.contender), KINDS)
        if not names:
            continue
        workload = parts.workload(
            part, sizes[part], FLAGS.batch_size, FLAGS.stages, FLAGS.microbatches, FLAGS.steps, FLAGS.rounds
        )
        program.print_tables(
            f"{part}: size {sizes[part]:g}, {workload.num_steps} steps, {workload.num_rounds} rounds",
            [each for case in workload.cases for each in parts.comparisons(part, names, case)],
            measuring.measure(workload, names, FLAGS.timeout_seconds),
            parts.PARTS[part].unit,
        )


if __name__ == "__main__":
    program.run(main)
