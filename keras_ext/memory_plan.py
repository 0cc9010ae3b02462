"""Memory of training by kind, computed from a model's shapes before any of it is allocated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import strategies
from keras_ext.planned_model import PlannedModel, planned_model
from strategies import layer_api
from strategies.planning import HeldBytes, Sharing, held_bytes
from strategies.text_table import text_table

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """The bytes by kind on the device with the most. Prints as a table, which also has other configurations.

    Attributes:
        num_parameters: the number of parameters of the model, trained or not.
        batch_size: the number of rows of a global batch.
        asked: the name of the requested row, such as ``'shard="weights"'``.
        rows: for each configuration, by its name, the bytes of the model, and of activations, on the device with most.

    Example:

        def make_model():
            model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1024, "relu"), keras.layers.Dense(8)])
            model.compile("adam", "mse")
            return model

        plan = keras_ext.memory_plan(make_model, batch_size=32, num_devices=4, shard="optimizer")
        print(plan)
        assert plan.together == plan.weights + plan.gradients + plan.optimizer + plan.activations
    """

    num_parameters: int
    batch_size: int
    asked: str
    rows: Mapping[str, tuple[HeldBytes, int | None]]

    @property
    def weights(self) -> int:
        """The bytes of trained weights or their shards, of statistics and random seeds."""
        return self.rows[self.asked][0].weights

    @property
    def gradients(self) -> int:
        """The bytes of gradients when the update begins."""
        return self.rows[self.asked][0].gradients

    @property
    def optimizer(self) -> int:
        """The bytes of slots, averages, accumulated gradients and the number of the step."""
        return self.rows[self.asked][0].optimizer

    @property
    def gathered(self) -> int:
        """With ``shard="weights"``, the peak bytes of gathered weights, in addition to the shards."""
        return self.rows[self.asked][0].gathered

    @property
    def activations(self) -> int | None:
        """The bytes of layers' outputs for the rows of a device; None for a model without a graph of layers."""
        return self.rows[self.asked][1]

    @property
    def together(self) -> int:
        """The sum of the bytes of all kinds."""
        return _together(*self.rows[self.asked])

    def __str__(self) -> str:
        # One unit for all rows, such that the requested row has at least three digits.
        size, unit = next((each for each in _UNITS if self.together >= each[0]), _UNITS[-1])

        def cell(num_bytes: int | None) -> str:
            return "-" if num_bytes is None else f"{num_bytes / size:,.{0 if size == 1 else 2}f}"

        is_marked = len(self.rows) > 1
        lines: list[tuple[str, ...]] = [
            (f"{unit} per device", "weights", "gradients", "optimizer", "gathered", "activations", "together")
        ]
        for name, (held, activations) in self.rows.items():
            kinds: tuple[int | None, ...] = (held.weights, held.gradients, held.optimizer, held.gathered, activations)
            label = f"{name} *" if name == self.asked and is_marked else name
            lines.append((label, *map(cell, (*kinds, _together(held, activations)))))
        last = f"{self.num_parameters:,} parameters, {self.batch_size:,} rows in a batch."
        if is_marked:
            last += " *: as asked."
        return "\n".join((*text_table(lines), last))


def _together(held: HeldBytes, activations: int | None) -> int:
    return held.together + (activations or 0)


def memory_plan(
    make_model: Callable[[], Any],
    *,
    batch_size: int,
    num_devices: int | None = None,
    mesh: Mapping[str, int] | None = None,
    shard: Literal["optimizer", "gradients", "weights"] | None = None,
    shard_size: int | None = None,
    num_microbatches: int | None = None,
    sequence_length: int | None = None,
) -> MemoryPlan:
    """Counts the bytes that training a model will take on each device, without allocating its weights.

    Weights, gradients, slots and gathered weights are what :func:`memory_report` counts once the model is made, on
    the device that holds most, activations included. Frozen weights, such as those below adapters (LoRA), have
    neither gradients nor slots; those that are quantized count the bytes of their dtype, and their scales. Random
    generators and the counters of Keras' automatic names do not change.

    With "tensor" or "pipe" in the mesh, the model is split by :func:`parallelize`, and cut into stages of equal numbers
    of parameters by :class:`PipelineModel`, unless `make_model` does so itself. A device then has the weights of its
    shards and stages, and all weights that are the same on each of them, as in a process of its own. Along "expert" it
    has its part of the experts, and of the slots of all weights.

    Activations are a lower bound: the outputs of the layers of a Sequential or Functional model for a replica's rows,
    at any depth, each tensor once. Tensors that operations inside a layer's own call hold are not known. Of an output
    that stays in pieces on the axis "tensor", one piece counts. A stage of a pipeline holds as many micro-batches as
    its schedule says, with the tensors that it receives. For a model of :func:`rematerialize` they are the inputs of
    its blocks (without offloaded ones) and the tensors inside the largest block.

    Args:
        make_model: takes nothing and returns a compiled model; called outside of any strategy's scope. The model is
            discarded, and takes no memory unless `make_model` reads or assigns weights. ``quantize("int8")`` does
            neither here; other modes read weights. With "tensor" or "pipe" it is called twice. It may call
            `parallelize` and `PipelineModel`, with a `partition` that is not timed.
        batch_size: the number of rows of a global batch.
        num_devices: the number of devices; the product of the sizes of `mesh` if left out.
        mesh: as for the strategies; each device has one replica if left out.
        shard: as for the strategies.
        shard_size: as for the strategies; it applies to all configurations in the table.
        num_microbatches: as for `PipelineModel`.
        sequence_length: the size of the dims of inputs that have none, except the rows. For a task of KerasHub it is
            that of its preprocessor if left out.

    Raises:
        ValueError: a model that is not compiled or has no weights yet, an input of unknown size, a number that does not
            fit, `shard_size` on a mesh with "expert", a call in a strategy's scope; or the model cannot be split, or
            cut into stages.

    Example, of a model that is fine-tuned with adapters on four devices:

        def make_model():
            layers = [keras.layers.Dense(1024, "relu"), keras.layers.Dense(1024, "relu"), keras.layers.Dense(8)]
            model = keras.Sequential([keras.Input((64,)), *layers])
            for layer in layers:
                layer.enable_lora(4)
            model.compile("adam", "mse")
            return model

        print(keras_ext.memory_plan(make_model, batch_size=32, mesh={"data": 2, "tensor": 2}))
    """
    _check_numbers(batch_size=batch_size)
    given = {"num_devices": num_devices, "num_microbatches": num_microbatches, "sequence_length": sequence_length}
    _check_numbers(**{name: value for name, value in given.items() if value is not None})
    devices = _mesh(num_devices, mesh)
    if shard is None and devices.axis_size("expert") > 1:
        # The replicas along the axis share the optimizer in any case.
        shard = "optimizer"
    ways = _ways(devices, shard, shard_size)
    # The largest number of rows of a replica: these numbers differ by at most one.
    rows = {way.num_replicas: -(-batch_size // way.num_replicas) for way in ways.values()}
    rows[1] = batch_size
    whole, alone = {"pipe": 1, "tensor": 1}, devices.size == devices.num_replicas
    with layer_api.variables_undrawn(whole) as made:
        model = make_model()
        one = planned_model(model, made, whole, num_microbatches if alone else None)
        num_parameters = int(model.count_params())
        length = sequence_length or getattr(getattr(model, "preprocessor", None), "sequence_length", None)
        of_one = {count: one.activations(own, length) for count, own in rows.items() if alone or count == 1}
    found = {"one device": _largest(one, Sharing(), of_one[1])}
    if alone:
        found |= {name: _largest(one, way, of_one[way.num_replicas]) for name, way in ways.items()}
    else:
        axes = {name: devices.axis_size(name) for name in whole}
        with layer_api.variables_undrawn(axes) as made:
            split = planned_model(make_model(), made, axes, num_microbatches)
            activations = split.activations(rows[devices.num_replicas], length)
        found |= {name: _largest(split, way, activations) for name, way in ways.items()}
    return MemoryPlan(num_parameters, batch_size, _asked(ways, shard), found)


def _largest(planned: PlannedModel, way: Sharing, activations: Sequence[int | None]) -> tuple[HeldBytes, int | None]:
    """Returns the bytes of the device of a replica that holds most."""
    stays = planned.is_pipeline
    held = [
        (held_bytes(sizes, way, all_stay=stays), own) for sizes, own in zip(planned.sizes, activations, strict=True)
    ]
    return max(held, key=lambda each: _together(*each))


def _check_numbers(**numbers: Any) -> None:
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is a number of at least 1. Received: {name}={value!r}.")


def _mesh(num_devices: int | None, mesh: Mapping[str, int] | None) -> strategies.DeviceMesh:
    """Returns the mesh of the devices."""
    if num_devices is None:
        if mesh is None or -1 in mesh.values():
            raise ValueError(
                "The number of devices is num_devices, or the product of the sizes of the mesh. Received: "
                f"num_devices=None, mesh={mesh!r}."
            )
        num_devices = math.prod(mesh.values())
    return strategies.DeviceMesh.from_devices([f"device {i}" for i in range(num_devices)], mesh)


def _ways(devices: strategies.DeviceMesh, shard: Any, shard_size: int | None) -> dict[str, Sharing]:
    """Returns the configurations that the table shows below that of one device, by their names."""
    if shard not in (None, "optimizer", "gradients", "weights"):
        raise ValueError(f"shard is 'optimizer', 'gradients', 'weights' or None. Received: shard={shard!r}.")
    count, num_expert = devices.num_replicas, devices.axis_size("expert")
    if shard_size is not None and num_expert > 1:
        raise ValueError(
            "The replicas along the axis 'expert' share the optimizer, so its size is that of the axis: leave "
            f"shard_size out. Received: shard_size={shard_size}, mesh with expert={num_expert}."
        )
    is_size = isinstance(shard_size, int) and not isinstance(shard_size, bool) and shard_size > 1
    if shard_size is not None and (shard is None or not is_size or count % shard_size):
        raise ValueError(
            "shard_size is the number of replicas among which shard is divided: a divisor of their number, and nothing "
            f"without shard. Received: shard_size={shard_size!r}, shard={shard!r}, and {count} replicas."
        )
    axes = ", ".join(f"{axis}={size}" for axis, size in devices.axes.items() if size > 1)
    is_split = devices.size > count
    if count == 1:
        # There is no other replica with which to share.
        return {axes if is_split else "one device": Sharing(1, shard)}
    stage = "gradients" if shard == "gradients" else "optimizer"
    if num_expert > 1:
        return {
            axes: Sharing(count, stage, num_expert, divides_experts=True),
            f'{axes}, shard="weights"': Sharing(count, "weights", num_expert, divides_experts=True),
        }
    size = shard_size or count
    groups = f", by {size}" if size < count else ""
    before = f"{axes}, " if is_split else ""
    return {
        axes if is_split else f"{count} replicas": Sharing(count),
        f'{before}shard="{stage}"{groups}': Sharing(count, stage, size),
        f'{before}shard="weights"{groups}': Sharing(count, "weights", size),
    }


def _asked(ways: Mapping[str, Sharing], shard: str | None) -> str:
    return next(name for name, way in ways.items() if way.shard == shard)
