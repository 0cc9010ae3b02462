"""Every exchange on one device, over the values of all coordinates, and the cases to test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.topology.mesh import DeviceMesh

Tensors = list[Any]
CUBE = {"data": 2, "pipe": 2, "tensor": 2}
SQUARE = {"data": 2, "tensor": 2}
FLOATS = ["float16", "bfloat16", "float64"]


def reference(mesh: DeviceMesh, method: str, values: Sequence[Any], axis: str, **kwargs: Any) -> Tensors:
    """Runs the exchange on one device, group by group."""
    results: Tensors = [None] * mesh.size
    for group in mesh.groups(axis):
        outputs = REFERENCES[method]([values[i] for i in group], **kwargs)
        for index, output in zip(group, outputs, strict=True):
            results[index] = output
    return results


def _all_reduce(values: Tensors, op: str = "sum") -> Tensors:
    reduce = {"sum": tf.reduce_sum, "mean": tf.reduce_mean, "min": tf.reduce_min, "max": tf.reduce_max}[op]
    return [reduce(tf.stack(values), axis=0)] * len(values)


def _all_gather(values: Tensors, dim: int = 0, equal_sizes: bool = False) -> Tensors:
    return [tf.concat(values, dim)] * len(values)


def _reduce_scatter(values: Tensors, dim: int = 0, op: str = "sum") -> Tensors:
    return list(tf.split(_all_reduce(values, op)[0], len(values), dim))


def _broadcast(values: Tensors, root: int = 0) -> Tensors:
    return [values[root]] * len(values)


def _all_to_all(values: Tensors, split_dim: int, concat_dim: int) -> Tensors:
    parts = [tf.split(value, len(values), split_dim) for value in values]
    return [tf.concat([part[i] for part in parts], concat_dim) for i in range(len(values))]


def _permute(values: Tensors, pairs: Sequence[tuple[int, int]]) -> Tensors:
    source_of = {target: source for source, target in pairs}
    return [values[source_of[i]] if i in source_of else tf.zeros_like(v) for i, v in enumerate(values)]


REFERENCES: dict[str, Callable[..., Tensors]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "permute": _permute,
}

#: method, its arguments, shape of each coordinate's value (given its flat index).
Case = tuple[str, dict[str, Any], Callable[[int], tuple[int, ...]]]
CASES: list[Case] = [
    ("all_reduce", {}, lambda i: (3, 5)),
    ("all_reduce", {"op": "mean"}, lambda i: (7,)),
    ("all_reduce", {"op": "min"}, lambda i: (17, 2)),
    ("all_reduce", {"op": "max"}, lambda i: ()),
    ("all_reduce", {}, lambda i: (0, 2)),
    ("all_gather", {}, lambda i: (2, 3)),
    ("all_gather", {"dim": -1, "equal_sizes": True}, lambda i: (2, 3)),
    ("all_gather", {}, lambda i: (i % 3, 2)),
    ("all_gather", {"dim": 1}, lambda i: (2, 1 + i, 3)),
    ("all_gather", {}, lambda i: (0, 2)),
    ("reduce_scatter", {}, lambda i: (8, 3)),
    ("reduce_scatter", {"dim": 1, "op": "mean"}, lambda i: (3, 16, 1)),
    ("reduce_scatter", {}, lambda i: (0,)),
    ("broadcast", {"root": 1}, lambda i: (3, 1)),
    ("broadcast", {"root": 0}, lambda i: (0,)),
    ("all_to_all", {"split_dim": 0, "concat_dim": 1}, lambda i: (8, 3)),
    ("all_to_all", {"split_dim": 1, "concat_dim": 0}, lambda i: (3, 16)),
    ("all_to_all", {"split_dim": 0, "concat_dim": 0}, lambda i: (16,)),
    ("permute", {"pairs": [(0, 1), (1, 0)]}, lambda i: (3,)),
    ("permute", {"pairs": [(0, 1)]}, lambda i: (5, 3)),
    ("permute", {"pairs": [(1, 1)]}, lambda i: (2,)),
]

SUM, LOWEST, UNEQUAL, SCATTER, ROOT, EXCHANGE, SWAP = (CASES[i] for i in (0, 2, 7, 10, 13, 15, 18))
#: Tracing functions is slow: unknown sizes are tested with one case for each way to move data.
MODES_AND_CASES = [
    *(("eager", case) for case in CASES),
    *(("graph", case) for case in CASES),
    *(("dynamic", case) for case in (LOWEST, UNEQUAL, CASES[9], SCATTER, ROOT, EXCHANGE, SWAP)),
]


#: Between processes, one case for each way to move data: the others differ in shapes and arguments, which are the same
#: in one process.
_MOVES = (SUM, LOWEST, UNEQUAL, SCATTER, ROOT, EXCHANGE, SWAP)
BETWEEN_PROCESSES = [
    pytest.param(mode, case, marks=[] if case in _MOVES else [pytest.mark.parity_all]) for mode, case in MODES_AND_CASES
]


def ids(case: Case | str) -> str:
    if isinstance(case, str):
        return case
    method, kwargs, shape = case
    return f"{method}-{kwargs}-{shape(1)}".replace(" ", "")


def draw(shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> Tensors:
    """Returns small whole numbers: their sums are exact in every dtype, and ties occur."""
    rng = np.random.default_rng(len(shapes))
    return [tf.cast(rng.integers(-4, 5, size=shape), dtype) for shape in shapes]
