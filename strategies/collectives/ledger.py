"""The ledger of a process counts which of its collectives have started, and which are done.

Each collective of a traced function has an entry and two counters, of its starts and of its ends. Their difference
shows at any time which collectives are pending. Counting costs two small ops per collective, and no Python. Collectives
that are called eagerly share the entries of their kind.

Each counter is on the device of its collective. For a collective of a GPU, a counter on the CPU would cost an empty
send and receive on either side, which wait for all work queued on the GPU. On the GPU a count is one small kernel in
the queue; only readers of the ledger copy the counters, after the work queued before. Not measured on GPUs: the cost
of these kernels, and that a waiting collective of NCCL leaves the queue free for the copy.

The names of the counting ops say to which entry they belong, so that a profile of a running step shows when each
collective began and ended (`strategies.tracing`).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from strategies.collectives.descriptions import carried
from strategies.collectives.traced_ops import capturable, make_handle, run_beside_others
from strategies.control_plane import Wait
from strategies.op_names import names

# The number of counters in one tensor.
_BLOCK = 256
_instances = itertools.count()
# By number. Profiles are of the whole process, so the names of ops in them are unique in it.
_by_number: weakref.WeakValueDictionary[int, Ledger] = weakref.WeakValueDictionary()


def all_ledgers() -> list[Ledger]:
    """Returns the ledgers of this process."""
    return [ledger for _, ledger in sorted(_by_number.items())]


class Ledger:
    """Counts the collectives of one `Collectives` instance in this process.

    Args:
        is_kept: false to count nothing.
    """

    def __init__(self, *, is_kept: bool = True) -> None:
        self._is_kept = is_kept
        #: The number of this ledger in the process.
        self.number = next(_instances)
        self._num_entries = 0
        self._lock = threading.Lock()
        # By device.
        self._blocks: dict[str, list[_Block]] = {}
        self._eager: dict[tuple[str, str], Entry] = {}
        self._carried_eagerly = ""
        self._nothing = Entry(Wait("", (), ""), None, 0, "")
        _by_number[self.number] = self

    @contextlib.contextmanager
    def eagerly(self) -> Iterator[None]:
        """Runs the block, one eager collective, described by :func:`carried` instead of by its shared entry."""
        before, self._carried_eagerly = self._carried_eagerly, carried() or "values"
        try:
            yield
        finally:
            self._carried_eagerly = before

    def entry(self, wait: Wait, device: str | None = None, num_bytes: int | None = None) -> Entry:
        """Returns the entry of a collective that is traced now, or called eagerly.

        Args:
            wait: identifies the collective and its members; the description of a traced one is :func:`carried`.
            device: the GPU that runs it; None for one that runs on the CPU.
            num_bytes: the size of what this process sends, or receives; None if it is not known.
        """
        if not self._is_kept:
            return self._nothing
        device_name = device or "CPU:0"
        with self._lock:
            if not tf.executing_eagerly():
                described = replace(wait, what=carried())
                return self._add_entry(described, device_name, num_bytes, is_eager=bool(self._carried_eagerly))
            if (wait.key, device_name) not in self._eager:
                self._eager[wait.key, device_name] = self._add_entry(wait, device_name, None, is_eager=True)
            return self._eager[wait.key, device_name]

    def pending(self) -> list[Wait]:
        """Returns the collectives that have started and are not done."""
        found: list[Wait] = []
        for block in self._all_blocks():
            for entry, started, done in zip(block.entries, *block.read(), strict=False):
                if started > done:
                    now = self._carried_eagerly
                    found.append(replace(entry.wait, what=now, form=now) if entry.is_eager and now else entry.wait)
        return found

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of executions of collectives that have started and that are done, since the beginning."""
        pairs = [block.totals() for block in self._all_blocks()]
        return sum(started for started, _ in pairs), sum(done for _, done in pairs)

    @property
    def is_on_gpus(self) -> bool:
        """True if counters are on GPUs, where reading them is not free."""
        with self._lock:
            return any(not device.endswith("CPU:0") for device in self._blocks)

    def starts(self) -> list[tuple[Entry, int]]:
        """Returns all entries, each with the number of times that it has started."""
        return [
            (entry, count)
            for block in self._all_blocks()
            for entry, count in zip(block.entries, block.read_started(), strict=False)
        ]

    def _all_blocks(self) -> list[_Block]:
        with self._lock:
            return [block for blocks in self._blocks.values() for block in blocks]

    def _add_entry(self, wait: Wait, device_name: str, num_bytes: int | None, *, is_eager: bool) -> Entry:
        blocks = self._blocks.setdefault(device_name, [])
        if not blocks or len(blocks[-1].entries) == _BLOCK:
            with tf.init_scope():
                blocks.append(_Block.create(device_name, f"{self.number}_{len(self._blocks)}_{len(blocks)}"))
        block = blocks[-1]
        number = (self.number, self._num_entries)
        entry = Entry(wait, block, len(block.entries), device_name, is_eager, number, num_bytes)
        block.entries.append(entry)
        self._num_entries += 1
        return entry


@dataclass(frozen=True)
class Entry:
    """One collective in the ledger.

    Attributes:
        wait: identifies the collective.
        is_eager: True if it is called outside of traced functions, each time with other contents.
        number: the numbers of the ledger and of the entry in it.
        num_bytes: the size of what this process sends, or receives; None if it is not known.
    """

    wait: Wait
    _block: _Block | None
    _index: int
    _device_name: str
    is_eager: bool = False
    number: tuple[int, int] = (0, 0)
    num_bytes: int | None = None

    @property
    def device(self) -> str:
        """The device on which the collective is counted, as in "CPU:0"."""
        return self._device_name.rpartition("device:")[2]

    def started(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the input of the collective, which counts as started as soon as its input is ready."""
        return value if self._block is None else self._counted(value, self._block.started, is_done=False)

    def done(self, result: tf.Tensor) -> tf.Tensor:
        """Returns the result of the collective, which then counts as done."""
        return result if self._block is None else self._counted(result, self._block.done, is_done=True)

    def _counted(self, value: tf.Tensor, handle: tf.Tensor, *, is_done: bool) -> tf.Tensor:
        # Captured before the control dependency: a capture depends on nothing in the function.
        resource = capturable(handle)
        with tf.device(self._device_name), tf.control_dependencies([value]):
            one = tf.constant(1, tf.int64)
            index = tf.constant(self._index)
            name = names.counted(*self.number, is_done=is_done)
            count = tf.raw_ops.ResourceScatterAdd(resource=resource, indices=index, updates=one, name=name)
        # Like the collectives themselves on CPUs; counters of one device may be incremented in any order.
        run_beside_others(count)
        on_gpu = not self._device_name.endswith("CPU:0")
        with tf.device(self._device_name) if on_gpu else contextlib.nullcontext(), tf.control_dependencies([count]):
            return tf.identity(value)


@dataclass(frozen=True)
class _Block:
    """Counters of starts and ends on one device, and their entries."""

    device_name: str
    started: tf.Tensor
    done: tf.Tensor
    entries: list[Entry]

    @classmethod
    def create(cls, device_name: str, name: str) -> _Block:
        """Returns a new block; must be called outside of traced functions."""
        made = []
        for kind in ("started", "done"):
            made.append(make_handle(f"strategies_{kind}_{name}", tf.int64, device_name))
            with tf.device(device_name):
                tf.raw_ops.AssignVariableOp(resource=made[-1], value=tf.zeros([_BLOCK], tf.int64))
        started, done = made
        return cls(device_name, started, done, [])

    def read(self) -> tuple[list[int], list[int]]:
        """Returns the counts of starts and of ends.

        Ends are read first: a collective that runs in between counts as pending, never as done before it was started.
        """
        done = self._read(self.done)
        return self.read_started(), done

    def read_started(self) -> list[int]:
        """Returns the counts of starts."""
        return self._read(self.started)

    def totals(self) -> tuple[int, int]:
        """Returns the sums of :meth:`read`, in its order."""
        done = int(self._value(self.done).sum())
        return int(self._value(self.started).sum()), done

    def _read(self, handle: tf.Tensor) -> list[int]:
        return [int(count) for count in self._value(handle)]

    def _value(self, handle: tf.Tensor) -> Any:
        # An op runs where its resource is. On CPUs, where it is read often, that is left to TensorFlow.
        with contextlib.nullcontext() if self.device_name.endswith("CPU:0") else tf.device(self.device_name):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64).numpy()
