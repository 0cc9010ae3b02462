"""Times the calls of traced functions: the part of a first step that is TensorFlow's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import eager_context


def longest_call(run: Callable[[], None]) -> float:
    """Returns the seconds of the longest call of a traced function in `run`, without TensorFlow's graph optimizer.

    In a first step, that is the call of the step's function. It includes no Python. The optimizer stays switched off.
    """
    call, longest = eager_context.Context.call_function, 0.0

    def timed(*args: Any) -> Any:
        nonlocal longest
        start = time.perf_counter()
        try:
            return call(*args)
        finally:
            longest = max(longest, time.perf_counter() - start)

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    eager_context.Context.call_function = timed
    try:
        run()
    finally:
        eager_context.Context.call_function = call
    return longest
