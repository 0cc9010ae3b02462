"""The time that a training step waits for its next batch, and for sums that the backward pass did not hide.

Both are read from the wall clock by ops where the waiting happens, and added up in variables on the CPU: Keras draws
batches and sums gradients inside one function of TensorFlow, where Python sees neither.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import MapDataset, PerReplica, is_op_determinism_enabled
from strategies.topology.devices import is_gpu

#: Stages that have threads of their own, by the names of TensorFlow's classes, which have no public ones.
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
        input: for batches, whoever drew them: ``fit``, ``evaluate``, ``predict``, a loop of one's own. 0 for what is
            not shared out by us: ``distribute_datasets_from_function`` in a single process.
        communication: from when the last gradient of this process' replicas was there until the last sum over all
            replicas was: what the backward pass did not hide, and waiting for slower replicas. 0 if there is one
            replica only; None as long as no step was traced since :func:`measure_communication`.

    On GPUs (not measured) a batch is asked for when the step before is queued, so the GPU may still be at work.

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
    """Returns how long this process has waited since `strategy` was made. Asks no other process.

    Read it twice and subtract, to know about what lies between. It costs less than 0.1 ms. After
    :func:`strategies.exact` nothing is measured, and all times are 0.

    Raises:
        ValueError: a strategy that is not one of this package's.
    """
    return _waits_of(strategy).seconds()


def measure_communication(strategy: tf.distribute.Strategy) -> None:
    """Makes the steps that are traced from now on measure how long they wait for sums of gradients.

    Call it before the first step of a model, on any processes or all. It adds a few small operations to the step, and
    on GPUs one number that is copied to the CPU before the sums and one behind them (not measured on GPUs). The
    numbers of training stay what they are.

    Raises:
        ValueError: a strategy that is not one of this package's.
    """
    _waits_of(strategy).measures_communication = True


def _waits_of(strategy: tf.distribute.Strategy) -> Waits:
    waits = getattr(strategy.extended, "waits", None)
    if not isinstance(waits, Waits):
        raise ValueError(
            "Only the strategies of this package measure what they wait for. Received: "
            f"{type(strategy).__module__}.{type(strategy).__name__}."
        )
    return waits


def _clock() -> tf.Tensor:
    """The time in seconds. Always 0 where operations are deterministic: there TensorFlow refuses to read the clock."""
    return tf.constant(0.0, tf.float64) if is_op_determinism_enabled() else tf.timestamp()


class Waits:
    """Adds up what one strategy waits for in this process.

    Args:
        num_replicas: of the whole job.
    """

    def __init__(self, num_replicas: int) -> None:
        #: True if steps that are traced from now on measure how long they wait for sums.
        self.measures_communication = False
        self._num_replicas = num_replicas
        self._is_measured = False
        with tf.device("CPU:0"):
            self._input = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="seconds_waited_for_input")
            self._sums = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="seconds_waited_for_sums")
            # Since when no step runs; infinity while one does.
            self._idle_since = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="idle_since")
            # Values on a GPU are waited for by writing them here.
            self._arrivals = tf.Variable(0.0, trainable=False, name="arrivals")

    def seconds(self) -> SecondsWaited:
        """Returns what was waited so far."""
        alone = self.measures_communication and self._num_replicas == 1
        communication = float(self._sums.numpy()) if self._is_measured else 0.0 if alone else None
        return SecondsWaited(float(self._input.numpy()), communication)

    # ---- input

    def clocked(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns ``dataset`` with a last stage that measures how long each element is waited for.

        Elements, their types, number and order, and how far TensorFlow reads ahead stay as they are. The stage itself
        runs when it is asked and where it is asked from, so nothing may read ahead of it.
        """
        if getattr(dataset, "_clocked_by", None) is self:
            return dataset
        # A step that failed has not said when it ended.
        self._idle_since.assign(0.0)
        if _would_be_prefetched(dataset):
            # As TensorFlow would have done behind the last stage. It must not do it behind ours.
            dataset = dataset.prefetch(tf.data.AUTOTUNE)

        @tf.autograph.experimental.do_not_convert
        def now(_: tf.Tensor) -> tf.Tensor:
            return _clock()

        @tf.autograph.experimental.do_not_convert
        def arrived(asked: tf.Tensor, element: Any) -> Any:
            begin = tf.maximum(asked, self._idle_since)
            self._input.assign_add(tf.maximum(_clock() - begin, 0.0), read_value=False)
            return element

        # Stages are asked in this order: first the clock, then the dataset.
        clock = MapDataset(tf.data.Dataset.from_tensors(0).repeat(), now, use_inter_op_parallelism=False)
        both = tf.data.Dataset.zip((clock, dataset))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        result = MapDataset(both, arrived, use_inter_op_parallelism=False).with_options(options)
        result._clocked_by = self
        return result

    @contextlib.contextmanager
    def running(self, batch: Any) -> Iterator[None]:
        """In a graph: while the operations made inside run, batches that are drawn are not waited for.

        For steps beside which the next batch is drawn.

        Args:
            batch: what the step needs before it can begin.
        """
        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        tensors = [t for t in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(t)]
        with tf.device("CPU:0"), tf.control_dependencies(_joined([tensor.op for tensor in tensors])):
            self._idle_since.assign(math.inf, read_value=False)
        yield
        # Updates of variables, and whatever else has to run, above all.
        made = graph.get_operations()[num_before:]
        effects = [op for op in made if op.op_def.is_stateful and op.type not in ("ReadVariableOp", "Placeholder")]
        with tf.device("CPU:0"), tf.control_dependencies(_joined(effects)):
            ended = _clock()
            self._idle_since.assign(ended, read_value=False)

    # ---- communication

    def moment_after(self, values: Sequence[Any]) -> tf.Tensor:
        """Returns the time, in seconds, at which all of ``values`` are there.

        Args:
            values: tensors or ``IndexedSlices``, per replica or not.
        """
        local = [v for value in values for v in (value.values if isinstance(value, PerReplica) else (value,))]
        tensors = tf.nest.flatten(local, expand_composites=True)
        with tf.device("CPU:0"), tf.control_dependencies(self._on_cpu(tensors)):
            return _clock()

    def add_communication(self, begin: tf.Tensor, end: tf.Tensor) -> None:
        """Adds the time between two moments to what was waited for sums."""
        self._is_measured = True
        with tf.device("CPU:0"):
            self._sums.assign_add(tf.maximum(end - begin, 0.0), read_value=False)

    def _on_cpu(self, tensors: Sequence[tf.Tensor]) -> list[Any]:
        """Returns what the CPU can wait for.

        A GPU's operations count as done when they are queued. What is copied from it comes behind them.
        """
        by_device: dict[str, list[tf.Tensor]] = {}
        for tensor in tensors:
            by_device.setdefault(tensor.device, []).append(tensor)
        waited: list[Any] = []
        for device, there in by_device.items():
            # A tensor without a device is on the first GPU, where there is one.
            if not (is_gpu(device) if device else tf.config.list_logical_devices("GPU")):
                waited += there
                continue
            with tf.device(device), tf.control_dependencies(there):
                last = tf.reduce_sum(tf.cast(tf.reshape(there[-1], [-1])[:1], tf.float32))
            with tf.device("CPU:0"):
                # By its value: for a mere control edge nothing would be copied.
                waited.append(self._arrivals.assign(last))
        return waited


def _joined(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Returns one op for each device, done when all of its ops are.

    From a GPU each control edge to the CPU is a send and a receive that wait for all work queued there.
    """
    by_device: dict[str, list[tf.Operation]] = {}
    for op in ops:
        by_device.setdefault(op.device, []).append(op)
    joined = []
    for device, there in by_device.items():
        with tf.device(device), tf.control_dependencies(there):
            joined.append(tf.no_op())
    return joined


def _would_be_prefetched(dataset: tf.data.Dataset) -> bool:
    """True if TensorFlow would append a prefetch (``inject_prefetch``), since the last stage does not read ahead."""
    options = dataset.options()
    if options.autotune.enabled is False or options.experimental_optimization.inject_prefetch is False:
        return False
    while type(dataset).__name__ == "_OptionsDataset":
        (dataset,) = dataset._inputs()
    return type(dataset).__name__ not in _READS_AHEAD
