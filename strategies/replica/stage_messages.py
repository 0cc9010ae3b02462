"""Messages between the processes that own the stages of one pipeline, in a function that is being traced.

Both ends of a message trace it at the same entry of a table that all processes have, so that each sends what the other
expects. Only the sender knows the shapes and dtypes: it broadcasts them once, while the function is traced.

A send completes when the peer has posted its receive. So only the end of the function waits for a send.

Its contract is tested in ``tests/strategies/processes/spanning_pipe.py``.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.collectives.clocks import offset_to_first
from strategies.collectives.process_group import from_wire, to_wire, wire_dtype
from strategies.collectives.transport import Channel
from strategies.replica.parts import ReplicaParts
from strategies.replica.slices import Lookups, side_by_side

#: Sizes of dimensions, int32 scalars, by the number of the tensor and of its dimension.
Sizes = Mapping[tuple[int, int], tf.Tensor]

# A broadcast at trace time is one message up to this length, and two beyond it.
_USUAL_LENGTH = 2048


class Description(NamedTuple):
    """The description of a tensor at trace time.

    Attributes:
        shape: the shape, with None for unknown dimensions.
        dtype: the name of the dtype.
        kind: the name of its row kind: how it depends on the rows of the batch.
        multiples: for each dimension, its multiple of a micro-batch's number of rows, or None; empty if nothing is
            known.
    """

    shape: tuple[int | None, ...]
    dtype: str
    kind: str
    multiples: tuple[int | None, ...] = ()

    @classmethod
    def from_tensor(cls, tensor: Any, multiples: Sequence[int | None] = ()) -> Description:
        """Returns the description of a tensor; slices of rows are described as the dense tensor they represent."""
        kind = Kind.ROWS if isinstance(tensor, tf.IndexedSlices) else shares.current_dependence().kind(tensor)
        return cls(tuple(tensor.shape.as_list()), tensor.dtype.name, kind.name, tuple(multiples))

    @classmethod
    def from_json(cls, each: Sequence[Any]) -> Description:
        """Returns the description that JSON turned into lists."""
        shape, dtype, kind, multiples = each
        return cls(tuple(shape), dtype, kind, tuple(multiples))

    @property
    def may_have_gradient(self) -> bool:
        """True if the tensor can have a gradient: if it is floating-point or complex."""
        return bool(tf.as_dtype(self.dtype).is_floating or tf.as_dtype(self.dtype).is_complex)


class GradientParcel(NamedTuple):
    """A gradient of a variable as tensors: the gradient itself, or the values and indices of the slices of each lookup.

    Attributes:
        tensors: the tensors; empty if there is no gradient.
    """

    tensors: tuple[tf.Tensor, ...]

    @classmethod
    def from_gradient(cls, gradient: Any) -> GradientParcel:
        """Splits a gradient (a tensor, slices of rows, or None) into tensors."""
        if gradient is None:
            return cls(())
        if not isinstance(gradient, tf.IndexedSlices):
            return cls((gradient,))
        lookups = Lookups.from_gradient(gradient, shares.current_dependence())
        return cls(
            tuple(
                each for own in (*lookups.shared, *lookups.own, *lookups.unique) for each in (own.values, own.indices)
            )
        )

    @property
    def descriptions(self) -> list[Description]:
        """The descriptions of the tensors."""
        return [Description.from_tensor(tensor) for tensor in self.tensors]

    def gradient(self, shape: Sequence[int]) -> Any:
        """Returns the gradient that the tensors represent, for a variable of this shape."""
        if len(self.tensors) < 2:
            return self.tensors[0] if self.tensors else None
        pairs = zip(self.tensors[::2], self.tensors[1::2], strict=True)
        return side_by_side([tf.IndexedSlices(*pair, tf.constant(list(shape))) for pair in pairs])


class StageMessages:
    """The messages along the axis "pipe" of one function. Make it where the function is traced.

    Args:
        parts: the parts of a replica whose axis "pipe" crosses processes.
    """

    def __init__(self, parts: ReplicaParts) -> None:
        if tf.executing_eagerly():
            raise ValueError(
                "The stages of this pipeline are in several processes, which exchange tensors in traced functions "
                "only. Compile the model with run_eagerly=False, and leave tf.config.run_functions_eagerly off."
            )
        self._parts = parts
        self._group = parts.groups.model["pipe"]
        #: The position of this process among those along "pipe".
        self.position = self._group.rank

    def agreed(self, source: int, value: Any) -> Any:
        """Broadcasts a value from position `source` to all processes along "pipe" while the function is traced.

        Args:
            source: a position along "pipe".
            value: a value that JSON can encode; ignored on the other processes.

        Returns:
            The value of `source`, as JSON decodes it.
        """
        text = json.dumps(value).encode() if self.position == source else b""
        with tf.init_scope():
            head = self._broadcast(source, [len(text), *text[: _USUAL_LENGTH - 1]], _USUAL_LENGTH)
            rest = max(0, int(head[0]) - (_USUAL_LENGTH - 1))
            tail = self._broadcast(source, text[_USUAL_LENGTH - 1 :], rest) if rest else head[:0]
        received = bytes(np.concatenate([head[1:], tail]).astype("uint8"))[: int(head[0])]
        return json.loads(received)

    def send(self, part: int, target: int, tensors: Sequence[Any], sizes: Sizes | None = None) -> None:
        """Sends tensors to the process at position `target`, in one message for each dtype that is sent.

        Args:
            part: the part that has the tensors.
            target: a position along "pipe".
            tensors: the tensors; sizes that are unknown when the function is traced are sent ahead of them.
            sizes: the unknown sizes that the receiver knows when the function runs, which are not sent.
        """
        with self._parts.on(part), contextlib.ExitStack() as stack:
            dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
            described = [Description.from_tensor(tensor) for tensor in dense]
            found = {
                (n, dim): tf.shape(tensor)[dim]
                for n, tensor in enumerate(dense)
                for dim, size in enumerate(described[n].shape)
                if size is None
            }
            known = {index: size for index, size in (sizes or {}).items() if index in found}
            wrong = "A tensor between stages does not have the number of rows that it has for other batches."
            checks = [tf.debugging.assert_equal(found[index], size, wrong) for index, size in known.items()]
            stack.enter_context(tf.control_dependencies([check for check in checks if check is not None]))
            unknown = [size for index, size in found.items() if index not in known]
            if unknown:
                self._channel(self.position, target).send([tf.stack(unknown)])
            for dtype, members in _bundles(described):
                sent = [_cast_for(dense[i], dtype) for i in members]
                whole = sent[0] if len(sent) == 1 else tf.concat([tf.reshape(each, [-1]) for each in sent], 0)
                self._channel(self.position, target).send([whole])

    def receive(
        self,
        part: int,
        source: int,
        described: Sequence[Description],
        after: Sequence[Any] = (),
        sizes: Sizes | None = None,
    ) -> list[tf.Tensor]:
        """Receives tensors that the process at position `source` sends.

        Args:
            part: the part that takes the tensors.
            source: a position along "pipe".
            described: the sender's descriptions of the tensors.
            after: tensors to wait for before memory is allocated for the messages.
            sizes: the unknown sizes that the receiver knows, which the sender does not send ahead.
        """
        with self._parts.on(part), tf.control_dependencies(list(after)):
            shapes = self._shapes(source, described, sizes or {})
            received: dict[int, tf.Tensor] = {}
            for dtype, members in _bundles(described):
                own = [shapes[i] for i in members]
                channel, wire = self._channel(source, self.position), tf.as_dtype(dtype)
                if len(members) == 1:
                    pieces = channel.recv([_as_shape(own[0])], wire)
                else:
                    lengths = [math.prod(shape) for shape in own]
                    [whole] = channel.recv([_as_shape([sum(lengths)])], wire)
                    pieces = tf.split(whole, lengths)
                for i, piece, shape in zip(members, pieces, own, strict=True):
                    received[i] = tf.reshape(piece, _as_shape(shape))
        return [_restored(received[i], each) for i, each in enumerate(described)]

    def _shapes(self, source: int, described: Sequence[Description], sizes: Sizes) -> list[list[Any]]:
        """Returns the shapes of tensors to receive: ints, and int32 scalars for sizes known only when they arrive."""
        shapes = [
            [sizes.get((n, dim)) if size is None else size for dim, size in enumerate(each.shape)]
            for n, each in enumerate(described)
        ]
        number = sum(size is None for shape in shapes for size in shape)
        if not number:
            return shapes
        [header] = self._channel(source, self.position).recv([[number]], tf.int32)
        unknown = iter(tf.unstack(header, number))
        return [[next(unknown) if size is None else size for size in shape] for shape in shapes]

    def _channel(self, source: int, target: int) -> Channel:
        collectives = self._parts.groups.collectives
        if collectives is None:
            raise RuntimeError("There are no other processes.")
        return collectives.channel("pipe", source, target)

    def _broadcast(self, source: int, numbers: Sequence[int], length: int) -> np.ndarray:
        buffer = np.zeros([length], "int32")
        buffer[: len(numbers)] = list(numbers)
        received: np.ndarray = self._group.broadcast(tf.constant(buffer), source).numpy()
        return received


def clock_offset(parts: ReplicaParts) -> tuple[float, float]:
    """Returns the offset to add to ``time.perf_counter()`` to get rank 0's, and its maximum error, in seconds.

    All processes call it. See `strategies.collectives.clocks`.
    """
    return (0.0, 0.0) if parts.groups.job.num_processes == 1 else offset_to_first(parts.groups.job)


def _bundles(described: Sequence[Description]) -> list[tuple[str, list[int]]]:
    """Groups tensors into messages by the dtype that is sent; masks are sent as the first floating-point dtype."""
    floating = next((each.dtype for each in described if tf.as_dtype(each.dtype).is_floating), None)
    found: dict[str, list[int]] = {}
    for i, each in enumerate(described):
        joins = each.dtype == "bool" and floating is not None
        found.setdefault(floating if joins and floating else wire_dtype(each.dtype), []).append(i)
    return list(found.items())


def _cast_for(tensor: tf.Tensor, dtype: str) -> tf.Tensor:
    return tf.cast(tensor, dtype) if tensor.dtype == tf.bool else to_wire(tensor)


def _restored(tensor: tf.Tensor, described: Description) -> tf.Tensor:
    restored = from_wire(tensor, tf.as_dtype(described.dtype))
    restored.set_shape(described.shape)
    return mark(restored, Kind[described.kind])


def _as_shape(sizes: Sequence[Any]) -> Any:
    return list(sizes) if all(isinstance(size, int) for size in sizes) else tf.stack(list(sizes))
