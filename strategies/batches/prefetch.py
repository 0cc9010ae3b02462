"""Prefetches batches to their devices while earlier ones are being computed.

If a step's arguments are on the CPU, its function first copies them, and a GPU waits. So the next batches are drawn
ahead and copied by one thread per device. TensorFlow's copy waits for all work queued on its GPU so far. The thread
that launches the next step must not wait for that, nor must the copies to other GPUs. The caller's thread draws the
batches, because processes may have to agree at every element.

TensorFlow handles pinned memory: it copies pageable memory into pinned memory first, in the thread that asks for the
copy, which is the device's thread. Its only option, ``options.experimental_service.pinned``, belongs to the ``tf.data``
service.

int32 stays on the host. TensorFlow's functions take int32 arguments from there, and its GPU kernels for shapes,
slices and comparisons of int32 compute there: a copy on a GPU would be copied back during a step. Labels and ids
that are to be prefetched must be int64.

None of this was measured on a GPU.
"""

from __future__ import annotations

import collections
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import tensorflow as tf

from strategies._tf_internals import PerReplica, PerReplicaSpec
from strategies.batches.agreed_dataset import AgreedIterator
from strategies.batches.portions import Portion, PortionSpec
from strategies.batches.rows import take_rows

#: The number of elements that are prefetched beyond the current one. Each device holds as many more batches.
NUM_AHEAD = 2

#: Dtypes that a GPU cannot hold, or that functions do not take from a GPU.
_ON_HOST = (tf.int32, tf.string, tf.resource, tf.variant)

#: The tasks of one device's thread; None ends the thread.
_Queue = queue.SimpleQueue[tuple[Future[list[Any]], Callable[[], list[Any]]] | None]


class ReadAheadDataset(tf.distribute.DistributedDataset):
    """A distributed dataset whose iterators prefetch the next elements to the replicas' devices.

    Elements have the same values as the dataset's. Dense batches are on the devices of their replicas; a replica
    without rows gets a dummy row, which its :class:`Portion` does not count. Numbers of rows, int32, and whatever is
    not a dense tensor stay where they are.

    Args:
        dataset: per-replica values, or, for one replica, tensors: a ``tf.data.Dataset`` or one whose end is agreed
            upon (``sharding``).
        devices: the devices of the local replicas.
    """

    def __init__(self, dataset: Any, devices: Sequence[str]) -> None:
        self.dataset = dataset
        self._devices = tuple(devices)

    @property
    def element_spec(self) -> Any:
        """The nest of specs of an element."""
        return tf.nest.map_structure(_portion_spec, self.dataset.element_spec)

    def cardinality(self) -> Any:
        """Returns the number of batches, as in ``tf.data``."""
        return self.dataset.cardinality()

    def __iter__(self) -> ReadAheadIterator:
        return ReadAheadIterator(iter(self.dataset), self.element_spec, self._devices)


class ReadAheadIterator:
    """Iterates over a :class:`ReadAheadDataset`.

    Prefetched elements are kept until they are asked for, also across epochs. An error during prefetching is raised
    after the elements before it. Where processes agree at every element, it is raised at once, because the other
    processes wait for this one.
    """

    def __init__(self, iterator: Iterator[Any], element_spec: Any, devices: tuple[str, ...]) -> None:
        self.element_spec = element_spec
        self._iterator = iterator
        self._agreed = isinstance(iterator, AgreedIterator)
        self._ahead: collections.deque[_Coming] = collections.deque()
        self._ended = False
        self._error: Exception | None = None
        self._devices = devices
        self._queues = [_start_worker(device) for device in devices]
        # Tensors of row counts, by the replicas' row counts, which seldom change.
        self._counts: dict[tuple[int, ...], tuple[tf.Tensor, tf.Tensor]] = {}
        weakref.finalize(self, _end_workers, self._queues)

    def __iter__(self) -> ReadAheadIterator:
        return self

    def __next__(self) -> Any:
        while not self._ended and len(self._ahead) <= NUM_AHEAD:
            try:
                element = next(self._iterator)
            except StopIteration:
                # The error is not kept: its traceback would keep the iterator alive until Python ends.
                self._ended = True
            except Exception as error:
                if self._agreed:
                    raise
                self._ended, self._error = True, error
            else:
                self._ahead.append(self._sent(element))
                # From here on, only the devices' threads hold the element.
                del element
        if self._ahead:
            return self._received(self._ahead.popleft())
        failure, self._error = self._error, None
        try:
            raise StopIteration if failure is None else failure
        finally:
            del failure  # otherwise it and this frame would keep each other alive

    def _sent(self, element: Any) -> _Coming:
        """Starts the copies of an element's tensors, in the threads of their devices."""
        leaves, columns = [], []
        for spec, leaf in zip(tf.nest.flatten(self.element_spec), tf.nest.flatten(element), strict=True):
            values = self._values(spec, leaf)
            if values is None:
                leaves.append(leaf)
            else:
                leaves.append(_Copied(*self._rows(spec, leaf)))
                columns.append(values)
        copies = []
        for index, (device, work) in enumerate(zip(self._devices, self._queues, strict=True)):
            copies.append(Future[list[Any]]())
            work.put((copies[-1], _copy(device, [values[index] for values in columns])))
        return _Coming(leaves, copies)

    def _received(self, coming: _Coming) -> Any:
        """Waits for an element's tensors to be on their devices; returns the element."""
        columns = zip(*(copy.result() for copy in coming.copies), strict=True)
        leaves = []
        for spec, leaf in zip(tf.nest.flatten(self.element_spec), coming.leaves, strict=True):
            if not isinstance(leaf, _Copied):
                leaves.append(leaf)
                continue
            values = next(columns)
            is_portion = isinstance(spec, PortionSpec)
            leaves.append(Portion(values, *leaf, spec._static_rows, spec) if is_portion else values[0])
        return tf.nest.pack_sequence_as(self.element_spec, leaves)

    def _values(self, spec: Any, leaf: Any) -> list[Any] | None:
        """Returns the tensor of each replica that is to be copied; None if the leaf stays as it is."""
        if not isinstance(leaf, PerReplica):
            return [leaf] if len(self._devices) == 1 else None
        if not isinstance(spec, PortionSpec):
            return None
        if isinstance(leaf, Portion):
            return list(leaf.values)
        with _on_host():
            return [value if value.shape[0] else take_rows(leaf.values[0], 0, 1) for value in leaf.values]

    def _rows(self, spec: Any, leaf: Any) -> tuple[Any, Any]:
        """Returns the number of each replica's own rows, and of all rows; None twice if the leaf is no portion."""
        if not isinstance(spec, PortionSpec):
            return None, None
        if isinstance(leaf, Portion):
            return leaf.num_own, leaf.num_all
        sizes = tuple(int(value.shape[0]) for value in leaf.values)
        if sizes not in self._counts:
            with _on_host():
                self._counts[sizes] = tf.constant(sizes), tf.constant(sum(sizes))
        return self._counts[sizes]


class _Copied(NamedTuple):
    """A placeholder for a leaf of an element whose tensors are being copied."""

    num_own: Any
    num_all: Any


class _Coming(NamedTuple):
    """An element that is being copied: its leaves, and a future of the tensors of each device."""

    leaves: list[Any]
    copies: list[Future[list[Any]]]


def _on_host() -> Any:
    # Batches come from the host; by default, TensorFlow would choose the first GPU.
    return tf.device("CPU:0")


def _copy(device: str, values: list[Any]) -> Callable[[], list[Any]]:
    return lambda: [_at(device, value) for value in values]


def _at(device: str, value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or value.dtype in _ON_HOST:
        return value
    with tf.device(device):
        return tf.identity(value)


def _start_worker(device: str) -> _Queue:
    """Starts a thread that runs the tasks of a device in order; returns its queue.

    It is a daemon thread: a copy waits for the GPU, which may wait for a process that is gone, and this process must
    be able to end.
    """
    work: _Queue = queue.SimpleQueue()

    def run() -> None:
        while (task := work.get()) is not None:
            future, function = task
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            # Otherwise these names would hold a batch until the next task comes.
            del task, future, function

    threading.Thread(target=run, name=f"keras-strategies-read-ahead {device}", daemon=True).start()
    return work


def _end_workers(queues: Sequence[_Queue]) -> None:
    for work in queues:
        work.put(None)


def _portion_spec(spec: Any) -> Any:
    """Returns the type of a :class:`Portion` for a dense batch of several replicas, else the spec itself."""
    if isinstance(spec, PortionSpec) or not isinstance(spec, PerReplicaSpec):
        return spec
    parts: list[Any] = list(spec._value_specs)
    if not all(isinstance(part, tf.TensorSpec) and part.shape.rank for part in parts):
        return spec
    sizes = [part.shape[0] for part in parts]
    static = None if None in sizes else (*sizes, sum(sizes))
    # A replica without rows gets a dummy row.
    parts = [tf.TensorSpec([1 if part.shape[0] == 0 else part.shape[0], *part.shape[1:]], part.dtype) for part in parts]
    return PortionSpec(*parts, static_rows=static)
