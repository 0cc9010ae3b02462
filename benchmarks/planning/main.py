"""Compares predicted steps with measured ones: `python benchmarks/planning/main.py`."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Import the benchmark as the package `planning`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags, logging
from harness import environment, program, rounds

from planning import cases, contenders, tables

FLAGS = flags.FLAGS
flags.DEFINE_multi_enum("model", list(cases.MODELS), list(cases.MODELS), "What to train; repeatable.")
flags.DEFINE_multi_string("setting", None, "Only the settings whose names contain this text; repeatable.")
flags.DEFINE_integer("rounds", 5, "Measurements of each setting, and predictions.", lower_bound=1)
flags.DEFINE_integer("steps", 5, "Measured steps in each round.", lower_bound=1)
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    print(environment.describe(("tensorflow", "keras", "numpy")), flush=True)
    links = measured_links()
    print(f"\nBetween two processes: {json.dumps(links)}", flush=True)
    rows: list[tables.Row] = []
    for model in dict.fromkeys(FLAGS.model):
        own = _rows(cases.Workload(model, cases.MODELS[model], FLAGS.steps, FLAGS.rounds), links)
        print(f"\n## {model}, {cases.MODELS[model]} rows\n\n{tables.table(own)}", flush=True)
        rows += own
    print(f"\n## All\n\n{tables.summary(rows)}", flush=True)


def _rows(workload: cases.Workload, links: dict[str, Any]) -> list[tables.Row]:
    wanted = FLAGS.setting or [""]
    settings = [each for each in workload.settings if any(text in each.name for text in wanted)]
    with tempfile.TemporaryDirectory() as folder:
        measured = rounds.measure_in_turn(
            contenders.contenders(workload, settings, links, folder),
            workload.num_rounds,
            FLAGS.timeout_seconds,
            combine=max,
        )
        predictions = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("predicted_*.json"))]
        held = {each.name: int(Path(folder, f"{each.name}.bytes").read_text()) for each in settings}
        partitions = {
            each.name: json.loads(Path(folder, f"{each.name}.partition").read_text())
            for each in settings
            if each.pipeline
        }
    # The first prediction was made while its process started.
    predictions = predictions[1:] or predictions
    return [
        tables.Row(
            workload.model,
            setting,
            statistics.median(measured[setting.name]),
            statistics.median(each[setting.name] for each in predictions),
            held[setting.name],
            planned_bytes(workload, setting, partitions.get(setting.name)),
        )
        for setting in settings
    ]


def planned_bytes(workload: cases.Workload, setting: cases.Setting, partition: list[int] | None) -> int:
    """Returns the bytes that `memory_plan` has for a device apart from activations.

    Args:
        workload: the model and its batch.
        setting: the mesh.
        partition: positions of the layers with which the stages of a pipeline begin, apart from the first one.
    """
    import keras_ext

    def make_model() -> Any:
        model = cases.make_model(workload.model)
        if partition is None:
            return model
        stages = setting.mesh["pipe"]
        starts = [model.layers[position].name for position in partition]
        return keras_ext.PipelineModel(model, stages, **{**setting.pipeline, "partition": starts})

    # These bytes do not depend on rows. With few rows, activations do not decide which device has the most.
    rows = setting.mesh.get("data", 1) * setting.pipeline.get("num_microbatches", 1)
    plan = keras_ext.memory_plan(make_model, batch_size=rows, mesh=setting.mesh, shard=setting.shard)
    return plan.together - (plan.activations or 0)


def measured_links() -> dict[str, Any]:
    """Returns what the doctor measures between two processes along each axis."""
    found: dict[str, Any] = {}
    for axis in ("data", "pipe", "tensor"):
        command = [sys.executable, "-m", "strategies.launch", "--nproc-per-node=2", "-m", "strategies.doctor"]
        command += [f"--mesh={axis}=2", "--json", "--max-mb=10"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=FLAGS.timeout_seconds)
        report = json.loads(next(line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line))
        logging.info("links along %s", axis)
        found[axis] = report["mesh_axes"][axis]
    return found


if __name__ == "__main__":
    program.run(main)
