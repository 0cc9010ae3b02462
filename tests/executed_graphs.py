"""The graphs that TensorFlow executes, after its optimizations, for each device of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# No public API gives the executed graphs.
from strategies._tf_internals import eager_context


def executed_graphs(step: Callable[[], Any]) -> list[Any]:
    """Calls `step`, and returns the function graphs that were made for it, one for each function that ran first."""
    context = eager_context.context()
    context.enable_run_metadata()
    try:
        # TensorFlow goes on collecting after `disable_run_metadata`: what ran since the last time is still there.
        context.export_run_metadata()
        step()
        return list(context.export_run_metadata().function_graphs)
    finally:
        context.disable_run_metadata()
