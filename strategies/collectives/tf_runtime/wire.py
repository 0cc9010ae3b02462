"""TensorFlow's collective ops on flat vectors, for one member of one group.

Constraints of the ops (measured with TensorFlow 2.21 on CPU), and how this module meets them:

- A key pair (group, instance) is bound for the life of the process to the tensor size it was first used
  with. A vector whose size is not known statically is therefore padded up to one of 231 size classes, at most
  an eighth larger, and the class is part of the instance key: `padded_length`.
- An empty tensor crashes the process or hangs: one element is sent instead.
- Broadcast and gather do not support bfloat16, and only broadcast supports bool: `flatten` changes the dtype.
- Members are numbered by device name, whatever the caller's order: see `CollectiveGroup.wire_order`.
- A timeout costs two threads per running op: the ops have no timeout, and the `Ledger` counts them instead.
- Automatic control dependencies serialise the ops of one function, although each waits for other
  members: see `CollectiveGroup.run`.

Between GPUs (from TensorFlow's sources, not measured):

- All-reduces of int32 and bfloat16 are rejected: they are carried as int64 and float32. NCCL does not move bfloat16
  either: its bits are moved as float16.
- NCCL needs one order of all collectives of a device: `order`.
- The ops take their keys in host memory: the arithmetic on lengths is done on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import tensorflow as tf

from strategies.collectives.ledger import Ledger
from strategies.collectives.tf_runtime import order
from strategies.collectives.traced_ops import run_beside_others
from strategies.collectives.transport import Shape, num_elements, shape_of, size_in_bytes
from strategies.control_plane import Wait
from strategies.control_plane.waits import RECEIVE

_NUM_SIZE_CLASSES = 256
_MAX_KEY = 2**31 - 1
#: The lengths to which vectors of unknown size are padded: 1 to 7, then ``m * 2**e`` with m from 8 to 15.
_LENGTHS = [*range(1, 8), *(mantissa << exponent for exponent in range(28) for mantissa in range(8, 16))]


@dataclass(frozen=True)
class CollectiveGroup:
    """A group of members that communicate.

    Args:
        key: the process-wide number of the group.
        size: the number of members.
        wire_order: for each rank assigned by TensorFlow, the position on the mesh axis.
        hint: TensorFlow's communication hint; between GPUs in lower case, as TensorFlow compares it.
        ranks: the processes of the members.
        ledger: has an entry for each op.
        device: the GPU of this member; None in a group of CPU devices, for which TensorFlow has no communication
            library.
    """

    key: int
    size: int
    wire_order: tuple[int, ...]
    hint: str
    ranks: tuple[int, ...]
    ledger: Ledger
    device: str | None = None

    @property
    def on_cpu(self) -> bool:
        """True if all members are CPU devices."""
        return self.device is None

    def from_wire(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows given in the order of TensorFlow's ranks, in the order of the axis."""
        if self.wire_order == tuple(range(self.size)):
            return rows
        return tf.gather(rows, [self.wire_order.index(position) for position in range(self.size)])

    def to_wire(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows given in the order of the axis, in the order of TensorFlow's ranks."""
        return rows if self.wire_order == tuple(range(self.size)) else tf.gather(rows, list(self.wire_order))

    def options(self, ordinal: int, size_class: int | tf.Tensor) -> dict[str, object]:
        """Returns the arguments common to all collective ops; `ordinal` identifies an op of the group."""
        first = ordinal * _NUM_SIZE_CLASSES
        if first + _NUM_SIZE_CLASSES > _MAX_KEY:
            raise ValueError(
                f"TensorFlow numbers at most {_MAX_KEY // _NUM_SIZE_CLASSES} collective ops of one group; "
                f"this program traced more. Trace fewer functions: give tf.function an input_signature."
            )
        return {
            "group_size": self.size,
            "group_key": self.key,
            "instance_key": first + size_class,
            "communication_hint": self.hint,
        }

    def padded_length(self, length: int | tf.Tensor) -> tuple[int | tf.Tensor, int | tf.Tensor]:
        """Calls the function of this name; for GPUs on the host, where the ops take their keys."""
        if self.on_cpu or isinstance(length, int):
            return padded_length(length)
        with tf.device("CPU:0"):
            return padded_length(length)

    def run(
        self, value: tf.Tensor, op: _Op, ordinal: int, size_class: int | tf.Tensor, num_bytes: int | None = None
    ) -> tf.Tensor:
        """Runs a collective op, which the ledger counts; it runs even if its result is unused.

        Between CPU devices it may run concurrently with others, between GPUs in the order of `order`.

        Args:
            value: the input; the op counts as started as soon as the input is ready.
            op: the op.
            ordinal: identifies an op of the group.
            size_class: the class of the communicated size; see `padded_length`.
            num_bytes: the size of what a receive receives; None if it is not known.
        """
        form = f"{value.dtype.name}[{value.shape.num_elements()}]" if op.has_equal_sizes else ""
        wait = Wait(f"{self.key}/{ordinal}", self.ranks, op.kind, form="" if "None" in form else form)
        # The input of a receive is a shape.
        sent = size_in_bytes([value]) if op.argument == "input" else num_bytes
        entry = self.ledger.entry(wait, self.device, sent)
        counted = entry.started(value)
        options = self.options(ordinal, size_class)
        if self.device is not None:
            result = order.in_order(
                self.device, lambda tokens: op(counted, tokens, options), takes_token=op.takes_token
            )
            return entry.done(result)
        result = op(counted, [], options)
        run_beside_others(result.op)
        return entry.done(result)


@dataclass(frozen=True)
class _Op:
    """A collective op of TensorFlow.

    Args:
        function: the op, with the attributes that only this op has.
        argument: the name of its input.
        takes_token: true if it has an argument for ordering tokens.
        kind: its name in messages.
        has_equal_sizes: true if its input has one size on all members.
    """

    function: Callable[..., tf.Tensor]
    argument: str = "input"
    takes_token: bool = True
    kind: str = "all_reduce"
    has_equal_sizes: bool = True

    def __call__(self, value: tf.Tensor, tokens: list[tf.Tensor], options: dict[str, object]) -> tf.Tensor:
        more = {"ordering_token": tokens} if self.takes_token else {}
        return self.function(**{self.argument: value}, **more, **options)


_GATHER = _Op(tf.raw_ops.CollectiveGatherV2, kind="all_gather")
_EXCHANGE = _Op(tf.raw_ops.CollectiveAllToAllV2, kind="all_to_all")
_SEND = _Op(tf.raw_ops.CollectiveBcastSendV2, takes_token=False, has_equal_sizes=False)
# TensorFlow's all-reduce kernel rejects these dtypes on GPUs.
_REDUCED_ON_GPUS = {tf.int32: tf.int64, tf.bfloat16: tf.float32}


def flatten(value: tf.Tensor) -> tf.Tensor:
    """Returns the value as a vector, with a dtype that every collective op supports."""
    return _carried(tf.reshape(value, [-1]))


def flatten_rows(rows: tf.Tensor) -> tf.Tensor:
    """Flattens each row as `flatten` does: `[n, ..]` -> `[n, k]`."""
    return _carried(tf.reshape(rows, [rows.shape[0], num_elements(shape_of(rows)[1:])]))


def _carried(flat: tf.Tensor) -> tf.Tensor:
    if flat.dtype == tf.bool:
        return tf.cast(flat, tf.int32)
    return tf.bitcast(flat, tf.float16) if flat.dtype == tf.bfloat16 else flat


def restore(vector: tf.Tensor, shape: Shape | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Inverts `flatten` and `flatten_rows`."""
    if dtype == tf.bool:
        vector = tf.cast(vector, tf.bool)
    elif dtype == tf.bfloat16:
        vector = tf.bitcast(vector, tf.bfloat16)
    return tf.reshape(vector, shape)


def padded_length(length: int | tf.Tensor) -> tuple[int | tf.Tensor, int | tf.Tensor]:
    """Returns the padded length for `length` elements, and its size class.

    A static length is not padded, and has class 0. A dynamic one becomes the next of `_LENGTHS`, whose classes count
    from 1. This takes few operations, since programs with an unknown number of rows do it for each message.
    """
    if isinstance(length, int):
        return max(1, length), 0
    # Compared as float64: float32 holds all boundaries exactly, but not all lengths above 2**24.
    index = tf.raw_ops.Bucketize(input=tf.cast(length, tf.float64) - 0.5, boundaries=_LENGTHS)
    return tf.gather(_LENGTHS, index), index + 1


def _pad(rows: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Pads rows with trailing zeros, `[n, k]` -> `[n, length]`."""
    if isinstance(length, int) and rows.shape[1] == length:
        return rows
    return tf.pad(rows, [[0, 0], [0, length - tf.shape(rows)[1]]])


def _is_padded(length: int | tf.Tensor, count: int | tf.Tensor) -> bool:
    return not isinstance(length, int) or length != count


def _sent(vector: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Pads a vector with zeros, `[k]` -> `[length]`; without a copy if the vector has that length already."""
    if isinstance(length, int) and vector.shape[0] == length:
        return vector
    return tf.pad(vector, [[0, length - tf.size(vector)]])


def reduce(vector: tf.Tensor, group: CollectiveGroup, ordinal: int, merge_op: str) -> tf.Tensor:
    """All-reduces `[k]` -> `[k]`; `merge_op` is "Add", "Min" or "Max"."""
    carried = vector if group.on_cpu else tf.cast(vector, _REDUCED_ON_GPUS.get(vector.dtype, vector.dtype))
    count = num_elements(shape_of(vector))
    length, size_class = group.padded_length(count)
    op = _Op(functools.partial(tf.raw_ops.CollectiveReduceV2, merge_op=merge_op, final_op="Id"))
    result = tf.cast(group.run(_sent(carried, length), op, ordinal, size_class), vector.dtype)
    return result[:count] if _is_padded(length, count) else result


def gather(vector: tf.Tensor, group: CollectiveGroup, ordinal: int) -> tf.Tensor:
    """All-gathers `[k]` -> `[n, k]`, in the order of the axis."""
    count = num_elements(shape_of(vector))
    length, size_class = group.padded_length(count)
    result = group.run(_sent(vector, length), _GATHER, ordinal, size_class)
    rows = group.from_wire(tf.reshape(result, [group.size, length]))
    return rows[:, :count] if _is_padded(length, count) else rows


def exchange(rows: tf.Tensor, group: CollectiveGroup, ordinal: int) -> tf.Tensor:
    """Runs an all-to-all, `[n, k]` -> `[n, k]`: row i goes to position i, row j comes from position j."""
    count = num_elements(shape_of(rows)[1:])
    length, size_class = group.padded_length(count)
    as_bits = rows.dtype == tf.bfloat16 and not group.on_cpu
    sent = group.to_wire(_pad(tf.bitcast(rows, tf.float16) if as_bits else rows, length))
    received = group.from_wire(group.run(sent, _EXCHANGE, ordinal, size_class))[:, :count]
    return tf.bitcast(received, tf.bfloat16) if as_bits else received


def send(vector: tf.Tensor, group: CollectiveGroup, ordinal: int, kind: str = "send") -> tf.Tensor:
    """Sends `[k]` to all other members; ready when they have received it, or at least posted their receive."""
    length, size_class = group.padded_length(num_elements(shape_of(vector)))
    return group.run(_sent(vector, length), replace(_SEND, kind=kind), ordinal, size_class)


def recv(
    count: int | tf.Tensor, dtype: tf.DType, group: CollectiveGroup, ordinal: int, kind: str = RECEIVE
) -> tf.Tensor:
    """Receives `[count]` elements, of flattened `dtype`, from the member that sends."""
    length, size_class = group.padded_length(count)
    wire_dtype = {tf.bool: tf.int32, tf.bfloat16: tf.float16}.get(dtype, dtype)
    # The op has no data input: its shape argument is counted instead.
    op = _Op(
        functools.partial(tf.raw_ops.CollectiveBcastRecvV2, T=wire_dtype),
        argument="shape",
        takes_token=False,
        kind=kind,
        has_equal_sizes=False,
    )
    num_bytes = length * wire_dtype.size if isinstance(length, int) else None
    return group.run(tf.convert_to_tensor([length]), op, ordinal, size_class, num_bytes)[:count]
