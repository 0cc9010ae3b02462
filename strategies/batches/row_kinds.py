"""The dependence of a number on the rows of a batch: a mean over them, a sum, their count, or nothing of the kind.

A step is written for one device, which has all rows, and runs on replicas, which have some each. The relation of a
replica's number to the one that a single device would have follows from the operations that made it. Each operation
maps the kinds of its inputs to the kind of its output; this is the table of operations, without TensorFlow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any


class Kind(enum.Enum):
    """The dependence of a replica's tensor on the replica's rows.

    Attributes:
        SAME: not at all: the same on all replicas.
        ROWS: has something for each row, along its first dimension.
        ROWS_PER_COUNT: the same, divided by the number of rows.
        PAIRS: compares rows with each other.
        MEAN: a mean over rows. Weighed by rows, those of the replicas add up to that of the batch.
        SUM: a sum over rows. Those of the replicas add up to that of the batch.
        COUNT: the number of rows, or a constant times it.
        SHAPE: a shape that has the number of rows in it.
        MIXED: a sum of terms, some of which are sums over rows, and some not.
        OTHER: anything else made of all rows: a maximum, a product of means.
    """

    SAME = enum.auto()
    ROWS = enum.auto()
    ROWS_PER_COUNT = enum.auto()
    PAIRS = enum.auto()
    MEAN = enum.auto()
    SUM = enum.auto()
    COUNT = enum.auto()
    SHAPE = enum.auto()
    MIXED = enum.auto()
    OTHER = enum.auto()

    @property
    def has_rows(self) -> bool:
        """True if the rows are still there, side by side."""
        return self in (Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.PAIRS)


_SAME, _ROWS, _SHARED, _PAIRS = Kind.SAME, Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.PAIRS
_MEAN, _SUM, _COUNT, _SHAPE, _MIXED, _OTHER = Kind.MEAN, Kind.SUM, Kind.COUNT, Kind.SHAPE, Kind.MIXED, Kind.OTHER


@dataclass(frozen=True)
class Op:
    """One operation, as far as the rules look at it.

    Attributes:
        type: its name, as TensorFlow has it.
        inputs: the kind of each input.
        input_shapes: their shapes, None where nothing is known.
        output_rank: the number of dimensions of the output asked for, None where not known.
        output: which output is asked for.
        constant: gives the value of an input, None if it is not known beforehand.
        attribute: gives an attribute, None if there is none of that name.
        num_rows: that there are at a time, those of them that are known beforehand.
        first_size: that of the first dimension of the output, if known.
    """

    type: str
    inputs: Sequence[Kind]
    input_shapes: Sequence[Sequence[int | None] | None] = ()
    output_rank: int | None = None
    output: int = 0
    constant: Callable[[int], Any] = lambda i: None
    attribute: Callable[[str], Any] = lambda name: None
    num_rows: Collection[int] = ()
    first_size: int | None = None

    def rank(self, i: int) -> int | None:
        """The number of dimensions of an input, None where not known."""
        shape = self.input_shapes[i]
        return None if shape is None else len(shape)


def kind_of(op: Op) -> Kind:
    """Returns the kind of an operation's output."""
    if op.type in _SOURCES or any(name in op.type for name in _DRAWS):
        return _OTHER if op.output_rank == 0 else _ROWS
    if op.type in _SPREADING and _is_for_each_row(op):
        return _ROWS
    if op.type in _OVER_REPLICAS or all(kind is _SAME for kind in op.inputs):
        return _SAME
    if op.type in _RULES:
        return _RULES[op.type](op)
    if op.type in _UNCHANGED:
        return op.inputs[0]
    if op.type == "IdentityN":
        return op.inputs[op.output]
    return _of_unknown(op)


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


def _of_unknown(op: Op) -> Kind:
    """An operation without a rule: what it makes of rows has rows, unless it has no dimension left for them."""
    if _PAIRS in op.inputs:
        return _OTHER if op.output_rank == 0 else _PAIRS
    if _SHARED in op.inputs and op.output_rank != 0:
        return _SHARED
    if any(kind in (_ROWS, _SHAPE, _SHARED) for kind in op.inputs):
        return _OTHER if op.output_rank == 0 else _ROWS
    return _OTHER


# ---- sums and means


def _dims(op: Op) -> list[int] | None:
    """The dimensions that a reduction goes over, counted from the front; None if not known."""
    wanted, rank = op.constant(1), op.rank(0)
    if wanted is None:
        return None
    dims = [int(dim) for dim in wanted.reshape(-1)]
    if rank is None:
        # The first dimension may still be known not to be among them.
        return dims if all(dim >= 0 for dim in dims) else None
    return [dim % rank for dim in dims]


def _reduction(of_rows: Kind, of_shared: Kind, is_linear: bool = True) -> Callable[[Op], Kind]:
    def rule(op: Op) -> Kind:
        kind = op.inputs[0]
        if not kind.has_rows:
            return kind if is_linear and kind is not _SHAPE else _OTHER
        dims = _dims(op)
        if op.output_rank != 0 and (dims is None or 0 not in dims):
            return _OTHER if dims is None else kind
        return {_ROWS: of_rows, _SHARED: of_shared}.get(kind, _OTHER)

    return rule


def _product(op: Op) -> Kind:
    """All elements of a shape, multiplied, are as many as there are elements."""
    return _COUNT if op.inputs[0] in (_SHAPE, _COUNT) else _reduction(_OTHER, _OTHER, is_linear=False)(op)


def _l2_loss(op: Op) -> Kind:
    return _SUM if op.inputs[0] is _ROWS else _OTHER


# ---- arithmetic


def _addition(op: Op) -> Kind:
    kinds = set(op.inputs)
    if kinds & {_ROWS, _SHARED, _PAIRS, _SHAPE}:
        return _of_unknown(op)
    if _OTHER in kinds:
        return _OTHER
    if kinds == {_COUNT, _SAME}:
        # Plus a small number, so that nothing is divided by zero.
        return _OTHER if op.type == "Sub" else _COUNT
    if kinds <= {_MEAN, _SAME}:
        return _MEAN
    return _SUM if kinds <= {_SUM, _COUNT} else _MIXED


def _multiplication(op: Op) -> Kind:
    one, other = op.inputs
    if one is _SAME or other is _SAME:
        return other if one is _SAME else one
    if {one, other} == {_MEAN, _COUNT}:
        return _SUM
    return _of_unknown(op) if one.has_rows or other.has_rows else _OTHER


def _division(op: Op) -> Kind:
    one, other = op.inputs
    if other is _SAME and one in (_SUM, _ROWS) and _counts_rows(op):
        other = _COUNT
    if other is _SAME:
        return one
    if other is _COUNT:
        return {_SUM: _MEAN, _ROWS: _SHARED, _COUNT: _SAME}.get(one, _OTHER)
    return _of_unknown(op) if one.has_rows or other.has_rows else _OTHER


def _counts_rows(op: Op) -> bool:
    """True if a constant divisor is a multiple of the number of rows, which the program found in a shape."""
    divisor = op.constant(1)
    if divisor is None or divisor.size != 1:
        return False
    number = float(divisor.reshape(()))
    # Also times the size of each row; of one row all numbers would be multiples.
    return any(number == 1 if count == 1 else number % count == 0 for count in op.num_rows)


def _bound(op: Op) -> Kind:
    """The larger, or the smaller, of two: of a count and a constant, still the count."""
    return _COUNT if set(op.inputs) == {_COUNT, _SAME} else _of_unknown(op)


def _selection(op: Op) -> Kind:
    condition, *chosen = op.inputs
    if condition is not _SAME:
        return _of_unknown(op)
    return _addition(Op("AddV2", chosen, op.input_shapes[1:], op.output_rank))


def _matrix_product(op: Op) -> Kind:
    one, other = op.inputs[:2]
    if not (one.has_rows or other.has_rows):
        return _multiplication(Op(op.type, (one, other), output_rank=op.output_rank))
    if op.rank(0) != 2:
        return _of_unknown(op)
    over_rows_of_one = one.has_rows and bool(op.attribute("transpose_a"))
    over_rows_of_other = other.has_rows and not op.attribute("transpose_b")
    if over_rows_of_one and over_rows_of_other:
        return _SUM if (one, other) == (_ROWS, _ROWS) else _OTHER
    if over_rows_of_one or over_rows_of_other:
        return _OTHER if not (one.has_rows and other.has_rows) else _PAIRS
    return _PAIRS if one.has_rows and other.has_rows else _of_unknown(op)


def _einsum(op: Op) -> Kind:
    equation = op.attribute("equation")
    equation = equation.decode() if isinstance(equation, bytes) else str(equation)
    taken, _, made = equation.replace(" ", "").partition("->")
    labels = {terms[:1] for terms, kind in zip(taken.split(","), op.inputs, strict=False) if kind.has_rows}
    if not labels or "." in labels:
        return _of_unknown(op)
    if len(labels) > 1:
        return _PAIRS
    if labels <= set(made):
        return _of_unknown(op)
    return _SUM if _SHARED not in op.inputs and _PAIRS not in op.inputs else _OTHER


# ---- shapes


def _shape(op: Op) -> Kind:
    return _SHAPE if op.inputs[0].has_rows else _SAME


def _size(op: Op) -> Kind:
    return _COUNT if op.inputs[0].has_rows else _SAME


def _strided_slice(op: Op) -> Kind:
    kind = op.inputs[0]
    if kind is _SHAPE:
        return _part_of_shape(op)
    if kind.has_rows and int(op.attribute("shrink_axis_mask") or 0) & 1:
        # One row.
        return _OTHER
    return kind


def _part_of_shape(op: Op) -> Kind:
    begin, end = op.constant(1), op.constant(2)
    if begin is None or end is None or begin.size != 1 or op.attribute("new_axis_mask"):
        return _SHAPE
    first = 0 if int(op.attribute("begin_mask") or 0) & 1 else int(begin.reshape(()))
    if first < 0:
        length = op.input_shapes[0][0] if op.input_shapes[0] else None
        if length is None:
            return _SHAPE
        first += length
    if first > 0:
        return _SAME
    return _COUNT if int(op.attribute("shrink_axis_mask") or 0) & 1 else _SHAPE


def _unpacked(op: Op) -> Kind:
    kind = op.inputs[0]
    if kind is _SHAPE:
        return _COUNT if op.output == 0 else _SAME
    return _OTHER if kind.has_rows and not op.attribute("axis") else kind


def _packed(op: Op) -> Kind:
    if any(kind.has_rows for kind in op.inputs):
        return _of_unknown(op)
    # Of a count and constants: a shape.
    return _SHAPE if {_COUNT, _SHAPE} & set(op.inputs) else _addition(op)


def _joined(op: Op) -> Kind:
    # The last input is the dimension.
    return _packed(Op(op.type, op.inputs[:-1], op.input_shapes[:-1], op.output_rank))


def _gathered(op: Op) -> Kind:
    """Rows of a table, or of the batch, that are looked up."""
    table, indices = op.inputs[:2]
    if table is _SHAPE:
        index = op.constant(1)
        if index is None or index.size != 1:
            return _SHAPE
        return _COUNT if int(index.reshape(())) == 0 else _SAME
    if table in (_MEAN, _SUM, _MIXED) and indices is _SAME:
        return table
    return _of_unknown(op)


def _reshaped(op: Op) -> Kind:
    kind, shape = op.inputs
    if kind in (_ROWS, _SHARED, _PAIRS, _SHAPE):
        return kind
    # Something that has no rows, in a shape that has their number in it.
    return _ROWS if shape in (_SHAPE, _COUNT) else kind


def _spread(op: Op) -> Kind:
    """A tensor repeated, or a constant in a shape: for each row, if the shape has rows."""
    if any(kind in (_SHAPE, _COUNT) for kind in op.inputs):
        return _ROWS
    return op.inputs[0] if all(kind is _SAME for kind in op.inputs[1:]) else _of_unknown(op)


def _is_for_each_row(op: Op) -> bool:
    """True if a tensor is repeated for each row, the number of which the program found in a shape."""
    return op.first_size in op.num_rows and op.output_rank is not None and op.output_rank > 1


def _like(op: Op) -> Kind:
    return _ROWS if op.inputs[0].has_rows else _SAME


_SPREADING = ("BroadcastTo", "Fill", "Tile")
_NOT_LINEAR = _reduction(_OTHER, _OTHER, is_linear=False)
_RULES: dict[str, Callable[[Op], Kind]] = {
    "Mean": _reduction(_MEAN, _OTHER),
    "Sum": _reduction(_SUM, _MEAN),
    "Prod": _product,
    **dict.fromkeys(("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Min"), _NOT_LINEAR),
    "L2Loss": _l2_loss,
    **dict.fromkeys(("Add", "AddN", "AddV2", "BiasAdd", "Sub"), _addition),
    **dict.fromkeys(("Mul", "MulNoNan"), _multiplication),
    **dict.fromkeys(("Div", "DivNoNan", "FloorDiv", "RealDiv", "TruncateDiv"), _division),
    **dict.fromkeys(("Maximum", "Minimum"), _bound),
    **dict.fromkeys(("Select", "SelectV2"), _selection),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"), _matrix_product),
    "Einsum": _einsum,
    "Shape": _shape,
    "Size": _size,
    "StridedSlice": _strided_slice,
    "Unpack": _unpacked,
    "Pack": _packed,
    "ConcatV2": _joined,
    **dict.fromkeys(("GatherV2", "Gather"), _gathered),
    "Reshape": _reshaped,
    **dict.fromkeys((*_SPREADING, "Range"), _spread),
    **dict.fromkeys(("OnesLike", "ZerosLike"), _like),
}
