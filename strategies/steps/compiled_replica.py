"""Compiles the part of a step that each replica computes alone as one XLA function.

XLA compiles for one device, and a step has collectives: gradients are reduced, metrics read, optimizers run over all
replicas. The ops between two collectives can be compiled. :func:`compute` traces them into a
``tf.function(jit_compile=True)`` in the step's graph, and checks the traced graph before the step depends on it: if it
contains collectives, or ops that XLA does not have, the step is computed without XLA, which is no error.

The function itself reads and writes variables: a replica's components are plain variables of its device.
This has not been run on a GPU; on CPU devices the same functions run with XLA for CPUs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import ReplicaContext, xla_kernels
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.shares import Share

#: Ops with which graphs take arguments and return values. They are not executed.
_FRAME = frozenset({"Placeholder", "_Arg", "_Retval"})
#: XLA has kernels for these, for groups that it forms itself; ours are formed by TensorFlow's runtime, or by Horovod.
_COLLECTIVES = ("Collective", "Horovod", "Nccl")
#: XLA has kernels for these, but their output sizes depend on values, and few other ops accept such inputs.
_DYNAMIC = frozenset({"DynamicPartition", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where"})
#: The number of characters of an error's text that are logged.
_MAX_LETTERS = 300

_RUNS_COLLECTIVE = (
    "its forward pass or its loss runs a collective, as in a synchronized BatchNormalization or a loss with a mask"
)


class NotCompilableError(Exception):
    """A function cannot be compiled; the message is the reason, worded as the end of a sentence."""


class _Alone(ReplicaContext):
    """A replica context that refuses collectives."""

    def _merge_call(self, *args: Any, **kwargs: Any) -> Any:
        raise NotCompilableError(_RUNS_COLLECTIVE)


def compute(function: Callable[..., Any], arguments: Any, *, on_gpu: bool) -> Any:
    """Returns ``function(*arguments)``, computed by one function that XLA compiles for the replica's device.

    Call in a replica, while the graph of its step is built.

    Args:
        function: takes the arguments and returns a nest of tensors. Called once.
        arguments: a sequence of nests of dense tensors and other values.
        on_gpu: whether the replica's device is a GPU.

    Raises:
        NotCompilableError: if XLA cannot compile the function. The step's graph then holds none of its ops.
    """
    leaves = tf.nest.flatten(arguments)
    positions = [i for i, leaf in enumerate(leaves) if tf.is_tensor(leaf)]
    tensors = [leaves[i] for i in positions]
    _check_arguments(tensors)
    share, strategy = shares.current(), tf.distribute.get_strategy()
    if share is None:
        raise ValueError("Only a replica's function can be compiled: call it inside of strategy.run.")
    kinds = [share.dependence.kind(tensor) for tensor in tensors]

    def alone(weight: tf.Tensor, has_rows: tf.Tensor, *inputs: tf.Tensor) -> Any:
        for each, kind in zip(inputs, kinds, strict=True):
            mark(each, kind)
        with _Alone(strategy, share.replica_id):
            shares.attach(_inside(share, weight, has_rows))
            own = dict(zip(positions, inputs, strict=True))
            flat = [own.get(i, leaf) for i, leaf in enumerate(leaves)]
            return function(*tf.nest.pack_sequence_as(arguments, flat))

    weights = [tf.convert_to_tensor(share.weight, tf.float32), tf.convert_to_tensor(share.has_rows)]
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in (*weights, *tensors)]
    compiled = tf.function(alone, input_signature=specs, autograph=False, jit_compile=True)
    try:
        concrete = compiled.get_concrete_function()
    except NotCompilableError as error:
        # Keras has added the layer and all its arguments to the message; the reason alone is wanted.
        raise NotCompilableError(_RUNS_COLLECTIVE) from error
    except Exception as error:
        # A bug in the model itself raises again in the run without XLA.
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise NotCompilableError(f"it cannot be traced by itself ({text[:_MAX_LETTERS]})") from error
    check_graph(concrete.graph, on_gpu=on_gpu)
    return concrete(*weights, *tensors)


def _inside(share: Share, weight: tf.Tensor, has_rows: tf.Tensor) -> Share:
    """Returns the share inside the function; weights that are not constants are the function's arguments."""
    changed: dict[str, Any] = {"graph": None}
    if not isinstance(share.weight, float):
        changed["weight"] = mark(weight, Kind.SAME)
    if not isinstance(share.has_rows, bool):
        changed["has_rows"] = mark(has_rows, Kind.SAME)
    return dataclasses.replace(share, **changed)


def _check_arguments(tensors: Sequence[Any]) -> None:
    for each in tensors:
        if not isinstance(each, tf.Tensor):
            raise NotCompilableError(f"XLA takes dense tensors only, not a {type(each).__name__}")
        if each.dtype in (tf.string, tf.variant, tf.resource):
            raise NotCompilableError(f"XLA takes no tensor of {each.dtype.name}")


def check_graph(graph: Any, *, on_gpu: bool) -> None:
    """Refuses graphs with collectives or ops that XLA does not have, including ops of the functions that it calls.

    Raises:
        NotCompilableError: with the names of these ops.
    """
    known = set(xla_kernels.get_gpu_kernel_names() if on_gpu else xla_kernels.get_cpu_kernel_names()) | _FRAME
    types = set(_types_of(graph.as_graph_def()))
    if collectives := sorted(each for each in types if each.startswith(_COLLECTIVES)):
        raise NotCompilableError(f"it runs a collective ({', '.join(collectives)})")
    if missing := sorted(types - known):
        raise NotCompilableError(f"XLA does not have its operations {', '.join(missing)}")
    if dynamic := sorted(types & _DYNAMIC):
        raise NotCompilableError(f"the shapes of what {', '.join(dynamic)} return are known only when they have run")


def _types_of(graph: tf.compat.v1.GraphDef) -> Iterator[str]:
    functions = {function.signature.name for function in graph.library.function}
    bodies: list[Iterable[Any]] = [graph.node, *(function.node_def for function in graph.library.function)]
    for nodes in bodies:
        yield from (node.op for node in nodes if node.op not in functions)
