"""The strategies of suites whose replicas span processes: one for each mesh, made in the same order on all ranks."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import strategies

ENGINE = os.environ.get("SUITE_STRATEGY", "MultiWorkerMirroredStrategy")


def new_strategy(axes: Any, **options: Any) -> Any:
    return getattr(strategies, ENGINE)(mesh=axes, **options)


def on(axes: Mapping[str, int]) -> Any:
    """Returns the strategy of a mesh, always the same object for the same axes."""
    return _made(*axes.items())


@functools.cache
def _made(*axes: tuple[str, int]) -> Any:
    return new_strategy(dict(axes))
