"""Measures the cost of each layer of a graph: the seconds of its forward and backward pass, and the bytes it holds.

Both passes of a layer are timed as one traced function. If small layers ran op by op, the time that Python needs to
launch ops would be measured, which on a GPU is longer than the computation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ext.pipeline.graph_nodes import Node, nodes_of
from keras_ext.pipeline.stage import Stage
from keras_ext.tensor.custom_layers import is_graph
from strategies import layer_api

_logger = logging.getLogger(__name__)

#: The number of timed passes of each layer, after one that is not timed.
NUM_TIMED = 3

#: Candidates for sizes that a model does not fix, such as a sequence length; the first that all layers accept is used.
OPEN_SIZES = (16, 4, 1)

#: Seconds of the forward and backward pass, and the bytes that are held in between.
LayerCost = tuple[float, int]


def costs_of(graph: Any, sample_input: Any, num_rows: int) -> list[LayerCost]:
    """Returns the cost of each call of a layer, in the order of the graph's nodes.

    Calls of layers of the same class and config, with inputs of the same shapes and dtypes, are measured once.

    Args:
        graph: a Functional model.
        sample_input: see `PartitionByTime`.
        num_rows: the number of rows of a micro-batch of zeros, used if `sample_input` is None.

    Raises:
        ValueError: a layer refuses the values that the sample becomes at the layer's inputs.
    """
    has_open_sizes = any(None in tensor.shape[1:] for tensor in graph.inputs)
    refusals: list[ValueError] = []
    for size in OPEN_SIZES if sample_input is None and has_open_sizes else OPEN_SIZES[:1]:
        try:
            return _costs(graph, sample_input, num_rows, size)
        except ValueError as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _costs(graph: Any, sample_input: Any, num_rows: int, open_size: int) -> list[LayerCost]:
    values = dict(zip(map(id, graph.inputs), sample_of(graph, sample_input, num_rows, open_size), strict=True))
    costs, known = [], dict[Any, LayerCost]()
    sample = "zeros" if sample_input is None else "your sample_input"
    for node in nodes_of(graph):
        inputs = list({id(tensor): tensor for tensor in node.input_tensors}.values())
        call = TimedStage(Stage(0, (node,), tuple(inputs), tuple(node.outputs)), sample)
        given = [values[id(tensor)] for tensor in inputs]
        if sample_input is None:
            given = [_as_words(value, _words_for(node, tensor)) for value, tensor in zip(given, inputs, strict=True)]
        key = _kind(node, given)
        if key is None or key not in known:
            cost, outputs = call.measured(given)
            known[key] = cost
        else:
            cost, outputs = known[key], call.outputs(given)
        costs.append(cost)
        values.update(zip(map(id, node.outputs), outputs, strict=True))
    return costs


@dataclasses.dataclass(frozen=True)
class TimedStage:
    """Some calls of layers whose passes are timed.

    Attributes:
        stage: a stage that contains only these calls.
        sample: describes the sample from which its inputs were computed, for error messages.
    """

    stage: Stage
    sample: str

    def measured(self, given: Sequence[Any]) -> tuple[LayerCost, list[Any]]:
        """Returns the cost and the outputs."""
        try:
            return self._measured(given, layer_api.traced)
        # Any error of a layer that cannot be traced. If the layer refuses its inputs, the second try raises again.
        except Exception as error:
            layer = self.stage.nodes[0].operation
            _logger.info("The passes of %r cannot be traced: its ops are timed one by one. %s", layer.name, error)
            return self._measured(given, None)

    def outputs(self, given: Sequence[Any]) -> list[Any]:
        """Returns the outputs without measuring."""
        with self._alone(), self._refusals_named():
            return self.stage.compute(given, training=True)

    def function(self, given: Sequence[Any], *, in_halves: bool = False) -> Callable[[], None]:
        """Returns a function that runs both passes, traced, and waits for them. Several threads may call it at once.

        Args:
            given: the inputs.
            in_halves: if True, the gradients of weights are computed after those of inputs, in a function of their
                own, as zero-bubble schedules do.

        Raises:
            ValueError: the passes cannot be traced, or a layer refuses its inputs.
        """
        with self._alone(), self._refusals_named():
            passes, both = self._passes(layer_api.traced, in_halves=in_halves)
            both(*given)
        return functools.partial(_run, both, given, passes)

    def _passes(
        self, traced: Callable[..., Any] | None, *, in_halves: bool = False
    ) -> tuple[Any, Callable[..., tuple[list[Any], Any]]]:
        """Returns the passes, and a function that runs both of them and returns the outputs and a number to wait for.

        Args:
            traced: makes a graph of a function; None to run its ops one by one.
            in_halves: see `function`.
        """
        parts = layer_api.replica_parts()

        def compute(*tensors: Any) -> list[Any]:
            return self.stage.compute(tensors, training=True)

        variables = [variable.value for variable in self.stage.trainable_variables]
        passes = parts.passes(parts.owned[0], compute, variables, in_line=traced is None)

        def both(*tensors: Any) -> tuple[list[Any], Any]:
            outputs, vjp = passes(tensors)
            upstream = [ops.ones_like(y) if y.dtype.is_floating or y.dtype.is_complex else None for y in outputs]
            if not in_halves:
                return outputs, _marks([*outputs, *keras.tree.flatten(vjp(upstream))])
            gradients, add_to = vjp.in_halves(upstream)
            return outputs, _marks([*outputs, *keras.tree.flatten([gradients, add_to([None] * len(variables))])])

        return passes, both if traced is None else traced(both)

    def _measured(self, given: Sequence[Any], traced: Callable[..., Any] | None) -> tuple[LayerCost, list[Any]]:
        with self._alone():
            passes, function = self._passes(traced)
            seconds = []
            for _ in range(NUM_TIMED + 1):
                start = time.perf_counter()
                with self._refusals_named():
                    outputs, marks = function(*given)
                # Waits for devices that compute asynchronously.
                np.asarray(marks)
                seconds.append(time.perf_counter() - start)
            held = passes.held_bytes(given) if traced else sum(np.asarray(value).nbytes for value in outputs)
        return (float(np.median(seconds[1:])), held), list(outputs)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Runs the block without changing the model.

        Updates that layers make when they are called, such as those of statistics, go to the scope. Deferred weights
        are drawn for the block and stay deferred afterwards, because another process may own them.
        """
        variables = [variable for layer in self.stage.layers for variable in layer.variables]
        try:
            with (
                layer_api.replica_parts().as_first_replica(),
                keras.StatelessScope(),
                layer_api.drawn_for_now(variables),
            ):
                yield
        finally:
            self.stage.take_added_losses()

    @contextlib.contextmanager
    def _refusals_named(self) -> Iterator[None]:
        layer = self.stage.nodes[0].operation
        try:
            yield
        # Layers raise any exception type when they check their inputs.
        except Exception as error:
            raise ValueError(
                f"The passes of {layer.name!r}, a {type(layer).__name__}, cannot be timed: "
                f"it refuses the values computed from {self.sample}. Give inputs that it takes, "
                "partition=keras_ext.PartitionByTime(sample_input=...), or a partition that is not timed, such as "
                f"'parameters'. Received: {type(error).__name__}: {error}"
            ) from error


def _run(both: Callable[..., tuple[list[Any], Any]], given: Sequence[Any], passes: Any) -> None:
    """Runs both passes, and waits for them. The functions in their graph exist as long as `passes` does."""
    del passes
    np.asarray(both(*given)[1])


def _kind(node: Node, given: Sequence[Any]) -> Any:
    """Returns a key that is equal for calls with equal costs; None if the call cannot be compared with others."""
    layer = node.operation
    if not isinstance(layer, keras.Layer):
        return None
    try:
        config = {name: value for name, value in layer.get_config().items() if name != "name"}
        serialized = json.dumps(keras.saving.serialize_keras_object(config), sort_keys=True)
    # The layer has no config, or its config is not JSON.
    except Exception:
        return None
    arguments = keras.tree.map_structure(
        lambda value: "tensor" if isinstance(value, keras.KerasTensor) else repr(value),
        [node.args, dict(node.kwargs)],
    )
    weights = [(tuple(v.shape), str(v.dtype), v.trainable) for v in layer.weights]
    return (
        type(layer),
        serialized,
        repr(arguments),
        repr(weights),
        repr([(tuple(v.shape), str(v.dtype)) for v in given]),
    )


def _marks(values: Sequence[Any]) -> Any:
    """Returns a scalar that depends on all numeric tensors, so that it is ready when they are; strings are left out."""
    # Reads one value of each tensor. IndexedSlices are read by their values, not converted to dense tensors.
    tensors = [getattr(value, "values", value) for value in values if value is not None]
    numbers = [value for value in tensors if keras.backend.standardize_dtype(value.dtype) != "string"]
    total = ops.zeros((), "float32")
    for value in numbers:
        total = total + ops.sum(ops.cast(ops.reshape(value, (-1,))[:1], "float32"))
    return total


def _words_for(node: Node, tensor: Any) -> Sequence[Any]:
    """Returns the words that a tensor must consist of at a node; empty if there is no such restriction.

    They are the vocabulary of a lookup layer that refuses unknown words. If the node calls a model, they are those of
    the first such layer in it that takes the tensor directly.
    """
    layer = node.operation
    if isinstance(layer, (keras.layers.StringLookup, keras.layers.IntegerLookup)):
        is_strict = layer.num_oov_indices == 0 and not layer.invert
        return layer.get_vocabulary(include_special_tokens=False) if is_strict else ()
    if not is_graph(layer):
        return ()
    taken = [inner for outer, inner in zip(node.input_tensors, layer.inputs, strict=True) if outer is tensor]
    for inner in nodes_of(getattr(layer, "_functional", layer)):
        for own in inner.input_tensors:
            words = _words_for(inner, own) if any(own is each for each in taken) else ()
            if len(words):
                return words
    return ()


def _as_words(value: Any, words: Sequence[Any]) -> Any:
    """Returns a tensor of the same shape and dtype, filled with the words; the value itself if there are none."""
    if not len(words):
        return value
    return ops.cast(ops.convert_to_tensor(np.resize(words, value.shape)), value.dtype)


def sample_of(graph: Any, sample_input: Any, num_rows: int, open_size: int) -> list[Any]:
    """Returns a tensor for each input of a graph: those of a sample, or zeros.

    Args:
        graph: a Functional model.
        sample_input: see `PartitionByTime`; None for zeros.
        num_rows: the number of rows of zeros.
        open_size: the size of the dims of inputs that have none, except the rows.
    """
    if sample_input is not None:
        return [ops.convert_to_tensor(value) for value in graph._standardize_inputs(sample_input)]
    return [
        ops.zeros([num_rows, *(open_size if size is None else size for size in tensor.shape[1:])], tensor.dtype)
        for tensor in graph.inputs
    ]
