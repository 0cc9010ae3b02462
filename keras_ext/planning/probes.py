"""Measures what a step of a model costs on one device of this machine: its layers, loss, update, and shared cores."""

from __future__ import annotations

import concurrent.futures
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.pipeline.graph_nodes import Node, nodes_of
from keras_ext.pipeline.layer_costs import OPEN_SIZES, TimedStage, costs_of, sample_of
from keras_ext.pipeline.model_graph import graph_of
from keras_ext.pipeline.stage import Stage
from keras_ext.planned_model import variable_bytes
from keras_ext.tensor.plan import Choice, parameters
from keras_ext.tensor.planner import make_plan
from strategies import layer_api
from strategies.planning import LayerShare, Linear, MeasuredStep

#: Each function is timed in this number of rounds, in turn with the others; the median counts.
ROUNDS = 7
# Calls of a function that are timed in a round.
_TIMED = 2
#: Devices beyond this number are not measured together: on a CPU they share cores in proportion.
MOST_AT_ONCE = 8
# Bytes of a tensor whose addition is timed: more than caches hold.
_ADDED_BYTES = 32 * 2**20
# Rows and columns of the matrices whose product is timed.
_MATRIX_SIZE = 1024
# Of a replica's rows, the fractions with which passes are timed.
_FRACTIONS = (1, 2, 4, 8)


def measure_step(model: Any, batch_size: int, num_devices: int, batch: Sequence[Any] | None) -> MeasuredStep:
    """Measures a model's step on one device.

    Args:
        model: a compiled Sequential or Functional model; it is trained for some steps.
        batch_size: rows of the global batch.
        num_devices: the number of devices that will compute at once.
        batch: see `training_plan`.

    Raises:
        ValueError: the model has no graph, a layer refuses the sample, or the loss refuses zeros as targets.
    """
    try:
        graph = graph_of(model)
    except ValueError as refusal:
        raise ValueError(f"A plan measures Sequential and Functional models, as pipelines do. {refusal}") from refusal
    sizes = sorted({max(1, batch_size // part) for part in _FRACTIONS})
    sample = sample_of(graph, None if batch is None else batch[0], batch_size, OPEN_SIZES[0])
    # Pipelines compute in halves what is about a micro-batch.
    few = sizes[:2][-1]
    nodes = tuple(nodes_of(graph))
    stage = TimedStage(Stage(0, nodes, tuple(graph.inputs), tuple(graph.outputs)), "the batch")
    functions: dict[Any, Callable[[], None]] = {
        ("passes", rows): stage.function([value[:rows] for value in sample]) for rows in sizes
    }
    targets = _targets(model, sample, graph, batch)
    for rows in sizes:
        functions["step", rows] = _train_step(model, graph, sample, targets, rows)
    if num_devices > 1:
        functions["halves"] = stage.function([value[:few] for value in sample], in_halves=True)
    functions["update"] = _update(model)
    functions["add"] = _addition()
    at_once = range(2, min(num_devices, MOST_AT_ONCE) + 1)
    for number in at_once:
        rows = min(sizes, key=lambda size: abs(size - batch_size / number))
        functions["at once", number] = _at_once(functions["passes", rows], number)
        functions["alone", number] = functions["passes", rows]
    seconds = _medians(functions, ROUNDS)
    update = seconds["update"]
    # Lines are compared, not times: one time that is off would count as much as the others together.
    alone, step = (Linear.through([(rows, seconds[name, rows]) for rows in sizes]) for name in ("passes", "step"))
    # Passes that are timed alone return all gradients, also those of the inputs, which a step need not do.
    passes = Linear(max(0.0, min(alone.fixed, step.fixed - update)), min(alone.of_row, step.of_row))
    return MeasuredStep(
        layers=_layer_shares(model, graph, nodes, None if batch is None else batch[0], batch_size, num_devices),
        passes=passes,
        rest=Linear(max(0.0, step.fixed - update - passes.fixed), step.of_row - passes.of_row),
        update=update,
        add_bytes_per_second=_ADDED_BYTES / seconds["add"],
        halves=max(1.0, seconds["halves"] / seconds["passes", few]) if num_devices > 1 else 1.0,
        slowdowns=(1.0, *(max(1.0, seconds["at once", n] / seconds["alone", n]) for n in at_once)),
    )


def _medians(functions: Mapping[Any, Callable[[], None]], rounds: int) -> dict[Any, float]:
    """Returns the median seconds of functions, which run in turn, so that other load of the machine is shared."""
    for function in functions.values():
        function()
    found: dict[Any, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            # A step finds in the caches what the step before it has left there, not what another function has.
            function()
            for _ in range(_TIMED):
                start = time.perf_counter()
                function()
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _targets(model: Any, sample: Sequence[Any], graph: Any, batch: Sequence[Any] | None) -> Any:
    """Returns targets for a step: those of the batch, or zeros of a shape that the loss takes.

    Raises:
        ValueError: the loss takes neither zeros like the outputs nor zeros without the last dim.
    """
    if batch is not None:
        return batch[1]
    inputs = keras.tree.pack_sequence_as(graph.input, list(sample))
    outputs = [np.asarray(value) for value in keras.tree.flatten(graph(inputs))]
    like = [np.zeros_like(value) for value in outputs]
    classes = [np.zeros(value.shape[:-1], "int32") for value in outputs]
    refusals = []
    for candidate in (like, classes):
        targets = keras.tree.pack_sequence_as(graph.output, candidate)
        try:
            model.compute_loss(None, targets, graph(inputs))
        # Losses raise any exception type when they check their arguments.
        except Exception as refusal:
            refusals.append(refusal)
        else:
            return targets
    raise ValueError(
        "The loss of the model takes neither zeros like its outputs nor class numbers as targets. Give a batch, "
        f"training_plan(..., batch=(x, y)). Received: {type(refusals[0]).__name__}: {refusals[0]}"
    )


def _train_step(model: Any, graph: Any, sample: Sequence[Any], targets: Any, num_rows: int) -> Callable[[], None]:
    def cut(value: Any) -> Any:
        return np.asarray(value)[:num_rows]

    inputs = keras.tree.map_structure(cut, keras.tree.pack_sequence_as(graph.input, list(sample)))
    own_targets = keras.tree.map_structure(cut, targets)
    return lambda: _ignore(model.train_on_batch(inputs, own_targets))


def _ignore(value: Any) -> None:
    del value


def _update(model: Any) -> Callable[[], None]:
    """Returns a function that updates all weights by gradients of zeros."""
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)

    def update() -> Any:
        optimizer.apply([ops.zeros_like(variable) for variable in model.trainable_variables])
        return ops.convert_to_tensor(optimizer.iterations)

    traced = layer_api.traced(update)
    return lambda: _ignore(np.asarray(traced()))


def _addition() -> Callable[[], None]:
    one = ops.zeros((_ADDED_BYTES // 4,), "float32")

    def add(value: Any) -> Any:
        return (value + 1.0)[:1]

    traced = layer_api.traced(add)
    return lambda: _ignore(np.asarray(traced(one)))


def flops_per_second() -> float:
    """Measures the rate of matrix products of this device, in floating-point operations per second."""
    matrix = ops.ones((_MATRIX_SIZE, _MATRIX_SIZE), "float32")
    traced = layer_api.traced(lambda value: ops.matmul(value, value)[:1, :1])
    seconds = _medians({"product": lambda: _ignore(np.asarray(traced(matrix)))}, ROUNDS)["product"]
    return float(2 * _MATRIX_SIZE**3 / seconds)


def _at_once(function: Callable[[], None], number: int) -> Callable[[], None]:
    """Returns a function that runs another one in several threads at once."""

    threads = concurrent.futures.ThreadPoolExecutor(number)

    def run() -> None:
        for result in [threads.submit(function) for _ in range(number)]:
            result.result()

    return run


def _layer_shares(
    model: Any, graph: Any, nodes: Sequence[Node], sample_input: Any, num_rows: int, num_devices: int
) -> list[LayerShare]:
    """Returns what each call of a layer is of the model."""
    costs = costs_of(graph, sample_input, num_rows)
    total = sum(seconds for seconds, _ in costs)
    choices: dict[int, list[Choice]] = {}
    for choice in make_plan(model, 2).values() if num_devices > 1 else ():
        choices.setdefault(id(choice.layer), []).append(choice)
    counted: set[int] = set()
    found = []
    for node, (seconds, _) in zip(nodes, costs, strict=True):
        layer = node.operation
        own = [each for each in _inside(layer) for each in choices.get(id(each), ())]
        num_bytes = 0.0
        if id(layer) not in counted and isinstance(layer, keras.Layer):
            counted.add(id(layer))
            num_bytes = float(sum(variable_bytes(variable) for variable in layer.trainable_variables))
        found.append(
            LayerShare(
                node.name,
                seconds / total,
                num_bytes,
                _split_share(own),
                *_exchanges(own, node),
                sum(_row_bytes(tensor) for tensor in node.outputs),
                **_expert_sizes(layer, node, num_bytes),
            )
        )
    return found


def _expert_sizes(layer: Any, node: Node, num_bytes: float) -> dict[str, Any]:
    """Returns the sizes of a mixture's experts; nothing for other layers."""
    if not isinstance(layer, MixtureOfExperts):
        return {}
    experts = sum(variable_bytes(each) for each in layer.trainable_variables if each.shape[:1] == (layer.num_experts,))
    # Tokens go to their experts and come back, in both passes.
    routed = 4 * layer.top_k * sum(_row_bytes(tensor) for tensor in node.outputs)
    return {
        "expert_bytes": min(float(experts), num_bytes),
        "routed_bytes": routed,
        "num_experts": layer.num_experts,
    }


def _inside(layer: Any) -> list[Any]:
    return list(layer._flatten_layers()) if isinstance(layer, keras.Layer) else []


def _split_share(choices: Sequence[Choice]) -> float:
    """Returns the part of a layer's computation that the axis "tensor" divides."""
    sizes = [(parameters(choice, 1)[0], choice) for choice in choices]
    total = sum(size for size, _ in sizes)
    if not total:
        # A layer without weights computes pieces if it gets them.
        return float(any(choice.pieces for _, choice in sizes))
    return sum(size for size, choice in sizes if choice.kind not in (None, "gathered")) / total


def _exchanges(choices: Sequence[Choice], node: Node) -> tuple[float, int]:
    """Returns the bytes that shards exchange for a row, and the number of exchanges.

    They are sums of outputs in the forward pass, and of inputs' gradients in the backward pass.
    """
    reduced, number = 0.0, 0
    # A tensor that a call takes twice, as self-attention does, has one gradient, which is summed once.
    taken = {id(tensor): tensor for tensor in node.input_tensors}.values()
    for choice in choices:
        if choice.kind in ("row", "heads", "hidden", "vocab") or (choice.kind == "column" and not choice.pieces):
            reduced += sum(_row_bytes(tensor) for tensor in node.outputs)
            number += 1
        if choice.kind in ("column", "heads", "hidden"):
            reduced += sum(_row_bytes(tensor) for tensor in taken)
            number += 1
    return reduced, number


def _row_bytes(tensor: Any) -> float:
    size = 1
    for dim in tensor.shape[1:]:
        size *= OPEN_SIZES[0] if dim is None else dim
    return float(size * _size_of(tensor.dtype))


def _size_of(dtype: Any) -> int:
    """Returns the bytes of an element."""
    name = keras.backend.standardize_dtype(dtype)
    return 1 if name == "bool" else int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 32) // 8
