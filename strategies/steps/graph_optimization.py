"""Lets TensorFlow optimize the graph of a step once, and without the passes that change nothing in it.

TensorFlow's graph optimizer (Grappler) runs all its passes a second time if the first changed a graph. With several
devices, it takes most of the time in which a step is compiled. For graphs of steps, the second time only merges some
constants. Nor do some passes change anything: those for memory and data layouts only look for GPUs, and those of
TensorFlow Graph IR infer shapes, which later passes infer again, and move ops into branches. They take half of the
time. In a convolutional network, a transformer and a recurrent network on two devices, all other ops that run are the
same (``tests/strategies/steps/test_graph_optimization.py``).

Where one replica is traced for all, its ops are optimized before they are copied, see `optimized_replica`; then the
graph of all replicas only loses ops and edges that have become superfluous.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from strategies._tf_internals import eager_context


class StepOptimization:
    """Chooses how TensorFlow optimizes the graphs of one function that runs steps.

    What the program has chosen itself is kept.
    """

    def __init__(self) -> None:
        # None until a step says it.
        self._replicas_are_optimized: bool | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context manager: the graphs of functions that are called for the first time are optimized once."""
        context = eager_context.context()
        self._of_program = context.function_call_options
        self._own = self._chosen(bool(self._replicas_are_optimized))
        context.function_call_options = self._own
        try:
            yield
        finally:
            # Options of `tf.config` that were changed meanwhile stay.
            if context.function_call_options is self._own:
                context.function_call_options = self._of_program

    def for_replica(self) -> Any:
        """Returns the configuration with which a replica's ops are optimized before they are copied, or None."""
        chosen = self._chosen(replicas_are_optimized=False)
        config = tf.compat.v1.ConfigProto.FromString(chosen.config_proto_serialized)
        is_off = config.graph_options.rewrite_options.disable_meta_optimizer
        return None if _has_gpus() or is_off else config

    def note_replicas(self, *, are_optimized: bool) -> None:
        """Records if the ops of a step of the function have been optimized. Call it while the function is traced."""
        context = eager_context.context()
        # A function may run several steps.
        self._replicas_are_optimized = are_optimized and self._replicas_are_optimized is not False
        if context.function_call_options is self._own:
            self._own = self._chosen(self._replicas_are_optimized)
            context.function_call_options = self._own

    def _chosen(self, replicas_are_optimized: bool) -> Any:
        options = self._of_program
        return _options(options.executor_type, options.config_proto_serialized, _has_gpus(), replicas_are_optimized)


def _has_gpus() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))


#: Passes that are not repeated for ops that have been optimized.
_DONE_FOR_REPLICAS = (
    "arithmetic_optimization",
    "common_subgraph_elimination",
    "constant_folding",
    "function_optimization",
    "implementation_selector",
    "loop_optimization",
    "remapping",
    "shape_optimization",
)


@functools.lru_cache(maxsize=8)
def _options(executor_type: str | None, config_proto: bytes, has_gpus: bool, replicas_are_optimized: bool) -> Any:
    config = tf.compat.v1.ConfigProto.FromString(config_proto)
    rewriting = config.graph_options.rewrite_options
    if not rewriting.meta_optimizer_iterations:
        rewriting.meta_optimizer_iterations = rewriting.ONE
    rewriting.disable_tfg_optimizer = True
    if not has_gpus:
        # Zero is the default of each.
        if not rewriting.memory_optimization:
            rewriting.memory_optimization = rewriting.NO_MEM_OPT
        if not rewriting.layout_optimizer and not rewriting.cpu_layout_conversion:
            rewriting.layout_optimizer = rewriting.OFF
    if replicas_are_optimized:
        for each in _DONE_FOR_REPLICAS:
            setattr(rewriting, each, rewriting.OFF)
    return eager_context.FunctionCallOptions(executor_type=executor_type, config_proto=config)
