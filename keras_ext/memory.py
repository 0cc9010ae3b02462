"""Memory of training by device: variables, gradients, gathered weights, peaks of GPUs; and the memory of processes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import strategies
from strategies import layer_api
from strategies.planning import Sharing, bytes_per_parameter
from strategies.text_table import text_table

#: The formula still applies if at most this fraction of the memory does not follow it.
_FEW = 0.05
_STATUS = Path("/proc/self/status")


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """The bytes of variables and gradients on each device, and the peaks of GPUs. Prints as a table.

    If processes hold parts of the model or of its optimizer, it has the devices of all of them, such as
    ``"rank 1 GPU:0"``. It does not count activations: see :func:`memory_plan`.

    Attributes:
        weights: the bytes of the model's weights: trainable ones, statistics, random seeds.
        slots: the bytes of its optimizer's variables.
        peaks: the peak bytes in use on each GPU: variables, activations, gradients and buffers, of this model and of
            everything else that the process computed. TensorFlow's allocator records no peaks of CPU devices.
        gradients: the bytes of gradients when the update begins, which equal those of the device's trainable weights.
            Empty for a model without an optimizer.
        gathered: with ``shard="weights"``, the peak bytes of gathered weights, in addition to the shards.
        processes: the resident memory of each process, now and at its peak; empty if the system does not report it.
        formula: the bytes per parameter by a formula, in words, and the bytes of a device that follow, without gathered
            weights. None if no formula applies: mesh axes other than "data", a parameter device, weights that are not
            trained in float32, an optimizer without slots of the weights' shapes.

    Example:

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        report = keras_ext.memory_report(model)
        print(report)
        num_bytes = sum(report.weights.values())
    """

    weights: Mapping[str, int]
    slots: Mapping[str, int]
    peaks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    gradients: Mapping[str, int] = dataclasses.field(default_factory=dict)
    gathered: Mapping[str, int] = dataclasses.field(default_factory=dict)
    processes: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    formula: tuple[str, int] | None = None

    @property
    def together(self) -> dict[str, int]:
        """The sum of the bytes of all kinds by device, except peaks."""
        kinds = (self.weights, self.gradients, self.slots, self.gathered)
        return {device: sum(kind.get(device, 0) for kind in kinds) for device in self._devices}

    @property
    def _devices(self) -> list[str]:
        named = {*self.weights, *self.slots, *self.peaks, *self.gradients, *self.gathered}
        return sorted(named, key=_with_numbers)

    def __str__(self) -> str:
        columns: dict[str, Mapping[str, int]] = {"weights": self.weights}
        if self.gradients:
            columns["gradients"] = self.gradients
        columns["optimizer"] = self.slots
        if self.gathered:
            columns["gathered"] = self.gathered
        columns["together"] = self.together
        rows = [("device", *columns, "peak") if self.peaks else ("device", *columns)]
        for device in self._devices:
            row = (device, *(f"{column.get(device, 0):,}" for column in columns.values()))
            peak = f"{self.peaks[device]:,}" if device in self.peaks else "-"
            rows.append((*row, peak) if self.peaks else row)
        lines = text_table(rows)
        if not self.peaks:
            lines.append("No peaks: TensorFlow's allocator keeps them on GPUs only.")
        if self.formula is not None:
            words, expected = self.formula
            lines.append(f"Formula: {words}, {expected:,} a device; held{self._deviation(expected)}.")
        for name in sorted(self.processes, key=_with_numbers):
            now, most = (f"{each / 1e6:,.0f} MB" for each in self.processes[name])
            lines.append(f"Resident memory of {name}: {now}, at most {most}.")
        return "\n".join(lines)

    def _deviation(self, expected: int) -> str:
        held = [self.together[device] - self.gathered.get(device, 0) for device in self._devices]
        # Adding 0.0 turns -0.0 into 0.0.
        off = [round(100 * (each / expected - 1), 1) + 0.0 for each in held]
        low, high = f"{min(off):+.1f} %", f"{max(off):+.1f} %"
        beside = " without gathered weights" if self.gathered else ""
        return f"{beside}: {low}" if low == high else f"{beside}: {low} to {high}"


def _with_numbers(device: str) -> list[Any]:
    """Returns a key that sorts names by the numbers in them."""
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", device)]


def memory_report(model: Any, *, reset_peaks: bool = False) -> MemoryReport:
    """Counts the bytes that training a model takes on each device, and reads the peaks of GPUs and processes.

    Variables exist between steps; gradients and gathered weights exist during a part of each step. If processes hold
    parts of the model or of its optimizer, all of them call this function; each counts its own bytes, and all get the
    same report.

    Args:
        model: built; for its slots to exist, also compiled and trained for a step, or with its optimizer built.
        reset_peaks: True to reset the peaks after this report, so that the next report covers only the time since.
    """
    slots = slots_of(getattr(model, "optimizer", None))
    has_optimizer = getattr(model, "optimizer", None) is not None
    counts: tuple[dict[str, int], ...] = (
        strategies.bytes_per_device(weights_of(model)),
        strategies.bytes_per_device(slots),
        strategies.peak_bytes_per_device(reset=reset_peaks),
        strategies.bytes_per_device(model.trainable_variables) if has_optimizer else {},
        layer_api.gathered_bytes(model),
    )
    resident = resident_bytes()
    ranks = [
        json.loads(text) for text in layer_api.from_all_ranks(model, json.dumps((counts, resident)), of_optimizer=True)
    ]
    processes = {f"rank {rank}": tuple(found) for rank, (_, found) in enumerate(ranks) if found is not None}
    if len(ranks) == 1:
        processes = {} if resident is None else {"this process": resident}
    else:
        counts = ({}, {}, {}, {}, {})
        for rank, (own, _) in enumerate(ranks):
            for devices, found in zip(counts, own, strict=True):
                devices |= {f"rank {rank} {device}": count for device, count in found.items()}
    weights, of_optimizer, peaks, gradients, gathered = counts
    formula = _formula(model, of_optimizer)
    return MemoryReport(weights, of_optimizer, peaks, gradients, gathered, processes, formula)


def weights_of(model: Any) -> list[Any]:
    """Returns the variables of a model, without those of its metrics."""
    metrics = {id(variable) for variable in getattr(model, "metrics_variables", [])}
    return [variable for variable in model.variables if id(variable) not in metrics]


def slots_of(optimizer: Any) -> list[Any]:
    """Returns the variables of an optimizer and of the optimizer that it wraps; empty without an optimizer."""
    slots = [] if optimizer is None else list(optimizer.variables)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        slots += [v for v in inner.variables if all(v is not other for other in slots)]
    return slots


def _formula(model: Any, slots: Mapping[str, int]) -> tuple[str, int] | None:
    """Returns the formula for a model, and the bytes of a device by it; None if no formula applies."""
    sharing: Sharing | None = layer_api.sharing_of(model)
    trained = list(model.trainable_variables)
    num_parameters = sum(variable.shape.num_elements() for variable in trained)
    others = sum(variable.shape.num_elements() for variable in model.non_trainable_weights)
    # The statistics of a few layers are a small deviation; frozen layers would need another formula.
    is_plain = all(variable.dtype == "float32" for variable in trained) and others <= _FEW * num_parameters
    if sharing is None or not slots or not num_parameters or not is_plain:
        return None
    # The number of copies of each slot: one for each group of devices that share it.
    copies = len(slots) / sharing.num_slot_shards
    per_parameter = sum(slots.values()) / copies / num_parameters / 4
    num_slots = round(per_parameter)
    if abs(per_parameter - num_slots) > _FEW:
        return None
    words, value = bytes_per_parameter(num_slots, sharing)
    return f"{words} bytes a parameter", round(value * num_parameters)


def resident_bytes(status: Path = _STATUS) -> tuple[int, int] | None:
    """Returns the bytes of this process that are in memory, now and at its peak; None if the system does not tell.

    Args:
        status: the status file of the process, as Linux writes it.
    """
    try:
        found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status.read_text(), flags=re.MULTILINE))
    except OSError:
        return None
    return (int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024) if len(found) == 2 else None
