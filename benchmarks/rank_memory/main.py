"""Measures the memory of each rank of a model over several processes: `python benchmarks/rank_memory/main.py`."""

import sys
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `rank_memory`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, horovod_slots, program

from rank_memory import measuring, tables
from rank_memory.cases import Case

_MESHES = {"pipe=4": {"pipe": 4}, "tensor=4": {"tensor": 4}, "pipe=2,tensor=2": {"pipe": 2, "tensor": 2}}
_MESHES |= {"pipe=2": {"pipe": 2}, "tensor=2": {"tensor": 2}}
_CLUSTERS = {"multi_worker": "tensorflow", "horovod": "horovod"}
_OF_FOUR = ["pipe=4", "tensor=4", "pipe=2,tensor=2"]

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("mesh", _OF_FOUR, list(_MESHES), "A process for each device of it; repeatable.")
flags.DEFINE_enum("strategy", "multi_worker", list(_CLUSTERS), "What joins the processes.")
flags.DEFINE_integer("layers", 16, "Layers of the model; a multiple of the stages.", lower_bound=1)
flags.DEFINE_integer("width", 4096, "Units of each layer; twice a multiple of the shards.", lower_bound=1)
flags.DEFINE_bool("frees_at_once", False, "Let allocators return memory that is freed, instead of keeping it.")
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output."""
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


if __name__ == "__main__":
    program.run(main)
