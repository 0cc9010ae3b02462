"""The time that a training step waits for its next batch, and for reductions that the backward pass did not hide.

Ops measure both by the wall clock where the waiting happens, and add them up in variables on the CPU: inside of a
tf.function, which sums gradients and may draw batches, Python sees neither. Python measures the batches that it draws
itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import MapDataset, PerReplica, is_op_determinism_enabled
from strategies.batches.autotuning import without_idle_autotuning
from strategies.replica.parts import engine_attribute
from strategies.topology.devices import is_gpu

#: Dataset stages that have their own threads, by the names of TensorFlow's classes, which are not public.
_READS_AHEAD = (
    "_PrefetchDataset",
    "_ParallelMapDataset",
    "_ParallelBatchDataset",
    "_MapAndBatchDataset",
    "_ParallelInterleaveDataset",
)


@dataclass(frozen=True)
class SecondsWaited:
    """The time that this process has waited since its strategy was made, in seconds of wall time.

    Attributes:
        input: the time spent waiting for batches, in ``fit``, ``evaluate``, ``predict`` or a custom loop. 0 for batches
            that this package does not split: ``distribute_datasets_from_function`` in a single process.
        communication: the time from the last gradient of this process' replicas to the last sum over all replicas: the
            communication that the backward pass did not hide, and waiting for slower replicas. 0 if there is one
            replica only; None until a step has been traced after :func:`measure_communication`.

    On GPUs (not measured) a batch is requested when the step before is queued, so the GPU may still be busy.

    Example:

        strategy = strategies.MirroredStrategy(["CPU:0"])
        before = strategies.seconds_waited(strategy)
        batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(100).batch(10))
        total = sum(int(tf.reduce_sum(batch)) for batch in batches)
        print(f"{strategies.seconds_waited(strategy).input - before.input:.3f} s waited for batches")
    """

    input: float
    communication: float | None


def seconds_waited(strategy: tf.distribute.Strategy) -> SecondsWaited:
    """Returns how long this process has waited since `strategy` was made. Communicates with no other process.

    To measure an interval, call it twice and subtract. A call takes less than 0.1 ms. After :func:`strategies.exact`
    nothing is measured, and all times are 0.

    Raises:
        ValueError: if the strategy is not one of this package.
    """
    return _waits_of(strategy).seconds()


def measure_communication(strategy: tf.distribute.Strategy) -> None:
    """Makes the steps that are traced from now on measure how long they wait for sums of gradients.

    Call it before the first step of a model, on any or all processes. It adds a few small ops to the step, and on GPUs
    copies one number to the CPU before the sums and one after them (not measured on GPUs). It does not change the
    numbers of training.

    Raises:
        ValueError: if the strategy is not one of this package.
    """
    _waits_of(strategy).measures_communication = True


def _waits_of(strategy: tf.distribute.Strategy) -> Waits:
    waits = engine_attribute(strategy, "waits")
    if not isinstance(waits, Waits):
        raise ValueError(
            "Only the strategies of this package measure what they wait for. Received: "
            f"{type(strategy).__module__}.{type(strategy).__name__}."
        )
    return waits


def _clock() -> tf.Tensor:
    """Returns the time in seconds, always 0 with op determinism, where TensorFlow refuses to read the clock."""
    return tf.constant(0.0, tf.float64) if is_op_determinism_enabled() else tf.timestamp()


class Waits:
    """Adds up the waiting times of one strategy in this process.

    Args:
        num_replicas: the number of replicas of the job.
    """

    def __init__(self, num_replicas: int) -> None:
        #: True if steps that are traced from now on measure how long they wait for sums.
        self.measures_communication = False
        self._num_replicas = num_replicas
        self._is_measured = False
        # Seconds for batches that Python has drawn.
        self._drawing = 0.0
        with tf.device("CPU:0"):
            self._input = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="seconds_waited_for_input")
            self._sums = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="seconds_waited_for_sums")
            # The time at which the last step ended; infinity while a step runs.
            self._idle_since = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="idle_since")
            # Written with values from a GPU, to wait for them.
            self._arrivals = tf.Variable(0.0, trainable=False, name="arrivals")

    def seconds(self) -> SecondsWaited:
        """Returns the waiting times so far."""
        alone = self.measures_communication and self._num_replicas == 1
        communication = float(self._sums.numpy()) if self._is_measured else 0.0 if alone else None
        return SecondsWaited(float(self._input.numpy()) + self._drawing, communication)

    # ---- input

    def clocked(self, dataset: Any) -> Any:
        """Returns a distributed dataset with a last stage that measures the waiting time for each element.

        The elements, their types, number and order do not change, nor does how far TensorFlow reads ahead. The stage
        itself runs when an element is requested, in the caller's thread, so there must be no prefetch after it.
        Distributed datasets of TensorFlow are returned as they are.
        """
        return dataset.apply(self._with_clock) if hasattr(dataset, "apply") else dataset

    def for_drawing(self, dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, Callable[[float], None]]:
        """Returns the dataset that `clocked` would measure, and a function that adds seconds that its caller measured.

        An iterator of a clock takes milliseconds more to make, and each of its elements microseconds more.
        """
        # A `ComparedDataset` applies the function to its portions.
        inner: list[tf.data.Dataset] = []

        def prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
            inner.append(dataset)
            return dataset if self._is_clocked(dataset) else without_idle_autotuning(_with_prefetch(dataset))

        drawn = dataset.apply(prefetched)
        return drawn, _ignore if any(map(self._is_clocked, inner)) else self._add_drawing

    def _add_drawing(self, seconds: float) -> None:
        if not is_op_determinism_enabled():
            self._drawing += seconds

    def _is_clocked(self, dataset: tf.data.Dataset) -> bool:
        return getattr(dataset, "_clocked_by", None) is self

    def _with_clock(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        if self._is_clocked(dataset):
            return dataset
        # A step that failed has not recorded its end.
        self._idle_since.assign(0.0)
        dataset = _with_prefetch(dataset)

        @tf.autograph.experimental.do_not_convert
        def now(_: tf.Tensor) -> tf.Tensor:
            return _clock()

        @tf.autograph.experimental.do_not_convert
        def arrived(asked: tf.Tensor, element: Any) -> Any:
            begin = tf.maximum(asked, self._idle_since)
            self._input.assign_add(tf.maximum(_clock() - begin, 0.0), read_value=False)
            return element

        # zip requests the clock first, then the dataset.
        clock = MapDataset(tf.data.Dataset.from_tensors(0).repeat(), now, use_inter_op_parallelism=False)
        both = tf.data.Dataset.zip((clock, dataset))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        measured = MapDataset(both, arrived, use_inter_op_parallelism=False).with_options(options)
        result = without_idle_autotuning(measured)
        result._clocked_by = self
        return result

    @contextlib.contextmanager
    def running(self, batch: Any) -> Iterator[None]:
        """Context manager, in a graph: while the ops created in it run, drawing batches does not count as waiting.

        It is for steps during which the next batch is drawn.

        Args:
            batch: the inputs that the step needs before it can begin.
        """
        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        tensors = [t for t in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(t)]
        with tf.device("CPU:0"), tf.control_dependencies(_joined([tensor.op for tensor in tensors])):
            self._idle_since.assign(math.inf, read_value=False)
        yield
        # The step ends when its ops with side effects end: updates of variables, collectives and others.
        made = graph.get_operations()[num_before:]
        effects = [op for op in made if op.op_def.is_stateful and op.type not in ("ReadVariableOp", "Placeholder")]
        with tf.device("CPU:0"), tf.control_dependencies(_joined(effects)):
            ended = _clock()
            self._idle_since.assign(ended, read_value=False)

    # ---- communication

    def moment_after(self, values: Sequence[Any]) -> tf.Tensor:
        """Returns the time, in seconds, at which all of ``values`` are ready.

        Args:
            values: tensors or ``IndexedSlices``, per replica or not.
        """
        local = [v for value in values for v in (value.values if isinstance(value, PerReplica) else (value,))]
        tensors = tf.nest.flatten(local, expand_composites=True)
        with tf.device("CPU:0"), tf.control_dependencies(self._on_cpu(tensors)):
            return _clock()

    @contextlib.contextmanager
    def communicating(self, terms: Sequence[Any]) -> Iterator[list[Any]]:
        """Context manager: measures, if enabled, the time from the last of ``terms`` to the last of their sums.

        Yields:
            A list, to which the block adds the sums.
        """
        sums: list[Any] = []
        if not (self.measures_communication and terms):
            yield sums
            return
        begin = self.moment_after(terms)
        yield sums
        self._is_measured = True
        # After the begin, too: TensorFlow may run an op that is ready when others have ended.
        end = self.moment_after([*sums, begin])
        with tf.device("CPU:0"):
            self._sums.assign_add(tf.maximum(end - begin, 0.0), read_value=False)

    def _on_cpu(self, tensors: Sequence[tf.Tensor]) -> list[Any]:
        """Returns tensors and ops for which control dependencies of a CPU op really wait.

        A GPU's ops count as done when they are queued; a copy from the GPU comes after them.
        """
        by_device: dict[str, list[tf.Tensor]] = {}
        for tensor in tensors:
            by_device.setdefault(tensor.device, []).append(tensor)
        waited: list[Any] = []
        for device, on_device in by_device.items():
            # A tensor without a device is on the first GPU, if there is one.
            if not (is_gpu(device) if device else tf.config.list_logical_devices("GPU")):
                waited += on_device
                continue
            with tf.device(device), tf.control_dependencies(on_device):
                last = tf.reduce_sum(tf.cast(tf.reshape(on_device[-1], [-1])[:1], tf.float32))
            with tf.device("CPU:0"):
                # The value is used: a mere control edge would copy nothing.
                waited.append(self._arrivals.assign(last))
        return waited


def _joined(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Returns one op for each device, which is done when all ops of the device are.

    Each control edge from a GPU to the CPU is a send and a receive that wait for all work queued on the GPU.
    """
    by_device: dict[str, list[tf.Operation]] = {}
    for op in ops:
        by_device.setdefault(op.device, []).append(op)
    joined = []
    for device, on_device in by_device.items():
        with tf.device(device), tf.control_dependencies(on_device):
            joined.append(tf.no_op())
    return joined


def _ignore(seconds: float) -> None:
    """Adds nothing: a clock in the dataset measures the seconds."""


def _with_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with the prefetch that TensorFlow would append (``inject_prefetch``) to its last stage.

    TensorFlow would append it to the clock, or not at all without autotuning.
    """
    options = dataset.options()
    if options.autotune.enabled is False or options.experimental_optimization.inject_prefetch is False:
        return dataset
    last = dataset
    while type(last).__name__ == "_OptionsDataset":
        (last,) = last._inputs()
    return dataset if type(last).__name__ in _READS_AHEAD else dataset.prefetch(tf.data.AUTOTUNE)
