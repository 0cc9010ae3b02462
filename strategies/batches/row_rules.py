"""The table of operations: the rule that gives the kind of each one's output; see `row_kinds`."""

from __future__ import annotations

from collections.abc import Callable

from strategies.batches import row_arithmetic as arithmetic
from strategies.batches import row_gathers as gathers
from strategies.batches import row_names as names
from strategies.batches import row_order as order
from strategies.batches import row_positions as positions
from strategies.batches import row_shapes as shapes
from strategies.batches.row_kinds import Kind, Op, mixing, row_wise

_SPREADING = ("BroadcastTo", "Empty", "Fill", "Tile")
_RULES: dict[str, Callable[[Op], Kind]] = {
    **dict.fromkeys(names.ELEMENTWISE, row_wise),
    **dict.fromkeys(("Abs", "LeakyRelu", "Relu"), arithmetic.homogeneous),
    **dict.fromkeys(names.BY_ROW, order.by_row),
    **dict.fromkeys(("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"), positions.comparison),
    **dict.fromkeys(names.LAST_DIM, order.last_dims(1)),
    **dict.fromkeys(names.LAST_TWO_DIMS, order.last_dims(2)),
    **dict.fromkeys(names.LAST_THREE_DIMS, order.last_dims(3)),
    **dict.fromkeys(names.WEIGHT_GRADIENTS, arithmetic.weight_gradient),
    **dict.fromkeys(names.UNCHANGED, lambda op: op.inputs[0]),
    "Cast": positions.cast,
    "OneHot": positions.one_hot,
    "Mean": arithmetic.mean,
    "Sum": arithmetic.total,
    "Prod": arithmetic.product,
    **dict.fromkeys(("Any", "Max"), arithmetic.largest),
    **dict.fromkeys(("All", "Min"), arithmetic.smallest),
    "EuclideanNorm": arithmetic.not_linear,
    **dict.fromkeys(("ArgMax", "ArgMin"), order.position_of_extreme),
    "L2Loss": arithmetic.l2_loss,
    **dict.fromkeys(("Add", "AddN", "AccumulateNV2", "AddV2", "BiasAdd", "Sub"), arithmetic.addition),
    "Neg": arithmetic.negation,
    **dict.fromkeys(names.PRODUCTS, arithmetic.multiplication),
    **dict.fromkeys(("Div", "DivNoNan", "FloorDiv", "RealDiv", "TruncateDiv"), arithmetic.division),
    **dict.fromkeys(("Maximum", "Minimum"), arithmetic.bound),
    **dict.fromkeys(("Select", "SelectV2"), arithmetic.selection),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"), arithmetic.matrix_product),
    "Einsum": arithmetic.einsum,
    **dict.fromkeys(("Shape", "ShapeN"), shapes.shape_of),
    "Size": shapes.size_of,
    "Rank": lambda op: Kind.SAME,
    "BroadcastGradientArgs": shapes.reduced_dims_of_broadcast,
    "StridedSlice": shapes.strided_slice,
    "Slice": shapes.one_slice,
    "Split": shapes.split,
    "SplitV": shapes.split_by_sizes,
    "Unpack": shapes.unpacked,
    "Pack": shapes.packed,
    "ConcatV2": shapes.concatenated,
    "Reshape": shapes.reshaped,
    **dict.fromkeys(_SPREADING, shapes.spread),
    "Range": positions.counted_up,
    **dict.fromkeys(("OnesLike", "ZerosLike"), shapes.like),
    **dict.fromkeys(("GatherV2", "Gather", "ResourceGather"), gathers.gathered),
    **dict.fromkeys(("GatherNd", "ResourceGatherNd"), gathers.gathered_by_tuples),
    "Where": gathers.nonzero_indices,
    "ScatterNd": gathers.scattered,
    **dict.fromkeys(("TensorScatterAdd", "TensorScatterSub"), gathers.scattered_into),
    **dict.fromkeys(("TensorScatterUpdate", "TensorScatterMax", "TensorScatterMin"), gathers.overwritten),
    "UnsortedSegmentSum": gathers.summed_by_segment,
    **dict.fromkeys(("SegmentMax", "SegmentMean", "SegmentMin", "SegmentSum"), gathers.reduced_by_sorted_segment),
    **dict.fromkeys(("Bincount", "DenseBincount"), gathers.counted),
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"), gathers.distinct),
    **dict.fromkeys(("SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum"), gathers.reduced_by_segment),
    "SparseTensorDenseMatMul": gathers.sparse_product,
    **dict.fromkeys(("SparseFillEmptyRows", "SparseReorder", "SparseReshape"), gathers.components),
    **dict.fromkeys(("Cumprod", "Cumsum", "CumulativeLogsumexp"), order.scan),
    "ReverseV2": order.reverse,
    "Reverse": order.reverse_by_flags,
    "ReverseSequence": order.reverse_sequence,
    "Roll": order.roll,
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), order.pad),
    **dict.fromkeys(("RandomShuffle", "StatelessShuffle"), order.shuffle),
    **dict.fromkeys(names.DRAWS, order.draw),
    # A list of tensors has the kind of its tensors.
    **dict.fromkeys(("TensorListGetItem", "TensorListStack", "TensorListFromTensor"), lambda op: op.inputs[0]),
    **dict.fromkeys(("TensorListGather", "TensorListPopBack", "TensorListResize"), lambda op: op.inputs[0]),
    **dict.fromkeys(("TensorListConcat", "TensorListConcatV2"), lambda op: op.inputs[0]),
    **dict.fromkeys(("TensorListSetItem", "TensorListPushBack"), lambda op: joined(op.inputs[0], op.inputs[-1])),
    **dict.fromkeys(("EmptyTensorList", "TensorListReserve"), lambda op: Kind.SAME),
    **dict.fromkeys(("TensorListLength", "TensorListElementShape"), lambda op: Kind.SAME),
}
_CALLS = ("Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf")


def joined(one: Kind, other: Kind) -> Kind:
    """Returns the kind of a value that has either of two kinds, as after a conditional."""
    if one is other:
        return one
    kinds = {one, other}
    if kinds <= {Kind.SAME, Kind.DRAWN}:
        return Kind.DRAWN
    for kind in (Kind.UNKNOWN, Kind.AMBIGUOUS):
        if kind in kinds:
            return kind
    fixed = kinds - {Kind.SAME, Kind.DRAWN}
    if len(fixed) == 1 and (kind := next(iter(fixed))) in (Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.PAIRS, Kind.MEAN):
        return kind
    return Kind.SUM if kinds == {Kind.SUM, Kind.COUNT} else Kind.UNKNOWN


def kind_of(op: Op) -> Kind:
    """Returns the kind of an operation's output."""
    if op.type in names.SOURCES:
        return Kind.OTHER if op.output_rank == 0 else Kind.ROWS
    if op.type in names.DRAWS or op.type == "RandomShuffle":
        return _RULES[op.type](op)
    if op.type in _SPREADING and op.is_integer and shapes.is_for_each_row(op):
        # Integers are taken for indices: each row has its own lookup.
        return Kind.ROWS
    if op.type in names.OVER_REPLICAS:
        return Kind.SAME
    if all(kind is Kind.SAME for kind in op.inputs):
        return arithmetic.total(op) if op.type == "Sum" else Kind.SAME
    if op.type == "IdentityN":
        return op.inputs[op.output]
    if op.type.startswith(("FusedBatchNorm", "_FusedBatchNorm")):
        return _normalised(op)
    if op.type in _RULES:
        return _RULES[op.type](op)
    if op.type in _CALLS or op.type.startswith("__"):
        # An eager call of a function: its body is not inspected.
        return Kind.UNKNOWN if Kind.UNKNOWN in op.inputs else Kind.OTHER if op.output_rank == 0 else row_wise(op)
    return mixing(op)


def _normalised(op: Op) -> Kind:
    """Returns the kind of a batch normalization's output; its statistics are given, or the replica's, as documented."""
    if op.output == 0:
        return op.inputs[0]
    return Kind.OTHER if op.inputs[0].has_rows else row_wise(op)
