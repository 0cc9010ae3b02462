"""The table of operations: the rule by which each makes the kind of its output, see `row_kinds`."""

from __future__ import annotations

from collections.abc import Callable

from strategies.batches import row_arithmetic as arithmetic
from strategies.batches import row_shapes as shapes
from strategies.batches.row_kinds import Kind, Op, of_unknown

#: Operations that draw random numbers, by parts of their names. What they draw is another's on each replica.
_DRAWS = ("Random", "Multinomial")
#: These bring rows, whatever they take.
_SOURCES = frozenset(
    {
        "EagerPyFunc",
        "IteratorGetNext",
        "IteratorGetNextAsOptional",
        "IteratorGetNextSync",
        "MultiDeviceIteratorGetNextFromShard",
        "OptionalGetValue",
        "PyFunc",
        "PyFuncStateless",
    }
)
#: Reductions over replicas: the result is the same on all of them.
_OVER_REPLICAS = ("CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3", "HorovodAllreduce", "NcclAllReduce")
#: Operations that are linear in their first input, and leave the order of its rows.
_UNCHANGED = frozenset(
    {
        "Bitcast",
        "Cast",
        "CheckNumerics",
        "DebugIdentityV2",
        "EnsureShape",
        "ExpandDims",
        "Identity",
        "Neg",
        "PlaceholderWithDefault",
        "PreventGradient",
        "Snapshot",
        "Squeeze",
        "StopGradient",
        "Transpose",
    }
)

_SPREADING = ("BroadcastTo", "Fill", "Tile")
_RULES: dict[str, Callable[[Op], Kind]] = {
    "Mean": arithmetic.reduction(Kind.MEAN, Kind.OTHER),
    "Sum": arithmetic.reduction(Kind.SUM, Kind.MEAN),
    "Prod": arithmetic.product,
    **dict.fromkeys(("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Min"), arithmetic.not_linear),
    "L2Loss": arithmetic.l2_loss,
    **dict.fromkeys(("Add", "AddN", "AddV2", "BiasAdd", "Sub"), arithmetic.addition),
    **dict.fromkeys(("Mul", "MulNoNan"), arithmetic.multiplication),
    **dict.fromkeys(("Div", "DivNoNan", "FloorDiv", "RealDiv", "TruncateDiv"), arithmetic.division),
    **dict.fromkeys(("Maximum", "Minimum"), arithmetic.bound),
    **dict.fromkeys(("Select", "SelectV2"), arithmetic.selection),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"), arithmetic.matrix_product),
    "Einsum": arithmetic.einsum,
    "Shape": shapes.shape_of,
    "Size": shapes.size_of,
    "StridedSlice": shapes.strided_slice,
    "Unpack": shapes.unpacked,
    "Pack": shapes.packed,
    "ConcatV2": shapes.concatenated,
    **dict.fromkeys(("GatherV2", "Gather"), shapes.gathered),
    "Reshape": shapes.reshaped,
    **dict.fromkeys((*_SPREADING, "Range"), shapes.spread),
    **dict.fromkeys(("OnesLike", "ZerosLike"), shapes.like),
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"), shapes.unique),
}


def kind_of(op: Op) -> Kind:
    """Returns the kind of an operation's output."""
    if op.type in _SOURCES or any(name in op.type for name in _DRAWS):
        return Kind.OTHER if op.output_rank == 0 else Kind.ROWS
    if op.type in _SPREADING and shapes.is_for_each_row(op):
        return Kind.ROWS
    if op.type in _OVER_REPLICAS or all(kind is Kind.SAME for kind in op.inputs):
        return Kind.SAME
    if op.type in _RULES:
        return _RULES[op.type](op)
    if op.type in _UNCHANGED:
        return op.inputs[0]
    if op.type == "IdentityN":
        return op.inputs[op.output]
    return of_unknown(op)
