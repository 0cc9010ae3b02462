"""Memory of a model's weights and of its optimizer's state, by device, and the peaks of GPUs."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import strategies
from keras_ext.text_table import text_table
from strategies import layer_api


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """Bytes by device: of variables, and the peaks of GPUs. Prints as a table.

    Where processes hold parts of the model or of its optimizer, it has the devices of all, such as ``"rank 1 GPU:0"``.

    Attributes:
        weights: of the model: trainable ones, statistics, random seeds.
        slots: of its optimizer.
        peaks: the most that was in use at once on each GPU: variables, activations, gradients, buffers; of this model
            and of whatever else the process computed. TensorFlow's allocator keeps none of CPU devices.

    Example:

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        report = keras_ext.memory_report(model)
        print(report)
        num_bytes = sum(report.weights.values())
    """

    weights: Mapping[str, int]
    slots: Mapping[str, int]
    peaks: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        heading = ("device", "weights", "optimizer", "together")
        rows = [(*heading, "peak") if self.peaks else heading]
        for device in sorted({*self.weights, *self.slots, *self.peaks}, key=_with_numbers):
            weights, slots = self.weights.get(device, 0), self.slots.get(device, 0)
            row = (device, f"{weights:,}", f"{slots:,}", f"{weights + slots:,}")
            peak = f"{self.peaks[device]:,}" if device in self.peaks else "-"
            rows.append((*row, peak) if self.peaks else row)
        missing = () if self.peaks else ("No peaks: TensorFlow's allocator keeps them on GPUs only.",)
        return "\n".join((*text_table(rows), *missing))


def _with_numbers(device: str) -> list[Any]:
    """Sorts names by the numbers in them."""
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", device)]


def memory_report(model: Any, *, reset_peaks: bool = False) -> MemoryReport:
    """Counts the bytes of a model's variables on each device, what stays there between steps, and reads GPUs' peaks.

    Where processes hold parts of the model or of its optimizer, each counts its own; all of them call this, and get the
    same.

    Args:
        model: built; compiled and trained for a step, or its optimizer built, for the slots to be there.
        reset_peaks: count peaks anew after this report: those of the next one are of what runs in between.
    """
    optimizer = getattr(model, "optimizer", None)
    slots = [] if optimizer is None else list(optimizer.variables)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        slots += [v for v in inner.variables if all(v is not other for other in slots)]
    metrics = {id(v) for v in getattr(model, "metrics_variables", [])}
    weights = [v for v in model.variables if id(v) not in metrics]
    peaks = strategies.peak_bytes_per_device(reset=reset_peaks)
    counts = (strategies.bytes_per_device(weights), strategies.bytes_per_device(slots), peaks)
    ranks = layer_api.from_all_ranks(model, json.dumps(counts), of_optimizer=True)
    if len(ranks) == 1:
        return MemoryReport(*counts)
    of_all: tuple[dict[str, int], ...] = ({}, {}, {})
    for rank, text in enumerate(ranks):
        for devices, found in zip(of_all, json.loads(text), strict=True):
            devices |= {f"rank {rank} {device}": count for device, count in found.items()}
    return MemoryReport(*of_all)
