"""Batches that are copied to their devices before their step: devices, order and errors."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from strategies.batches import inputs, prefetch
from strategies.batches.portions import Portion
from strategies.batches.prefetch import NUM_AHEAD, ReadAheadDataset

DEVICES = ["/device:CPU:2", "/device:CPU:3"]


def place_of(value: tf.Tensor) -> int:
    return int(tf.DeviceSpec.from_string(value.device).device_index)


class TestIterators:
    def test_every_replica_has_its_rows(self) -> None:
        data = {"x": np.arange(5.0), "name": np.array(list("abcde")), "n": np.arange(5)}
        data["int32"] = data["n"].astype("int32")
        dataset = inputs.distribute(tf.data.Dataset.from_tensor_slices(data).batch(4), 2)
        elements = list(ReadAheadDataset(dataset, DEVICES))
        assert [list(map(as_list, element["x"].values)) for element in elements] == [[[0, 1], [2, 3]], [[4], [4]]]
        for element, rows in zip(elements, [[2, 2], [1, 0]], strict=True):
            for name, leaf in element.items():
                assert isinstance(leaf, Portion)
                assert leaf.num_own.numpy().tolist() == rows
                assert int(leaf.num_all) == sum(rows)
                # GPUs have no strings, and int32 would be copied back.
                assert [place_of(v) for v in leaf.values] == ([2, 3] if name in ("x", "n") else [0, 0])
                assert [place_of(leaf.num_own), place_of(leaf.num_all)] == [0, 0]

    @pytest.mark.parametrize("size", [1, 4])
    def test_static_rows_stay_static(self, size: int) -> None:
        dataset = inputs.distribute(tf.data.Dataset.range(8).batch(size, drop_remainder=True), 2)
        ahead = ReadAheadDataset(dataset, DEVICES)
        assert ahead.element_spec._static_rows == (size - size // 2, size // 2, size)
        for element in ahead:
            assert element.static_rows == ahead.element_spec._static_rows
            for spec, value in zip(ahead.element_spec.value_specs, element.values, strict=True):
                assert spec.is_compatible_with(value)

    def test_what_is_no_dense_batch_stays(self) -> None:
        batch = (tf.ragged.constant([[1], [2, 3], []]), tf.constant(7))
        ((ragged, number),) = ReadAheadDataset(inputs.distribute(tf.data.Dataset.from_tensors(batch), 2), DEVICES)
        assert [value.to_list() for value in ragged.values] == [[[1], [2, 3]], [[]]]
        assert [int(value) for value in number.values] == [7, 7]

    def test_it_draws_no_more_than_it_says_and_loses_nothing(self) -> None:
        drawn: list[int] = []

        class Source(list[tf.Tensor]):
            element_spec = tf.TensorSpec([], tf.int64)

            def __iter__(self) -> Iterator[tf.Tensor]:
                for i in range(9):
                    drawn.append(i)
                    yield tf.constant(i, tf.int64)

        dataset = Source()
        iterator = iter(ReadAheadDataset(dataset, DEVICES[:1]))
        for i in range(9):
            element = next(iterator)
            assert (int(element), place_of(element)) == (i, 2)
            assert drawn == list(range(min(9, i + 1 + NUM_AHEAD)))
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)

    def test_errors_come_in_their_turn(self) -> None:
        dataset = tf.data.Dataset.range(3).map(lambda x: tf.debugging.check_numerics(1 / (2 - x), "here"))
        iterator = iter(ReadAheadDataset(dataset, DEVICES[:1]))
        assert [float(next(iterator)) for _ in range(2)] == [0.5, 1.0]
        with pytest.raises(tf.errors.InvalidArgumentError, match="here"):
            next(iterator)

    @pytest.mark.parametrize("fails", [False, True])
    def test_nothing_keeps_it(self, fails: bool) -> None:
        """An iterator of TensorFlow that only Python's last garbage collection frees can block the exit."""
        dataset = tf.data.Dataset.range(3).map(
            lambda x: tf.debugging.check_numerics(1 / (2 - x if fails else 5), "here")
        )
        iterator = iter(ReadAheadDataset(dataset, DEVICES[:1]))
        known = weakref.ref(iterator)
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(tf.errors.InvalidArgumentError):
                assert len(list(iterator)) == 3
            del iterator
            assert known() is None
        finally:
            gc.enable()

    def test_each_device_has_a_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A copy waits for its own GPU only."""
        may_go, copied, at = threading.Event(), queue.SimpleQueue[tuple[str, int]](), prefetch._at

        def waiting(device: str, value: tf.Tensor) -> tf.Tensor:
            if device == DEVICES[0]:
                assert may_go.wait(60)
            copied.put((device, int(value[0])))
            return at(device, value)

        monkeypatch.setattr(prefetch, "_at", waiting)
        dataset = inputs.distribute(tf.data.Dataset.range(8).batch(2), 2)
        iterator = iter(ReadAheadDataset(dataset, DEVICES))
        found: list[list[int]] = []
        reader = threading.Thread(target=lambda: found.extend(as_list(v) for e in iterator for v in e.values))
        reader.start()
        # The second device has all that is read ahead, while the first has nothing.
        assert [copied.get(timeout=60) for _ in range(1 + NUM_AHEAD)] == [(DEVICES[1], i) for i in (1, 3, 5)]
        assert not found
        may_go.set()
        reader.join(60)
        assert found == [[i] for i in range(8)]

    def test_errors_of_a_copy_come_in_their_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        at = prefetch._at

        def failing(device: str, value: tf.Tensor) -> tf.Tensor:
            if (device, int(value[0])) == (DEVICES[1], 3):
                raise tf.errors.ResourceExhaustedError(None, None, "no memory")
            return at(device, value)

        monkeypatch.setattr(prefetch, "_at", failing)
        iterator = iter(ReadAheadDataset(inputs.distribute(tf.data.Dataset.range(8).batch(2), 2), DEVICES))
        assert [as_list(value) for value in next(iterator).values] == [[0], [1]]
        with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory"):
            next(iterator)
        assert [as_list(value) for value in next(iterator).values] == [[4], [5]]

    def test_a_source_that_blocks(self) -> None:
        """No element is lost or reordered, and only the reader waits."""
        may_go, asked = threading.Event(), threading.Event()

        class Source(list[tf.Tensor]):
            element_spec = tf.TensorSpec([], tf.float32)

            def __iter__(self) -> Iterator[tf.Tensor]:
                for i in range(6):
                    if i == 4:
                        asked.set()
                        assert may_go.wait(60)
                    yield tf.constant(float(i))

        iterator = iter(ReadAheadDataset(Source(), DEVICES[:1]))
        found: list[float] = []
        reader = threading.Thread(target=lambda: found.extend(map(float, iterator)))
        reader.start()
        assert asked.wait(60)
        assert found == [0.0, 1.0]
        may_go.set()
        reader.join(60)
        assert found == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    def test_its_threads_end_with_it(self) -> None:
        def threads() -> list[threading.Thread]:
            return [t for t in threading.enumerate() if t.name.startswith("keras-strategies-read-ahead")]

        gc.collect()
        for thread in threads():
            thread.join(60)
        iterator = iter(ReadAheadDataset(inputs.distribute(tf.data.Dataset.range(18).batch(2), 2), DEVICES))
        next(iterator)
        both = threads()
        assert [thread.name[-5:] for thread in both] == ["CPU:2", "CPU:3"]
        del iterator
        gc.collect()
        for thread in both:
            thread.join(60)
        assert not threads()

    def test_gpus_have_int32_in_host_memory(self) -> None:
        """TensorFlow copies int32 to no GPU: functions take their int32 arguments from the host, too."""
        on_host = {
            constraint.allowed_values.list.type[0]
            for kernel in kernels.get_registered_kernels_for_op("Identity").kernel
            for constraint in kernel.constraint
            if kernel.device_type == "GPU" and "output" in kernel.host_memory_arg
        }
        copied = {dtype.as_datatype_enum for dtype in prefetch._ON_HOST}
        assert on_host <= copied
        assert copied - on_host == {tf.variant.as_datatype_enum}


def as_list(value: tf.Tensor) -> list[Any]:
    return list(value.numpy().tolist())
