"""Measures the memory of each rank of a model over several processes: `python benchmarks/rank_memory/main.py`."""

import sys
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `rank_memory`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, horovod_slots, program

from rank_memory import measuring, preset_cases, tables
from rank_memory.cases import Case

_MESHES = {"pipe=4": {"pipe": 4}, "tensor=4": {"tensor": 4}, "pipe=2,tensor=2": {"pipe": 2, "tensor": 2}}
_MESHES |= {"pipe=2": {"pipe": 2}, "tensor=2": {"tensor": 2}}
_CLUSTERS = {"multi_worker": "tensorflow", "horovod": "horovod"}
_OF_PRESETS = {"tensor=4": {"tensor": 4}, "tensor=2": {"tensor": 2}, "data=4": {"data": 4}, "data=2": {"data": 2}}
_OF_FOUR = ["pipe=4", "tensor=4", "pipe=2,tensor=2"]

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("mesh", _OF_FOUR, list(_MESHES), "A process for each device of it; repeatable.")
flags.DEFINE_enum("strategy", "multi_worker", list(_CLUSTERS), "What joins the processes.")
flags.DEFINE_integer("layers", 16, "Layers of the model; a multiple of the stages.", lower_bound=1)
flags.DEFINE_integer("width", 4096, "Units of each layer; twice a multiple of the shards.", lower_bound=1)
flags.DEFINE_multi_enum(
    "preset", [], list(_OF_PRESETS), "Measure loading a preset onto this mesh, instead of the model; repeatable."
)
flags.DEFINE_bool("frees_at_once", False, "Let allocators return memory that is freed, instead of keeping it.")
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output."""
    if FLAGS.preset:
        _measure_presets()
        return
    cases = [Case(_MESHES[mesh], FLAGS.layers, FLAGS.width) for mesh in dict.fromkeys(FLAGS.mesh)]
    for case in cases:
        shards = case.mesh.get("tensor", 1)
        if case.num_layers % case.num_stages or case.width % (2 * shards):
            raise app.UsageError(
                f"The ranks of {case.label} cannot hold equal parts: make --layers a multiple of {case.num_stages}, "
                f"--width one of {2 * shards}. Received: {case.num_layers} layers of {case.width} units."
            )
    print(environment.describe(("tensorflow", "keras", "numpy", "horovod")), flush=True)
    for case in cases:
        with horovod_slots.rendezvous_of_each() as slots:
            measured = measuring.measure(
                case,
                _CLUSTERS[FLAGS.strategy],
                slots,
                frees_at_once=FLAGS.frees_at_once,
                timeout_seconds=FLAGS.timeout_seconds,
            )
        print(f"\n## {case.label}, {FLAGS.strategy}, {case.num_layers} layers of {case.width} units\n")
        print(tables.table(case, measured), flush=True)


def _measure_presets() -> None:
    width, num_layers = FLAGS.width, FLAGS.layers
    if width % 64:
        raise app.UsageError(f"A preset has 16 heads: make --width a multiple of 64. Received: {width}.")
    print(environment.describe(("tensorflow", "keras", "keras-hub", "horovod")), flush=True)
    for mesh in dict.fromkeys(FLAGS.preset):
        case = preset_cases.PresetCase(_OF_PRESETS[mesh], num_layers, width)
        with horovod_slots.rendezvous_of_each() as slots:
            small, large = measuring.measure_preset(
                case,
                _CLUSTERS[FLAGS.strategy],
                slots,
                frees_at_once=FLAGS.frees_at_once,
                timeout_seconds=FLAGS.timeout_seconds,
            )
        print(f"\n## A preset, {case.label}, {FLAGS.strategy}, {num_layers} layers of width {width}\n")
        print(preset_cases.table(case, small, large), flush=True)


if __name__ == "__main__":
    program.run(main)
