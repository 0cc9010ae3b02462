"""The strategies of the suites whose replicas span processes: one for each mesh, made in one order on all ranks."""

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
    """The same for the same axes."""
    return _made(*axes.items())


@functools.cache
def _made(*axes: tuple[str, int]) -> Any:
    return new_strategy(dict(axes))
