"""Lets TensorFlow optimize the graph of a step once, not twice.

TensorFlow's graph optimizer (Grappler) runs all its passes a second time if the first changed a graph. With several
devices, it takes most of the time in which a step is compiled. For graphs of steps, the second time only merges some
constants: in a convolutional network and a transformer on two devices, all other ops that run are the same
(``tests/strategies/steps/test_graph_optimization.py``).
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
    """Context manager: the graphs of functions that are called for the first time are optimized once.

    A number of times that the program has chosen itself is kept.
    """
    context = eager_context.context()
    before = context.function_call_options
    own = _options(before.executor_type, before.config_proto_serialized)
    context.function_call_options = own
    try:
        yield
    finally:
        # Options of `tf.config` that were changed meanwhile stay.
        if context.function_call_options is own:
            context.function_call_options = before


@functools.lru_cache(maxsize=8)
def _options(executor_type: str | None, config_proto: bytes) -> Any:
    config = tf.compat.v1.ConfigProto.FromString(config_proto)
    rewriting = config.graph_options.rewrite_options
    if not rewriting.meta_optimizer_iterations:
        rewriting.meta_optimizer_iterations = rewriting.ONE
    return eager_context.FunctionCallOptions(executor_type=executor_type, config_proto=config)
