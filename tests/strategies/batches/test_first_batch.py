"""The comparison of first batches by their checksums; between processes it is in `processes/suite_first_batches`."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.batches.first_batch import NUM_CHECKSUMS, checksums, judge, message
from strategies.batches.origins import Origin

DATA, PYTHON, RANDOM = Origin.DATA, Origin.PYTHON, Origin.RANDOM

#: The origins of the tensors, the checksums of two ranks, and the expected verdict.
JUDGED: list[tuple[list[Origin], list[int], list[int], str]] = [
    ([DATA, DATA], [1, 2], [1, 2], "equal"),
    ([DATA, DATA], [1, 2], [1, 3], "refused"),
    ([DATA, RANDOM], [1, 2], [1, 3], "equal"),
    ([DATA, RANDOM], [1, 2], [4, 3], "refused"),
    ([RANDOM, RANDOM], [1, 2], [4, 3], "equal"),
    ([PYTHON, PYTHON], [1, 2], [3, 4], "refused"),
    ([PYTHON, PYTHON], [1, 2], [3, 2], "warned"),
    ([PYTHON, RANDOM], [1, 2], [3, 2], "refused"),
    ([PYTHON, DATA], [1, 2], [3, 2], "warned"),
    ([PYTHON, DATA], [1, 2], [3, 4], "refused"),
    ([PYTHON] * 6, [1, 2, 3, 4, 5, 6], [9, 9, 9, 9, 9, 9], "refused"),
    ([PYTHON] * 6, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 9], "warned"),
]


@pytest.mark.parametrize(("origins", "first", "second", "expected"), JUDGED)
def test_judgement(origins: list[Origin], first: list[int], second: list[int], expected: str) -> None:
    messages = [message(first, origins), message(first, origins), message(second, origins)]
    assert {len(each) for each in messages} == {NUM_CHECKSUMS}
    outcome: Any = contextlib.nullcontext()
    if expected == "refused":
        outcome = pytest.raises(
            ValueError,
            match=r"on ranks 2 has other rows.*from_function.*ranks 0, 1: a first .* \| rank 2: a",
        )
    elif expected == "warned":
        outcome = pytest.warns(UserWarning, match=r"on ranks 2 has other values.*set_random_seed")
    with outcome:
        judge(np.array(messages))


def test_other_pipelines_are_not_compared() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judge([message([1], [DATA]), message([1, 2], [DATA, DATA])])


@pytest.mark.parametrize("origin", Origin)
def test_processes_of_one_replica_need_all_tensors_alike(origin: Origin) -> None:
    messages = [message([1, 2 + (rank == 3)], [DATA, origin]) for rank in range(4)]
    with pytest.raises(
        ValueError, match=r"parts of one replica .* on ranks 3 .*ranks 0, 1, 2: a first .* \| rank 3: a"
    ):
        judge(messages, num_together=2)
    judge([message([1 + rank // 2], [Origin.RANDOM]) for rank in range(4)], num_together=2)


BATCH = {
    "dense": tf.constant([[1.0, 2.0]]),
    "flags": tf.constant([True]),
    "ragged": tf.ragged.constant([[1, 2], [3]]),
    "sparse": tf.sparse.from_dense([[0, 1]]),
    "text": tf.constant(["/here/a.png"]),
}


def test_checksums_of_every_kind() -> None:
    others: dict[str, Any] = {
        "dense": tf.constant([[2.0, 1.0]]),
        "flags": tf.constant([False]),
        "ragged": tf.ragged.constant([[1], [2, 3]]),
        "sparse": tf.sparse.from_dense([[1, 0]]),
        "text": tf.constant(["/here/b.png"]),
    }
    expected = checksums(BATCH).numpy()
    # The folder of a file may differ between machines.
    np.testing.assert_array_equal(checksums(BATCH | {"text": tf.constant(["/there/a.png"])}), expected)
    for place, (name, other) in enumerate(others.items()):
        differs = checksums(BATCH | {name: other}).numpy() != expected
        assert np.flatnonzero(differs).tolist() == [place], name
