"""Plans what fits on machines: ``python -m tests.hub.fits docs/guides/fine_tuning.md`` writes the table of the page."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import keras_hub

import keras_ext

ROWS, TOKENS, RANK = 8, 1024, 16
#: The share of a device's memory that a plan may fill: what operations inside of layers hold is not counted.
SHARE = 0.8
HEAD = "| model | way | {machines} |\n|---|---|{lines}|\n"
BEGIN, END = "<!-- written by tests.hub.fits -->\n", "<!-- end -->\n"

#: Classes and sizes, as of published models.
MODELS: Mapping[str, tuple[str, Mapping[str, int | bool]]] = {
    "2B (Gemma)": (
        "Gemma",
        {
            "vocabulary_size": 256000,
            "num_layers": 18,
            "num_query_heads": 8,
            "num_key_value_heads": 1,
            "hidden_dim": 2048,
            "intermediate_dim": 32768,
            "head_dim": 256,
        },
    ),
    "7B (Mistral)": (
        "Mistral",
        {
            "vocabulary_size": 32000,
            "num_layers": 32,
            "num_query_heads": 32,
            "num_key_value_heads": 8,
            "hidden_dim": 4096,
            "intermediate_dim": 14336,
        },
    ),
    "27B (Gemma 2)": (
        "Gemma",
        {
            "vocabulary_size": 256000,
            "num_layers": 46,
            "num_query_heads": 32,
            "num_key_value_heads": 16,
            "hidden_dim": 4608,
            "intermediate_dim": 73728,
            "head_dim": 128,
            "use_post_ffw_norm": True,
            "use_post_attention_norm": True,
        },
    ),
}
WAYS = ("full", "LoRA", "QLoRA")


@dataclass(frozen=True)
class Machine:
    """Devices of one kind.

    Attributes:
        num_devices: the number of devices.
        gigabytes: the memory of each.
    """

    num_devices: int
    gigabytes: int

    def __str__(self) -> str:
        return f"{self.num_devices} x {self.gigabytes} GB"

    def meshes(self) -> Iterator[dict[str, int]]:
        """Yields the meshes that are tried, in this order."""
        yield {"data": self.num_devices}
        for axis in ("pipe", "tensor"):
            size = 2
            while size <= self.num_devices:
                sizes = {"data": self.num_devices // size, axis: size}
                yield {name: each for name, each in sizes.items() if each > 1}
                size *= 2


MACHINES = (Machine(2, 24), Machine(4, 24), Machine(8, 80))


def task(family: str, sizes: Mapping[str, Any], way: str) -> Any:
    """Returns a task of KerasHub that is fine-tuned in one of `WAYS`, with recomputed blocks."""
    # Under "mixed_bfloat16", trained weights are float32; frozen ones need no more than bfloat16.
    dtype = "mixed_bfloat16" if way == "full" else "bfloat16"
    backbone = getattr(keras_hub.models, f"{family}Backbone")(**sizes, dtype=dtype)
    if way == "QLoRA":
        backbone.quantize("int8")
    if way != "full":
        backbone.enable_lora(RANK)
    made = getattr(keras_hub.models, f"{family}CausalLM")(backbone, preprocessor=None)
    return keras_ext.rematerialize(made)


def cell(make: Callable[[], Any], machine: Machine) -> str:
    """Returns the first mesh on which a model fits, with the GB per device; or that with the fewest GB, if none does.

    Where even an equal share of weights, gradients and slots does not fit, no other mesh is tried.

    Args:
        make: as for `memory_plan`.
        machine: the devices.
    """
    tried: list[tuple[float, str]] = []
    for mesh in machine.meshes():
        # Micro-batches of one row.
        number = ROWS // mesh.get("data", 1) if "pipe" in mesh else None
        plan = keras_ext.memory_plan(make, batch_size=ROWS, mesh=mesh, sequence_length=TOKENS, num_microbatches=number)
        rows = dict(plan.rows)
        whole, _ = rows.pop("one device")
        least = whole.together / machine.num_devices / 1e9
        if least > SHARE * machine.gigabytes:
            return f"does not fit: {least:.1f} at least"
        for name, (held, activations) in rows.items():
            gigabytes = (held.together + (activations or 0)) / 1e9
            shard = re.findall(r'shard="(\w+)"', name)
            text = ", ".join(f"{axis}={size}" for axis, size in mesh.items()) + "".join(f", {each}" for each in shard)
            tried.append((gigabytes, text))
            if gigabytes <= SHARE * machine.gigabytes:
                return f"`{text}`: {gigabytes:.1f}"
    gigabytes, text = min(tried)
    return f"does not fit: {gigabytes:.1f} with `{text}`"


def row(model: str, way: str, machines: tuple[Machine, ...] = MACHINES) -> str:
    """Returns a line of the table."""
    family, sizes = MODELS[model]
    cells = [cell(lambda: task(family, sizes, way), machine) for machine in machines]
    return f"| {model} | {way} | {' | '.join(cells)} |\n"


def main(page: Path) -> None:
    """Writes the table into a page, line by line."""
    warnings.simplefilter("ignore")
    lines = [HEAD.format(machines=" | ".join(map(str, MACHINES)), lines="|".join(["---"] * len(MACHINES)))]
    before, rest = page.read_text().split(BEGIN)
    for model in MODELS:
        for way in WAYS:
            lines.append(row(model, way))
            print(lines[-1], end="", flush=True)
            keras.backend.clear_session()
    page.write_text(before + BEGIN + "".join(lines) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
