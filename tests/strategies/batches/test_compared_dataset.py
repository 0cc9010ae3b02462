"""A dataset whose first element is compared between processes; its elements stay unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.batches import sharding
from strategies.batches.first_batch import NUM_CHECKSUMS
from strategies.collectives.agreement import Agreement

Data = tf.data.Dataset


class Job:
    """Two processes that have the same values, or different ones."""

    rank, num_processes = 0, 2

    def __init__(self, *, are_alike: bool = True) -> None:
        self.are_alike, self.sizes = are_alike, list[int]()

    def gather(self, value: tf.Tensor, *, equal_sizes: bool) -> tf.Tensor:
        self.sizes.append(value.shape[1])
        other = value + (
            0 if self.are_alike or value.shape[1] < NUM_CHECKSUMS else [[*[0] * (value.shape[1] - 6), *[1] * 6]]
        )
        return tf.concat([value, other], axis=0)


def generated() -> Iterator[int]:
    yield from range(14)


KINDS: dict[str, Callable[[], tf.data.Dataset]] = {
    "arrays": lambda: Data.from_tensor_slices(np.arange(14)).batch(4),
    "shuffled": lambda: Data.range(14).shuffle(14).batch(4),
    "mapped": lambda: Data.range(14).shuffle(14).map(lambda x: x + 1).batch(4).prefetch(1),
    "skipped": lambda: Data.range(14).map(lambda x: x + 1).batch(4).skip(1),
    "repeated": lambda: Data.range(14).map(lambda x: x + 1).batch(4).repeat(2),
    "endless": lambda: Data.range(14).repeat().batch(4),
    "ragged": lambda: Data.range(14).map(lambda x: tf.RaggedTensor.from_row_lengths(tf.range(x), [x])).batch(4),
    "dictionary": lambda: Data.range(14).map(lambda x: {"a": x, "b": (tf.strings.as_string(x), 1)}).batch(4),
    "unknown": lambda: Data.range(14).filter(lambda x: x > 1).map(lambda x: x + 1).batch(4),
    "generator": lambda: Data.from_generator(generated, output_signature=tf.TensorSpec([], tf.int64)).batch(4),
    "empty": lambda: Data.range(0).batch(4),
}


def portions(kind: str, job: Any, *, compares: bool) -> list[str]:
    """Returns the elements of two epochs as text."""
    tf.random.set_seed(3)
    dataset = sharding.distribute(KINDS[kind](), Agreement(job), 1)
    if compares:
        dataset.compare_next(are_arrays=False)
    spec = repr(dataset.element_spec)
    found = []
    for _ in range(2):
        for _, element in zip(range(9), dataset, strict=False):
            found.append(repr(tf.nest.flatten(element, expand_composites=True)))
    return [spec, *found]


@pytest.mark.parametrize("kind", KINDS)
def test_elements_stay_as_they_are(kind: str) -> None:
    job = Job()
    assert portions(kind, job, compares=True) == portions(kind, Job(), compares=False)
    # Lengths, then the first batch, with the agreement about the pipeline if there is one.
    assert [size for size in job.sizes if size > 2] == [NUM_CHECKSUMS + (2 if 2 in job.sizes else 0)]


@pytest.mark.parametrize("kind", ["arrays", "mapped", "skipped", "dictionary", "unknown", "generator"])
def test_another_first_batch_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="on ranks 1 has other rows"):
        portions(kind, Job(are_alike=False), compares=True)


def test_it_is_compared_once() -> None:
    job: Any = Job()
    dataset = sharding.distribute(KINDS["arrays"](), Agreement(job), 1)
    dataset.compare_next(are_arrays=True)
    applied = dataset.apply(lambda each: each.take(2))
    applied.compare_next(are_arrays=True)
    for _ in range(2):
        assert len(list(applied)) == 2
    assert job.sizes == [1, NUM_CHECKSUMS]
