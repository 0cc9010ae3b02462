"""A plan of a model's training: the mesh on which a step is fastest, from the measured times of its layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_ext.planning.planned_bytes import PlannedBytes
from keras_ext.planning.probes import flops_per_second, measure_step
from strategies import layer_api
from strategies.planning import (
    Link,
    MeasuredCandidate,
    MeasuredLayout,
    MeasuredSearch,
    MeasuredStep,
    gpu_of,
    measured_search,
    measured_seconds,
)
from strategies.planning.layout import Shard
from strategies.schedules import SCHEDULES
from strategies.text_table import text_table

_AXES = ("data", "expert", "pipe", "tensor")
_HEADING = (
    "data",
    "pipe",
    "tensor",
    "micro-batches",
    "schedule",
    "shard",
    "recompute",
    "ms",
    "rows/s",
    "MB",
    "waiting",
)


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """The fastest meshes of a model's training, with predicted time and memory. Prints as a table.

    Attributes:
        step: what was measured of a step on one device.
        search: the layouts that fit, fastest first, and the numbers of those that were left out, by reason.
        batch_size: rows of the global batch.
        num_devices: the number of devices.
        device_bytes: the memory of a device; infinite if it is not limited.

    Example:

        def make_model():
            model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(8)])
            model.compile("adam", "mse")
            return model

        plan = keras_ext.training_plan(make_model, batch_size=32, num_devices=2)
        print(plan)
        print(plan.mesh, plan.shard, plan.pipeline)
    """

    step: MeasuredStep
    search: MeasuredSearch
    batch_size: int
    num_devices: int
    device_bytes: float

    @property
    def best(self) -> MeasuredCandidate:
        """The fastest layout that fits, or one within 1 % of it that is simpler."""
        return self.search.best[0]

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh of the fastest layout, for a strategy's argument `mesh`."""
        return self.best.layout.mesh

    @property
    def shard(self) -> Shard:
        """The argument `shard` of a strategy."""
        return self.best.layout.shard

    @property
    def pipeline(self) -> dict[str, Any] | None:
        """The arguments of `PipelineModel` besides the model; None without a pipeline."""
        layout = self.best.layout
        if layout.num_stages == 1:
            return None
        remat = {"remat": "all"} if layout.recompute else {}
        return {"num_microbatches": layout.num_microbatches, "schedule": layout.schedule, **remat}

    @property
    def rematerialize(self) -> bool:
        """True if :func:`rematerialize` makes the model fit; in a pipeline, `pipeline` says so."""
        return self.best.layout.recompute and self.best.layout.num_stages == 1

    def seconds_of(
        self,
        mesh: Mapping[str, int],
        *,
        shard: Shard = None,
        num_microbatches: int = 1,
        schedule: str = "1f1b",
        links: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> float:
        """Returns the predicted seconds of a step on any mesh.

        Args:
            mesh: as for the strategies, without -1.
            shard: as for the strategies.
            num_microbatches: as for `PipelineModel`.
            schedule: as for `PipelineModel`.
            links: see :func:`training_plan`.

        Raises:
            ValueError: an axis, a size or a schedule does not exist.
        """
        sizes = {axis: mesh.get(axis, 1) for axis in _AXES}
        numbers = [*sizes.values(), num_microbatches]
        if set(mesh) - set(_AXES) or any(not isinstance(each, int) or each < 1 for each in numbers):
            raise ValueError(
                f"A mesh has sizes from 1 of the axes {', '.join(_AXES)}. Received: mesh={dict(mesh)}, "
                f"num_microbatches={num_microbatches}."
            )
        if schedule not in SCHEDULES or sizes["pipe"] > len(self.step.layers):
            raise ValueError(
                f"The schedules are {', '.join(SCHEDULES)}, and a stage has a layer of {len(self.step.layers)}. "
                f"Received: schedule={schedule!r}, pipe={sizes['pipe']}."
            )
        _check_links(links or {})
        layout = MeasuredLayout(
            sizes["data"],
            sizes["pipe"],
            sizes["tensor"],
            num_microbatches,
            schedule,
            shard,
            num_expert=sizes["expert"],
        )
        return sum(measured_seconds(_with_links(self.step, links), layout, self.batch_size).values())

    @property
    def splits(self) -> bool:
        """True if the fastest layout divides the model or its state."""
        return self.best.num_ways > 0

    def __str__(self) -> str:
        rows = [_row(each, self.batch_size) for each in self.search.best]
        lines = text_table([_HEADING, *rows], left=(4, 5, 6))
        lines.append(self._conclusion())
        lines += [f"Left out: {number} layouts, each of which {why}." for why, number in self.search.refused.items()]
        return "\n".join(lines)

    def _conclusion(self) -> str:
        near = ""
        if math.isfinite(self.device_bytes):
            part = self.best.num_bytes / self.device_bytes
            near = f"; it takes {part:.0%} of a device's {self.device_bytes / 1e9:.1f} GB"
        if not self.splits:
            return f"Do not split, it fits: data parallelism is the fastest{near}."
        return f"The first is the fastest, or within 1 % of it and simpler{near}."


def _row(candidate: MeasuredCandidate, batch_size: int) -> tuple[str, ...]:
    layout, seconds = candidate.layout, candidate.seconds
    return (
        str(layout.num_data) if layout.num_expert == 1 else f"{layout.num_data} x {layout.num_expert} experts",
        str(layout.num_stages),
        str(layout.num_tensor),
        str(layout.num_microbatches) if layout.num_stages > 1 else "-",
        layout.schedule if layout.num_stages > 1 else "-",
        layout.shard or "-",
        "yes" if layout.recompute else "-",
        f"{1e3 * seconds:.1f}",
        f"{batch_size / seconds:,.0f}",
        f"{candidate.num_bytes / 1e6:,.1f}",
        f"{candidate.parts['bubble'] / seconds:.0%}",
    )


def training_plan(
    make_model: Callable[[], Any],
    *,
    batch_size: int,
    num_devices: int,
    batch: tuple[Any, Any] | None = None,
    device_bytes: float = math.inf,
    links: Mapping[str, Mapping[str, Any]] | None = None,
    gpu: str | None = None,
    host_size: int = 8,
    num_best: int = 10,
) -> TrainingPlan:
    """Finds the mesh on which a model trains fastest, and whether it fits.

    The passes of the model's layers, its loss and its update are measured on one device of this machine, with the rows
    that devices of a mesh get. From these times follows the step of every mesh, schedule, `shard` and number of
    micro-batches; :func:`memory_plan` counts the memory. Devices that share cores, as logical devices of a CPU, are
    measured together.

    Args:
        make_model: takes nothing and returns a compiled Sequential or Functional model; called outside of any
            strategy's scope. It is called several times. The model must fit into the memory of one device.
        batch_size: rows of the global batch.
        num_devices: the number of devices.
        batch: inputs and targets of a global batch. If left out, zeros are used: inputs of unknown size get 16.
        device_bytes: the memory of a device; a plan uses at most nine tenths of it.
        links: where several processes train, the rates between them by mesh axis, as ``python -m strategies.doctor
            --mesh=AXES --json`` prints them: "latency in microseconds", and "GB/s" by size. An axis that is missing is
            inside a process.
        gpu: plans for GPUs of this kind instead of this machine's devices, such as "H100": what depends on rows is
            taken to be faster in proportion to matrix products in half precision, and the rest to stay as it is. This
            was not compared with measurements.
        host_size: with `gpu`, the GPUs of a host.
        num_best: the number of layouts to return.

    Raises:
        ValueError: the model has no graph or is not compiled, a layer or the loss refuses the batch, a number is out of
            range, or no layout fits.

    Example: see :class:`TrainingPlan`.
    """
    numbers = {"batch_size": batch_size, "num_devices": num_devices, "host_size": host_size, "num_best": num_best}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is a number of at least 1. Received: {name}={value!r}.")
    kind = None if gpu is None else gpu_of(gpu)
    given = None if batch is None else _checked(batch, batch_size)
    links = dict(links or {})
    _check_links(links)
    with layer_api.global_state_kept():
        planned = PlannedBytes(make_model, batch_size, given)
        # A model that memory_plan refuses is refused before anything is measured.
        planned.bytes_of(MeasuredLayout())
        step = measure_step(make_model(), batch_size, num_devices, given)
        planned.step = step
        if kind is not None:
            step = step.on(kind, flops_per_second(), num_devices=num_devices, host_size=host_size)
            device_bytes = min(device_bytes, kind.memory_bytes)
        step = _with_links(step, links)
        found = measured_search(
            step,
            batch_size,
            num_devices,
            planned.bytes_of,
            device_bytes=device_bytes,
            num_best=num_best,
            may_recompute=planned.may_recompute(),
        )
    if not found.best:
        raise ValueError(
            f"No layout of {num_devices} devices fits into {device_bytes / 1e9:.1f} GB each. Use more devices, or "
            f"fewer rows. Received: batch_size={batch_size}. Left out: {dict(found.refused)}."
        )
    return TrainingPlan(step, found, batch_size, num_devices, device_bytes)


def _checked(batch: Any, batch_size: int) -> tuple[Any, Any]:
    """Returns a batch as arrays.

    Raises:
        ValueError: it is no pair of inputs and targets with that many rows.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or any(part is None for part in batch):
        kind = f"{len(batch)} parts" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise ValueError(f"batch is a pair of inputs and targets, (x, y). Received: {kind}.")
    inputs, targets = (keras.tree.map_structure(np.asarray, part) for part in batch)
    rows = {len(leaf) if leaf.ndim else 0 for leaf in keras.tree.flatten((inputs, targets))}
    if rows != {batch_size}:
        raise ValueError(f"A batch has batch_size rows in all arrays. Received: batch_size={batch_size}, rows {rows}.")
    return inputs, targets


def _check_links(links: Mapping[str, Any]) -> None:
    unknown = sorted(set(links) - set(_AXES))
    if unknown:
        raise ValueError(f"The links are those of the axes {', '.join(_AXES)}. Received: {', '.join(unknown)}.")


def _with_links(step: MeasuredStep, links: Mapping[str, Mapping[str, Any]] | None) -> MeasuredStep:
    made = {axis: Link.from_rates(rates) for axis, rates in (links or {}).items()}
    return dataclasses.replace(step, links={**(step.links or {}), **made})
