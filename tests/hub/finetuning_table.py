"""Fine-tunes every task on every mesh in every way, and writes the table in docs.

``python -m tests.hub.finetuning_table docs/numbers/finetuning_table.md``; rows that are not measured stay as they are
in the table, so that it can be measured in parts: ``... --only Llama GPT2 --ways LoRA --meshes tensor=2``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from tests.measured import measured_today

_LIMIT_SECONDS = 1800
_MESHES = ("data=2", "shard=weights", "tensor=2", "pipe=2", "data=2, tensor=2", "pipe=2, tensor=2")
_WAYS = ("full", "LoRA", "QLoRA")
_HEAD = """# Fine-tuning KerasHub's tasks on meshes

Written by `python -m tests.hub.finetuning_table docs/numbers/finetuning_table.md`: tasks of {version} as small models
with random weights, made and adapted in the strategy's scope, split by `parallelize(task)` and `PipelineModel(task,
num_microbatches=2)` where the mesh has these axes, trained with Adam for two epochs of ten rows in batches of four,
under `MirroredStrategy` over logical CPU devices, beside plain Keras on one device.

LoRA is `task.backbone.enable_lora(2)`, with names of layers for {adapted}, none of whose layers has a name of
KerasHub's default; QLoRA is `task.quantize("int8")` before it. `shard=weights` is on two replicas. Mixtral and QwenMoe,
whose routers add a loss that is no mean over rows, are given `replace_experts(task)` first, except for QLoRA. Under
`tensor` each device holds its part of int8 kernels and tables, too; layers quantized to int4 or float8 would stay
whole. {measured}

A figure is the largest difference of losses, metrics, all weights, predictions and `score`, and of weights and
predictions of the file and of the preset as plain KerasHub opens them, relative where numbers are above 1. Generated
tokens, from prompts of different lengths, are equal. The limit is 1e-6; where it is not met, or a mesh is refused, the
reason is below.

GPT2, Llama, Gemma, Qwen3 and BartSeq2SeqLM were trained in each way over two processes, too, of
`MultiWorkerMirroredStrategy` and of `HorovodStrategy`, on `tensor=2`, `pipe=2` and `shard=weights` (`python -m
tests.hub.finetuning_processes` under a launcher): the differences are at most 4.5e-07, and of Gemma 1.8e-06, as in the
table.

| task | way | {meshes} |
|---|---|{lines}|
"""

#: Cells of the table by mesh, of a row by task and way.
Rows = dict[tuple[str, str], dict[str, str]]


def main() -> None:
    """Measures rows, and writes the table after each one."""
    parser = argparse.ArgumentParser(prog="python -m tests.hub.finetuning_table", description="Writes the table.")
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", help="names; all others stay as they are in the table")
    parser.add_argument("--ways", nargs="*", default=_WAYS, choices=_WAYS)
    parser.add_argument("--meshes", nargs="*", default=_MESHES, choices=_MESHES)
    parser.add_argument("--missing", action="store_true", help="only cells that are not in the table")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "WAY"), help="prints the cells of one row, each on a line")
    arguments = parser.parse_args()
    if arguments.one:
        _print_cells(arguments.one[0], arguments.one[1], arguments.meshes)
        return
    from tests.hub.tasks import FAMILIES

    rows = _read(arguments.table)
    for name in arguments.only or FAMILIES:
        for way in arguments.ways:
            known = rows.setdefault((name, way), {})
            wanted = [mesh for mesh in arguments.meshes if not (arguments.missing and mesh in known)]
            if wanted:
                known |= _measured(name, way, wanted)
                _write(arguments.table, rows)
                print(name, way, {mesh: known.get(mesh) for mesh in wanted}, flush=True)


def _measured(name: str, way: str, meshes: list[str]) -> dict[str, str]:
    """Returns the cells of a row, measured in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hub.finetuning_table", "--one", name, way, "--meshes", *meshes],
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"mesh"')]
    if done.returncode:
        print(f"{name}, {way}: {done.stderr[-1500:]}", flush=True)
    found = [json.loads(line) for line in lines]
    return {each["mesh"]: each["cell"] for each in found}


def _print_cells(name: str, way: str, meshes: list[str]) -> None:
    """Prints the cells of a row, with their reasons inline."""
    warnings.simplefilter("ignore")
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    # Rewriting the graphs takes most of the time.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    from tests.hub.finetuning import cell

    for mesh in meshes:
        print("\n" + json.dumps({"mesh": mesh, "cell": cell(name, way, mesh)}), flush=True)


def _read(table: Path) -> Rows:
    """Returns the rows of a table, with their reasons inline again."""
    if not table.exists():
        return {}
    text = table.read_text()
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE))
    rows: Rows = {}
    for line in re.findall(r"^\| (\w+ \| (?:full|LoRA|QLoRA) \|.*) \|$", text, re.MULTILINE):
        name, way, *cells = line.split(" | ")
        whole = [re.sub(r" <sup>(\d+)</sup>", lambda found: f" [{reasons[found[1]]}]", each) for each in cells]
        rows[name, way] = {mesh: each for mesh, each in zip(_MESHES, whole, strict=True) if each != "?"}
    return rows


def _write(table: Path, rows: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
    from tests.hub.tasks import ADAPTED

    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f" <sup>{numbers.setdefault(found[1], len(numbers) + 1)}</sup>"

    version = f"KerasHub {importlib.metadata.version('keras-hub')}"
    *first, last = ADAPTED
    adapted = f"{', '.join(first)} and {last}"
    head = _HEAD.format(
        measured=measured_today(),
        version=version,
        adapted=adapted,
        meshes=" | ".join(_MESHES),
        lines="---|" * (len(_MESHES) - 1) + "---",
    )
    order = sorted(rows, key=lambda each: (each[0], _WAYS.index(each[1])))
    body = []
    for name, way in order:
        cells = [re.sub(r" \[([^\]]*)\]", numbered, rows[name, way].get(mesh, "?")) for mesh in _MESHES]
        body.append(f"| {name} | {way} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}" for reason, number in numbers.items()]
    left_out = "?: not measured yet." if any("?" in line for line in body) else ""
    parts = ["\n".join(body), left_out, "\n".join(notes)]
    table.write_text(head + "\n\n".join(part for part in parts if part) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
