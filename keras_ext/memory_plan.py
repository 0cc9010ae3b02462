"""Memory of training by kind, computed from a model's shapes before any of it is allocated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import keras

from keras_ext.activations import activation_bytes
from keras_ext.memory import slots_of, weights_of
from keras_ext.text_table import text_table
from strategies import layer_api
from strategies.planning import HeldBytes, ModelSizes, Sharing, Weight, held_bytes

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """The bytes by kind on the device with the most. Prints as a table, which also has other configurations.

    Attributes:
        num_parameters: the number of parameters of the model, trained or not.
        batch_size: the number of rows of a global batch.
        asked: the name of the requested row, such as ``'shard="weights"'``.
        rows: for each configuration, by its name, the bytes of the model and of activations on a device.

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
        """The bytes of layers' outputs for the rows of a replica; None for a model without a graph of layers."""
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

        lines: list[tuple[str, ...]] = [
            (f"{unit} per device", "weights", "gradients", "optimizer", "gathered", "activations", "together")
        ]
        for name, (held, activations) in self.rows.items():
            kinds: tuple[int | None, ...] = (held.weights, held.gradients, held.optimizer, held.gathered, activations)
            label = f"{name} *" if name == self.asked and len(self.rows) > 1 else name
            lines.append((label, *map(cell, (*kinds, _together(held, activations)))))
        last = f"{self.num_parameters:,} parameters, {self.batch_size:,} rows in a batch."
        return "\n".join((*text_table(lines), last))


def _together(held: HeldBytes, activations: int | None) -> int:
    return held.together + (activations or 0)


def memory_plan(
    make_model: Callable[[], Any],
    *,
    batch_size: int,
    num_devices: int,
    shard: Literal["optimizer", "gradients", "weights"] | None = None,
    shard_size: int | None = None,
) -> MemoryPlan:
    """Counts the bytes that training a model will take on each device, without allocating its weights.

    Weights, gradients, slots and gathered weights are what :func:`memory_report` counts once the model is made, on a
    mesh with "data" alone. Random generators and the counters of Keras' automatic names do not change.

    Activations are a lower bound: the outputs of the layers of a Sequential or Functional model for a replica's rows,
    at any depth, each tensor once. Tensors that operations inside a layer's own call hold are not known. For a model of
    :func:`rematerialize` they are the inputs of its blocks (without offloaded ones) and the tensors inside the largest
    block.

    Args:
        make_model: takes nothing and returns a compiled model; called outside of any strategy's scope. The model is
            discarded, and takes no memory unless `make_model` reads or assigns weights.
        batch_size: the number of rows of a global batch.
        num_devices: the number of devices, each with one replica.
        shard: as for the strategies.
        shard_size: as for the strategies; it applies to all configurations in the table.

    Raises:
        ValueError: a model that is not compiled or has no weights yet, an input of unknown size, a number that does not
            fit, or a call in a strategy's scope.
    """
    for name, value in (("batch_size", batch_size), ("num_devices", num_devices)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is a number of at least 1. Received: {name}={value!r}.")
    ways = _ways(num_devices, shard, shard_size)
    with layer_api.variables_undrawn() as made:
        model = make_model()
        _check(model, made)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        sizes = _sizes_of(model, made)
        num_parameters = int(model.count_params())
        # The largest number of rows of a replica: these numbers differ by at most one.
        rows = {way.num_replicas: -(-batch_size // way.num_replicas) for way in ways.values()}
        activations = {count: activation_bytes(model, own) for count, own in rows.items()}
    found = {name: (held_bytes(sizes, way), activations[way.num_replicas]) for name, way in ways.items()}
    asked = next(name for name, way in ways.items() if (way.num_replicas, way.shard) == (num_devices, shard))
    return MemoryPlan(num_parameters, batch_size, asked, found)


def _ways(num_devices: int, shard: Any, shard_size: int | None) -> dict[str, Sharing]:
    """Returns the configurations that the table shows, by their names."""
    if shard not in (None, "optimizer", "gradients", "weights"):
        raise ValueError(f"shard is 'optimizer', 'gradients', 'weights' or None. Received: shard={shard!r}.")
    is_size = isinstance(shard_size, int) and not isinstance(shard_size, bool) and shard_size > 1
    if shard_size is not None and (shard is None or not is_size or num_devices % shard_size):
        raise ValueError(
            "shard_size is the number of replicas among which shard is divided: a divisor of num_devices, and nothing "
            f"without shard. Received: shard_size={shard_size!r}, shard={shard!r}, num_devices={num_devices}."
        )
    if num_devices == 1:
        # There is no other replica with which to share.
        return {"one device": Sharing(1, shard)}
    size = shard_size or num_devices
    groups = f", by {size}" if size < num_devices else ""
    stage = "gradients" if shard == "gradients" else "optimizer"
    return {
        "one device": Sharing(),
        f"{num_devices} replicas": Sharing(num_devices),
        f'shard="{stage}"{groups}': Sharing(num_devices, stage, size),
        f'shard="weights"{groups}': Sharing(num_devices, "weights", size),
    }


def _check(model: Any, made: Sequence[Any]) -> None:
    if not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        raise ValueError(f"make_model returns a keras.Model that is compiled. Received: {model!r}.")
    if not model.built:
        raise ValueError(
            "The weights of a model are known once the shapes of its inputs are: begin with keras.Input, or build it "
            f"in make_model. Received: {model.name!r}, which is not built."
        )
    known = set(map(id, made))
    if outside := [variable.path for variable in model.variables if id(variable.value) not in known]:
        raise ValueError(
            "make_model makes all of the model, each time that it is called: weights that exist already take memory. "
            f"Received: {len(outside)} weights that were made before, such as {outside[0]!r}."
        )


def _sizes_of(model: Any, made: Sequence[Any]) -> ModelSizes:
    """Returns the sizes of a model and its optimizer; `made` has all of their variables, in the order of creation."""
    # In the order of creation, in which strategies also enroll them.
    order = {id(variable): i for i, variable in enumerate(made)}
    trained = {id(variable) for variable in model.trainable_variables}
    weights = []
    for each in sorted(weights_of(model), key=lambda variable: order[id(variable.value)]):
        may_shard = made[order[id(each.value)]].trainable and keras.backend.is_float_dtype(each.dtype)
        weights.append(Weight(_bytes_of(each), each.dtype, id(each) in trained, may_shard))
    slots = slots_of(model)
    sharded = [each for each in slots if each.shape.num_elements() > 1]
    return ModelSizes(
        tuple(weights),
        sum(map(_bytes_of, sharded)),
        sum(map(_bytes_of, slots)) - sum(map(_bytes_of, sharded)),
        layer_api.some_need_whole(model.optimizer),
    )


def _bytes_of(variable: Any) -> int:
    return int(variable.shape.num_elements() * variable.value.dtype.size)
