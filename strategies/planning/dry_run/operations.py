"""The operations of a rank's program, and the bytes that they send."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OperationKind(Enum):
    """The kind of an operation; the value is its printed form."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


#: The kinds of messages between two ranks.
MESSAGES = (OperationKind.SEND, OperationKind.RECEIVE)


@dataclass(frozen=True)
class Operation:
    """One operation of a program. It is the same value on all ranks that take part, but for `kind` in a message.

    Attributes:
        kind: the kind.
        what: a description of what it computes or carries; equal on all ranks that take part.
        axis: the mesh axis of a collective's group, and of a message.
        ends: of a message, the positions of the sender and of the receiver along `axis`.
        num_bytes: the bytes of the whole tensor: of a message, of an all-reduce, before a reduce-scatter, after an
            all-gather.
        work: of a computation, its floating-point operations.

    Example:

        sums = Operation(OperationKind.ALL_REDUCE, "gradients", "data", num_bytes=800)
        assert sums.bytes_sent(num_members=4) == 1200
    """

    kind: OperationKind
    what: str
    axis: str = ""
    ends: tuple[int, int] | None = None
    num_bytes: float = 0.0
    work: float = 0.0

    def __str__(self) -> str:
        if self.kind is OperationKind.COMPUTE:
            return f"{self.kind.value} {self.what}"
        size = f"{self.num_bytes:,.0f} bytes along {self.axis!r}"
        if self.ends is not None:
            return f"{self.kind.value} of {self.what} ({size}, from position {self.ends[0]} to {self.ends[1]})"
        return f"{self.kind.value} of {self.what} ({size})"

    @property
    def form(self) -> tuple[object, ...]:
        """Everything that must be equal on all ranks that take part."""
        kind = "message" if self.kind in MESSAGES else self.kind.value
        return kind, self.what, self.axis, self.ends, self.num_bytes

    def bytes_sent(self, num_members: int) -> float:
        """Returns the bytes that each member of a group sends, in a ring; the receiver of a message sends none."""
        if self.kind is OperationKind.SEND:
            return self.num_bytes
        if self.kind in (OperationKind.COMPUTE, OperationKind.RECEIVE):
            return 0.0
        rounds = 2 if self.kind is OperationKind.ALL_REDUCE else 1
        return rounds * (num_members - 1) / num_members * self.num_bytes


#: The operations of a rank in a training step, in the order in which its program starts them.
Program = tuple[Operation, ...]
