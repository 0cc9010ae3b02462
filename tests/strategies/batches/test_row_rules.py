"""The table of operations alone; `test_row_dependence.py` tests the rules on TensorFlow's operations."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from strategies.batches.row_kinds import Kind, Layout, Op
from strategies.batches.row_layouts import layout_of
from strategies.batches.row_rules import kind_of

SAME, ROWS, SHARED, PAIRS = Kind.SAME, Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.PAIRS
DRAWN, SHIFTED, SOME, DISTINCT = Kind.DRAWN, Kind.SHIFTED, Kind.SOME, Kind.DISTINCT
MAX, MIN, AMBIGUOUS, UNKNOWN = Kind.MAX, Kind.MIN, Kind.AMBIGUOUS, Kind.UNKNOWN
MEAN, SUM, COUNT, SHAPE, MIXED, OTHER = Kind.MEAN, Kind.SUM, Kind.COUNT, Kind.SHAPE, Kind.MIXED, Kind.OTHER


POSITIONS = Layout(is_position=True, is_row_number=True)
SCALED = Layout(is_position=True, is_scaled=True, is_row_number=True)
MOVED = Layout(is_row_number=True)


def op(type_: str, *inputs: Kind, rank: int | None = 0, **known: Any) -> Op:
    """Returns an operation of the given type on inputs of the given kinds.

    Keywords: `a_...=` for attributes, `c1=` for constants, `r0=` and `s0=` for ranks and shapes of inputs, `axis0=` for
    their dimensions of rows, `l0=` for their layouts; `rank=`, `first=` and `shape=` of the output, `rows=` of the
    replica and `all=` of the batch.
    """
    constants = {int(name[1:]): np.asarray(value) for name, value in known.items() if name[0] == "c"}
    places = {int(name[4:]): Layout(axis) for name, axis in known.items() if name.startswith("axis")}
    places |= {int(name[1:]): layout for name, layout in known.items() if name[0] == "l"}
    given = {int(name[1:]): value for name, value in known.items() if name[0] == "s" and name[1:].isdigit()}
    ranks = {int(name[1:]): value for name, value in known.items() if name[0] == "r" and name[1:].isdigit()}
    attributes = {name.removeprefix("a_"): value for name, value in known.items() if name.startswith("a_")}
    shapes = [given.get(i, [None] * ranks[i] if i in ranks else None) for i in range(len(inputs))]
    return Op(
        type_,
        inputs,
        shapes,
        rank,
        known.get("output", 0),
        constants.get,
        attributes.get,
        num_rows=known.get("rows", ()),
        num_all=known.get("all", ()),
        first_size=known.get("first"),
        layouts=[places.get(i, Layout()) for i in range(len(inputs))],
        output_shape=known.get("shape"),
        is_integer=known.get("integer", False),
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
        (op("Abs", SHARED, rank=1), SHARED),
        (op("Square", SHARED, rank=1), UNKNOWN),
        (op("AddV2", SHARED, SHARED, rank=1), SHARED),
        (op("AddV2", SHARED, SAME, rank=1), UNKNOWN),
        (op("RealDiv", ROWS, SHARED, rank=1), UNKNOWN),
        (op("Maximum", ROWS, SHARED, rank=1), UNKNOWN),
        (op("Sum", ROWS, SAME, l0=Layout(is_constant=True)), COUNT),
        (op("Mean", ROWS, SAME, l0=Layout(is_constant=True)), SAME),
        (op("Sum", ROWS, SAME, l0=Layout(divided_by=COUNT)), MEAN),
        (op("Sum", ROWS, SAME, l0=Layout(divided_by=AMBIGUOUS)), AMBIGUOUS),
        (op("Mean", ROWS, SAME, l0=Layout(divided_by=COUNT)), MEAN),
        # The inverse of the number of rows of a replica, or of its terms; a scale of two digits, and another one.
        (op("Mul", SUM, SAME, c1=1 / 3, rows=[3]), AMBIGUOUS),
        (op("Mul", SAME, SUM, c0=np.float32(1 / 6), rows=[3], l1=Layout(summed=(2,))), AMBIGUOUS),
        (op("Mul", SUM, SAME, c1=0.05, rows=[20]), SUM),
        (op("Mul", SUM, SAME, c1=0.3, rows=[3]), SUM),
        (op("Mul", SUM, SAME, c1=np.nan, rows=[3]), SUM),
        (op("Mul", SUM, SAME, c1=1j / 3, rows=[3]), SUM),
        (op("RealDiv", SUM, SAME, c1=0.0, rows=[3]), SUM),
        # Positions of rows as numbers.
        (op("Cast", ROWS, rank=1, l0=POSITIONS), PAIRS),
        (op("Cast", ROWS, rank=1, l0=POSITIONS, integer=True), ROWS),
        (op("OneHot", ROWS, SAME, SAME, SAME, rank=2, l0=POSITIONS), PAIRS),
        (op("GatherV2", SAME, ROWS, SAME, rank=2, l1=POSITIONS), PAIRS),
        (op("GatherV2", ROWS, ROWS, SAME, rank=2, r0=2, c2=[0], l1=MOVED), UNKNOWN),
        (op("Less", ROWS, SAME, rank=1, l0=POSITIONS), PAIRS),
        (op("Less", ROWS, COUNT, rank=1, l0=POSITIONS), ROWS),
        (op("Sum", ROWS, SAME, l0=POSITIONS), OTHER),
        (op("GatherV2", ROWS, ROWS, SAME, rank=2, r0=2, c2=[0], l1=POSITIONS), ROWS),
        (op("Sum", MEAN, SAME), MEAN),
        (op("Sum", PAIRS, SAME), OTHER),
        (op("Max", ROWS, SAME), MAX),
        (op("All", ROWS, SAME), MIN),
        (op("Max", MAX, SAME), MAX),
        (op("Neg", MAX), MIN),
        (op("EuclideanNorm", ROWS, SAME), OTHER),
        (op("EuclideanNorm", ROWS, SAME, rank=1, c1=[1]), ROWS),
        # Rows along another dimension, as in sequences whose first dimension is time.
        (op("Mean", ROWS, SAME, rank=2, c1=[0], r0=3, axis0=1), ROWS),
        (op("Mean", ROWS, SAME, rank=2, c1=[1], r0=3, axis0=1), MEAN),
        (op("Max", ROWS, SAME, rank=1, c1=[1]), ROWS),
        (op("Max", SUM, SAME), OTHER),
        (op("Prod", SHAPE, SAME), COUNT),
        (op("L2Loss", ROWS), SUM),
        (op("RealDiv", SUM, COUNT), MEAN),
        (op("DivNoNan", ROWS, COUNT, rank=2), SHARED),
        (op("RealDiv", COUNT, COUNT), SAME),
        (op("RealDiv", SUM, SAME), SUM),
        # The divisor is the replica's own number of rows, from a shape in the program; not the rows of the batch.
        (op("RealDiv", SUM, SAME, c1=3.0, rows=[3]), MEAN),
        (op("RealDiv", SUM, SAME, c1=8.0, rows=[3]), SUM),
        # Rows times the two numbers per row that were summed; the batch of two replicas; either of the two.
        (op("RealDiv", SUM, SAME, c1=6.0, rows=[3], l0=Layout(summed=(2,))), MEAN),
        (op("RealDiv", SUM, SAME, c1=6.0, rows=[3], all=[6]), SUM),
        (op("RealDiv", SUM, SAME, c1=6.0, rows=[3], all=[6], l0=Layout(summed=(2,))), AMBIGUOUS),
        (op("RealDiv", SUM, SAME, c1=2352.0, rows=[3], all=[6], l0=Layout(summed=(28, 28))), MEAN),
        (op("RealDiv", SUM, SAME, c1=6.0, rows=[3], all=[6], l0=Layout(summed=None)), AMBIGUOUS),
        (op("RealDiv", SUM, SAME, c1=1.0, rows=[1], all=[2]), MEAN),
        (op("RealDiv", SUM, SAME, c1=2.0, rows=[1], all=[2]), SUM),
        # Ones in a known shape: one for each row, or that shape by chance.
        (op("Sum", SAME, SAME, l0=Layout(may_be_rows=True)), AMBIGUOUS),
        (op("Mean", SAME, SAME, l0=Layout(may_be_rows=True)), SAME),
        (op("RealDiv", SUM, SUM), OTHER),
        (op("Mul", MEAN, COUNT), SUM),
        (op("Mul", MEAN, SAME), MEAN),
        (op("Mul", MEAN, MEAN), OTHER),
        (op("Mul", ROWS, MEAN, rank=2), UNKNOWN),
        (op("Mul", ROWS, DRAWN, rank=2), ROWS),
        (op("Mul", ROWS, UNKNOWN, rank=2), UNKNOWN),
        (op("Sub", ROWS, MEAN, rank=2), SHIFTED),
        (op("Sum", SHIFTED, SAME), SUM),
        (op("Square", SHIFTED, rank=2), UNKNOWN),
        (op("MatMul", SHIFTED, SAME, rank=2, r0=2), SHIFTED),
        (op("AddV2", ROWS, ROWS, rank=2, r0=2, r1=2, axis1=1), PAIRS),
        # Keras adds a row without its first dimension as a bias. With several rows, it would be another row.
        (op("BiasAdd", ROWS, ROWS, rank=2, s0=[1, 8], r0=2, s1=[8], r1=1), ROWS),
        (op("BiasAdd", ROWS, ROWS, rank=2, s0=[None, 8], r0=2, s1=[8], r1=1, rows=[1]), ROWS),
        (op("BiasAdd", ROWS, ROWS, rank=2, s0=[2, 8], r0=2, s1=[8], r1=1, rows=[2]), PAIRS),
        (op("AddV2", MEAN, DRAWN), MEAN),
        (op("AddV2", SAME, DRAWN), DRAWN),
        (op("AddV2", MAX, SAME), MAX),
        (op("Sub", SAME, MAX), OTHER),
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
        (op("RandomStandardNormal", SHAPE, rank=2), ROWS),
        (op("RandomStandardNormal", SAME, rank=2, rows=[4], first=4), ROWS),
        (op("TruncatedNormal", SAME, rank=2), DRAWN),
        (op("StatelessRandomUniformV2", SAME, SAME, rank=0), SAME),
        (op("StatelessRandomUniformV2", SAME, DRAWN, rank=0), DRAWN),
        (op("StatelessRandomUniformV2", SHAPE, DRAWN, rank=2), ROWS),
        # Every replica would draw the same numbers for its rows.
        (op("StatelessRandomUniformV2", SHAPE, SAME, rank=2), UNKNOWN),
        (op("RandomShuffle", ROWS, rank=1), UNKNOWN),
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
        (
            op(
                *("StridedSlice", ROWS, SAME, SAME, SAME),
                rank=1,
                c1=[0, 0],
                c2=[0, 1],
                a_begin_mask=1,
                a_end_mask=1,
                a_shrink_axis_mask=2,
            ),
            ROWS,
        ),
        (op("StridedSlice", ROWS, SAME, SAME, SAME, rank=2, c1=[1], c2=[0], a_end_mask=1), UNKNOWN),
        (op("StridedSlice", ROWS, SAME, SAME, SAME, rank=2, c1=[0], c2=[0], c3=[-1], a_end_mask=1), UNKNOWN),
        # Half of two batches that were joined; half of one.
        (op("StridedSlice", ROWS, SAME, COUNT, SAME, rank=2, c1=[0], l0=Layout(times=Fraction(2))), ROWS),
        (op("StridedSlice", ROWS, SAME, COUNT, SAME, rank=2, c1=[0], l2=Layout(times=Fraction(1, 2))), UNKNOWN),
        (op("Split", SAME, ROWS, rank=2, c0=0, a_num_split=2, l1=Layout(times=Fraction(2))), ROWS),
        (op("Split", SAME, ROWS, rank=2, c0=0, a_num_split=2), UNKNOWN),
        (op("Split", SAME, ROWS, rank=2, c0=1, a_num_split=2), ROWS),
        # Along the dimension of rows, or along another one.
        (op("Cumsum", ROWS, SAME, rank=2, r0=2, c1=0), UNKNOWN),
        (op("Cumsum", ROWS, SAME, rank=2, r0=2, c1=-1), ROWS),
        (op("ReverseV2", ROWS, SAME, rank=2, r0=2, c1=[0]), UNKNOWN),
        (op("ReverseV2", ROWS, SAME, rank=3, r0=3, c1=[0], axis0=1), ROWS),
        (op("Roll", ROWS, SAME, SAME, rank=2, r0=2, c2=[0]), UNKNOWN),
        (op("Roll", ROWS, SAME, SAME, rank=2, r0=2, c2=[1]), ROWS),
        (op("TopKV2", ROWS, SAME, rank=1, r0=1), UNKNOWN),
        (op("TopKV2", ROWS, SAME, rank=2, r0=2), ROWS),
        (op("Softmax", ROWS, rank=2, r0=2, axis0=1), UNKNOWN),
        (op("Cholesky", ROWS, rank=2, r0=2), UNKNOWN),
        (op("Cholesky", ROWS, rank=3, r0=3), ROWS),
        (op("ArgMax", ROWS, SAME, rank=1, r0=2, c1=0), OTHER),
        (op("ArgMax", ROWS, SAME, rank=1, r0=2, c1=1), ROWS),
        (op("Pad", ROWS, SAME, rank=2, r0=2, c1=[[0, 0], [1, 1]]), ROWS),
        (op("Pad", ROWS, SAME, rank=2, r0=2, c1=[[1, 0], [0, 0]]), UNKNOWN),
        (op("Conv2D", ROWS, SAME, rank=4), ROWS),
        (op("Conv2DBackpropFilter", ROWS, SAME, ROWS, rank=4), SUM),
        (op("FusedBatchNormV3", ROWS, SAME, SAME, SAME, SAME, rank=4), ROWS),
        (op("Unpack", SHAPE), COUNT),
        (op("Unpack", SHAPE, output=1), SAME),
        (op("BroadcastTo", SAME, SHAPE, rank=2), ROWS),
        (op("Range", SAME, SAME, SAME, rank=1), SAME),
        (op("Range", SAME, COUNT, SAME, rank=1, integer=True), ROWS),
        (op("Range", SAME, COUNT, SAME, rank=1), PAIRS),
        (op("GatherV2", SAME, ROWS, SAME, rank=2), ROWS),
        (op("GatherV2", SAME, SAME, SAME, rank=2), SAME),
        (op("GatherV2", ROWS, SAME, SAME, rank=2, c2=0), UNKNOWN),
        (op("GatherV2", ROWS, SAME, SAME, rank=2, r0=2, c2=1), ROWS),
        (op("GatherV2", ROWS, ROWS, SAME, rank=2, c2=0), UNKNOWN),
        (op("GatherV2", ROWS, ROWS, SAME, rank=2, c2=1, a_batch_dims=1), ROWS),
        (op("GatherNd", ROWS, ROWS, rank=1, l1=POSITIONS), ROWS),
        (op("GatherNd", ROWS, ROWS, rank=1), UNKNOWN),
        (op("Where", ROWS, rank=2), SOME),
        (op("GatherV2", ROWS, SOME, SAME, rank=2, c2=0), SOME),
        (op("Sum", SOME, SAME), SUM),
        (op("Mean", SOME, SAME), OTHER),
        (op("Size", SOME), SUM),
        (op("Unique", ROWS, rank=1), DISTINCT),
        (op("Unique", ROWS, rank=1, output=1), ROWS),
        (op("Size", DISTINCT), UNKNOWN),
        (op("GatherV2", SAME, DISTINCT, SAME, rank=2, c2=0), DISTINCT),
        (op("GatherV2", DISTINCT, ROWS, SAME, rank=2, c2=0), ROWS),
        (op("SparseSegmentMean", DISTINCT, ROWS, ROWS, rank=2), ROWS),
        (op("UnsortedSegmentSum", ROWS, ROWS, SAME, rank=2), SUM),
        (op("UnsortedSegmentMax", ROWS, ROWS, SAME, rank=2), UNKNOWN),
        (op("SegmentMean", ROWS, ROWS, rank=2), ROWS),
        (op("SegmentMean", ROWS, MEAN, rank=2), UNKNOWN),
        (op("ScatterNd", ROWS, ROWS, SAME, rank=2), SUM),
        (op("TensorScatterAdd", SAME, ROWS, ROWS, rank=2), MIXED),
        (op("TensorScatterUpdate", SAME, ROWS, ROWS, rank=2), UNKNOWN),
        (op("DenseBincount", ROWS, SAME, SAME, rank=1, r0=1), SUM),
        (op("Reshape", ROWS, SAME, rank=1), ROWS),
        # The reshape makes groups of rows.
        (op("Reshape", ROWS, SAME, rank=3, s0=[None, 6], shape=[4, None, 6]), UNKNOWN),
        (op("Reshape", MEAN, SAME, rank=1), MEAN),
        (op("IdentityN", SAME, SUM, output=1), SUM),
        (op("IdentityN", SAME, SUM, output=0), SAME),
        (op("ZerosLike", ROWS, rank=2), ROWS),
        (op("SomethingNew", ROWS, rank=2), UNKNOWN),
        (op("SomethingNew", SHAPE, rank=1), SHAPE),
        (op("SomethingNew", DRAWN, rank=0), DRAWN),
        (op("SomethingNew", MEAN, rank=0), OTHER),
    ],
    ids=lambda value: (
        f"{value.type} of {[kind.name for kind in value.inputs]}" if isinstance(value, Op) else value.name
    ),
)
def test_kind(operation: Op, expected: Kind) -> None:
    assert kind_of(operation) is expected


TWICE = Layout(times=Fraction(2))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (op("Transpose", ROWS, SAME, rank=3, r0=3, c1=[1, 0, 2]), Layout(1)),
        (op("ExpandDims", ROWS, SAME, rank=3, r0=2, c1=0), Layout(1)),
        (op("Squeeze", ROWS, rank=2, s0=[1, None, 3], axis0=1, a_squeeze_dims=[0]), Layout(0)),
        (op("Mul", ROWS, SAME, rank=3, r0=2, r1=3), Layout(1)),
        (op("Mean", ROWS, SAME, rank=2, s0=[7, None, 3], c1=[0], axis0=1), Layout(0, summed=(7,))),
        (op("Max", ROWS, SAME, rank=3, r0=3, c1=[0], axis0=1, a_keep_dims=True), Layout(1)),
        (op("Pack", ROWS, ROWS, rank=3, r0=2, r1=2, a_axis=0), Layout(1)),
        (op("Unpack", ROWS, rank=2, r0=3, axis0=1, a_axis=0), Layout(0)),
        (op("ConcatV2", ROWS, ROWS, SAME, rank=2, c2=0), TWICE),
        (op("ConcatV2", ROWS, ROWS, SAME, rank=2, c2=1), Layout()),
        (op("Reshape", ROWS, SAME, rank=2, s0=[None, 5, 6], shape=[None, 6]), Layout(times=Fraction(5))),
        (op("Reshape", ROWS, SAME, rank=3, s0=[None, 6], shape=[2, None, 6], l0=TWICE), Layout(1)),
        # One row of five items, and the reverse.
        (op("Reshape", ROWS, SAME, rank=3, s0=[5, 4], shape=[1, 5, 4], l0=Layout(times=Fraction(5))), Layout()),
        (op("Reshape", ROWS, SAME, rank=2, s0=[7, None, 6], shape=[None, 6], axis0=1), Layout(0, None, (7,))),
        (
            op("Reshape", ROWS, SAME, rank=3, s0=[None, 6], shape=[7, None, 6], l0=Layout(0, None, (7,))),
            Layout(1, None),
        ),
        (op("Einsum", ROWS, SAME, rank=3, r0=3, a_equation=b"abc,cd->bad"), Layout(1)),
        (op("MatMul", SAME, ROWS, rank=2, r0=2, r1=2, a_transpose_b=True), Layout(1)),
        (op("TensorListFromTensor", ROWS, SAME, rank=0, r0=3, axis0=1), Layout(0)),
        (op("TensorListStack", ROWS, SAME, rank=3, r0=0), Layout(1)),
        (op("Sum", ROWS, SAME, rank=0, s0=[None, 3, 4], c1=[0, 1, 2]), Layout(summed=(3, 4))),
        (op("Range", SAME, COUNT, SAME, rank=1, integer=True), POSITIONS),
        (op("Range", SAME, COUNT, SAME, rank=1, integer=True, c0=[1]), MOVED),
        (op("Range", SAME, SAME, SAME, rank=1, first=5, rows=[5], integer=True), Layout(is_position=True)),
        (op("AddV2", ROWS, SAME, rank=1, integer=True, l0=POSITIONS, c1=1), MOVED),
        (op("AddV2", ROWS, DRAWN, rank=1, integer=True, l0=POSITIONS), Layout()),
        (op("AddV2", SAME, SAME, rank=1, integer=True, c0=[0], c1=[2]), Layout()),
        (op("Mul", ROWS, SAME, rank=1, integer=True, l0=POSITIONS, c1=8), SCALED),
        (op("AddV2", ROWS, SAME, rank=1, integer=True, l0=SCALED, c1=1), SCALED),
        (op("AddV2", ROWS, ROWS, rank=1, integer=True, l0=SCALED), Layout(is_position=True, is_scaled=True)),
        (op("FloorMod", ROWS, COUNT, rank=1, integer=True, l0=POSITIONS), MOVED),
        (op("GatherV2", ROWS, ROWS, SAME, rank=1, r0=1, integer=True, l1=POSITIONS), Layout()),
        (op("FloorDiv", COUNT, SAME, c1=2), Layout(times=Fraction(1, 2))),
        (op("Fill", SAME, SAME, rank=2, first=4, rows=[4]), Layout(may_be_rows=True)),
        (op("Fill", SHAPE, SAME, rank=1), Layout(is_constant=True)),
        (op("Mul", ROWS, SAME, rank=1, l0=Layout(is_constant=True)), Layout(is_constant=True)),
        (op("AddV2", ROWS, ROWS, rank=1, l0=Layout(is_constant=True)), Layout()),
        (op("RealDiv", ROWS, SAME, rank=1, c1=3.0, rows=[3]), Layout(divided_by=COUNT)),
        (op("RealDiv", ROWS, SAME, rank=1, c1=4.0, rows=[3]), Layout()),
        (op("Mul", ROWS, SAME, rank=1, c1=1 / 3, rows=[3]), Layout(divided_by=AMBIGUOUS)),
        (op("Mul", ROWS, ROWS, rank=1, l0=Layout(divided_by=COUNT)), Layout(divided_by=COUNT)),
        (op("Square", ROWS, rank=1, l0=Layout(divided_by=COUNT)), Layout()),
        (op("AddV2", ROWS, SAME, rank=1, l0=Layout(divided_by=COUNT)), Layout()),
    ],
    ids=lambda value: value.type if isinstance(value, Op) else str(value.axis),
)
def test_layout(operation: Op, expected: Layout) -> None:
    assert layout_of(operation, kind_of(operation)) == expected
