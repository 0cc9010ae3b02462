"""The table of operations, by itself; `test_row_dependence.py` asks the same of TensorFlow's operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategies.batches.row_kinds import Kind, Op
from strategies.batches.row_rules import kind_of

SAME, ROWS, SHARED, PAIRS = Kind.SAME, Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.PAIRS
MEAN, SUM, COUNT, SHAPE, MIXED, OTHER = Kind.MEAN, Kind.SUM, Kind.COUNT, Kind.SHAPE, Kind.MIXED, Kind.OTHER


def op(type_: str, *inputs: Kind, rank: int | None = 0, **known: Any) -> Op:
    """An operation with the output's rank, attributes by name, constants as `c1=`, and ranks of inputs as `r0=`."""
    constants = {int(name[1:]): np.asarray(value) for name, value in known.items() if name[0] == "c"}
    ranks = {int(name[1:]): value for name, value in known.items() if name[0] == "r" and name != "rows"}
    attributes = {name.removeprefix("a_"): value for name, value in known.items() if name.startswith("a_")}
    shapes = [[None] * ranks[i] if i in ranks else None for i in range(len(inputs))]
    return Op(
        type_,
        inputs,
        shapes,
        rank,
        known.get("output", 0),
        constants.get,
        attributes.get,
        num_rows=known.get("rows", ()),
    )


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (op("Mean", ROWS, SAME), MEAN),
        (op("Mean", ROWS, SAME, rank=1, c1=[0], r0=2), MEAN),
        (op("Mean", ROWS, SAME, rank=1, c1=[-1], r0=2), ROWS),
        (op("Sum", ROWS, SAME), SUM),
        (op("Sum", ROWS, SAME, rank=1, c1=[-2], r0=2), SUM),
        (op("Sum", ROWS, SAME, rank=1), OTHER),
        (op("Sum", SHARED, SAME), MEAN),
        (op("Sum", MEAN, SAME), MEAN),
        (op("Sum", PAIRS, SAME), OTHER),
        (op("Max", ROWS, SAME), OTHER),
        (op("Max", ROWS, SAME, rank=1, c1=[1]), ROWS),
        (op("Max", SUM, SAME), OTHER),
        (op("Prod", SHAPE, SAME), COUNT),
        (op("L2Loss", ROWS), SUM),
        (op("RealDiv", SUM, COUNT), MEAN),
        (op("DivNoNan", ROWS, COUNT, rank=2), SHARED),
        (op("RealDiv", COUNT, COUNT), SAME),
        (op("RealDiv", SUM, SAME), SUM),
        # The replica's own rows, which the program had from a shape; not the rows of the batch.
        (op("RealDiv", SUM, SAME, c1=6.0, rows=[3]), MEAN),
        (op("RealDiv", SUM, SAME, c1=8.0, rows=[3]), SUM),
        (op("RealDiv", SUM, SUM), OTHER),
        (op("Mul", MEAN, COUNT), SUM),
        (op("Mul", MEAN, SAME), MEAN),
        (op("Mul", MEAN, MEAN), OTHER),
        (op("Mul", ROWS, MEAN, rank=2), ROWS),
        (op("AddV2", MEAN, SAME), MEAN),
        (op("AddV2", SUM, SUM), SUM),
        (op("AddV2", SUM, MEAN), MIXED),
        (op("AddV2", SUM, SAME), MIXED),
        (op("AddV2", SUM, SAME, c1=0.5), MIXED),
        (op("AddV2", SAME, SUM, c0=0.0), SUM),
        (op("Sub", SUM, SAME, c1=[0.0, 0.0]), SUM),
        (op("AddV2", COUNT, SAME), COUNT),
        (op("Sub", COUNT, SAME), OTHER),
        (op("Sub", MEAN, MEAN), MEAN),
        (op("Pack", MEAN, SAME, rank=1), MEAN),
        (op("Pack", COUNT, SAME, rank=1), SHAPE),
        (op("ConcatV2", MEAN, MEAN, SAME, rank=1), MEAN),
        (op("Maximum", COUNT, SAME), COUNT),
        (op("SelectV2", SAME, MEAN, SAME), MEAN),
        (op("SelectV2", ROWS, ROWS, SAME, rank=1), ROWS),
        (op("Sqrt", MEAN), OTHER),
        (op("Sqrt", ROWS, rank=1), ROWS),
        (op("Relu", SAME, rank=1), SAME),
        (op("RandomStandardNormal", SAME, rank=2), ROWS),
        (op("StatelessRandomUniformV2", SAME, rank=0), OTHER),
        (op("IteratorGetNext", SAME, rank=2), ROWS),
        (op("CollectiveReduceV2", SUM, SAME), SAME),
        (op("MatMul", ROWS, SAME, rank=2, r0=2), ROWS),
        (op("MatMul", ROWS, ROWS, rank=2, r0=2, a_transpose_a=True), SUM),
        (op("MatMul", ROWS, ROWS, rank=2, r0=2, a_transpose_b=True), PAIRS),
        (op("BatchMatMulV2", ROWS, ROWS, rank=3, r0=3), ROWS),
        (op("Einsum", ROWS, SAME, rank=3, a_equation=b"abc,cde->abde"), ROWS),
        (op("Einsum", ROWS, ROWS, rank=2, a_equation=b"bi,bj->ij"), SUM),
        (op("Einsum", ROWS, ROWS, rank=2, a_equation=b"ai,bi->ab"), PAIRS),
        (op("Shape", ROWS, rank=1), SHAPE),
        (op("Shape", MEAN, rank=1), SAME),
        (op("Size", ROWS), COUNT),
        (op("StridedSlice", SHAPE, SAME, SAME, SAME, c1=[0], c2=[1], a_shrink_axis_mask=1), COUNT),
        (op("StridedSlice", SHAPE, SAME, SAME, SAME, c1=[1], c2=[2], a_shrink_axis_mask=1), SAME),
        (op("StridedSlice", SHAPE, SAME, SAME, SAME, rank=1, c1=[1], c2=[9]), SAME),
        (op("StridedSlice", SHAPE, SAME, SAME, SAME, rank=1, c1=[0], c2=[2]), SHAPE),
        (op("StridedSlice", ROWS, SAME, SAME, SAME, rank=1, a_shrink_axis_mask=1), OTHER),
        (op("StridedSlice", ROWS, SAME, SAME, SAME, rank=1, a_shrink_axis_mask=2), ROWS),
        (op("Unpack", SHAPE), COUNT),
        (op("Unpack", SHAPE, output=1), SAME),
        (op("BroadcastTo", SAME, SHAPE, rank=2), ROWS),
        (op("Range", SAME, SAME, SAME, rank=1), SAME),
        (op("Range", SAME, COUNT, SAME, rank=1), ROWS),
        (op("GatherV2", SAME, ROWS, SAME, rank=2), ROWS),
        (op("GatherV2", SAME, SAME, SAME, rank=2), SAME),
        (op("Reshape", ROWS, SAME, rank=1), ROWS),
        (op("Reshape", MEAN, SAME, rank=1), MEAN),
        (op("IdentityN", SAME, SUM, output=1), SUM),
        (op("IdentityN", SAME, SUM, output=0), SAME),
        (op("ZerosLike", ROWS, rank=2), ROWS),
        (op("SomethingNew", ROWS, rank=2), ROWS),
        (op("SomethingNew", ROWS, rank=0), OTHER),
        (op("SomethingNew", MEAN, rank=0), OTHER),
    ],
    ids=lambda value: (
        f"{value.type} of {[kind.name for kind in value.inputs]}" if isinstance(value, Op) else value.name
    ),
)
def test_kind(operation: Op, expected: Kind) -> None:
    assert kind_of(operation) is expected
