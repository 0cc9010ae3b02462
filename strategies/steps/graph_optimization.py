"""Lets TensorFlow optimize the graph of a step once, and without the passes that change nothing in it.

TensorFlow's graph optimizer (Grappler) runs all its passes a second time if the first changed a graph. With several
devices, it takes most of the time in which a step is compiled. For graphs of steps, the second time only merges some
constants. Nor do some passes change anything: those for memory and data layouts only look for GPUs, and those of
TensorFlow Graph IR infer shapes, which later passes infer again, and move ops into branches. They take half of the
time. In a convolutional network, a transformer and a recurrent network on two devices, all other ops that run are the
same (``tests/strategies/steps/test_graph_optimization.py``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from strategies._tf_internals import eager_context


@contextlib.contextmanager
def optimized_once() -> Iterator[None]:
    """Context manager: the graphs of functions that are called for the first time are optimized once, by few passes.

    What the program has chosen itself is kept.
    """
    context = eager_context.context()
    before = context.function_call_options
    has_gpus = bool(tf.config.list_logical_devices("GPU"))
    own = _options(before.executor_type, before.config_proto_serialized, has_gpus)
    context.function_call_options = own
    try:
        yield
    finally:
        # Options of `tf.config` that were changed meanwhile stay.
        if context.function_call_options is own:
            context.function_call_options = before


@functools.lru_cache(maxsize=8)
def _options(executor_type: str | None, config_proto: bytes, has_gpus: bool) -> Any:
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
    return eager_context.FunctionCallOptions(executor_type=executor_type, config_proto=config)
