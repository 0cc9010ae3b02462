"""Explains errors of steps that need all rows of a batch at once.

A replica has some of the rows. Where a step takes their number from elsewhere, TensorFlow reports that shapes do not
fit.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator

import tensorflow as tf

# TensorFlow's messages about shapes that do not fit, while tracing and while running.
_SHAPES = re.compile(
    r"Dimensions? (?:\d+ in both shapes )?must be equal|Cannot reshape a tensor|Input to reshape is a tensor|"
    r"Incompatible shapes|required broadcastable shapes|Matrix size-incompatible|must have the same first dimension|"
    r"[Ss]hapes? .* (?:incompatible|not compatible)|Dimensions of inputs should match"
)
# `_NUMBER` does not match the number in a name, as in "dense_2"; numbers of lines (`_LINE`) are removed before.
_NUMBER = re.compile(r"(?<![\w.:])\d+(?![\w.])")
_LINE = re.compile(r"\bline \d+")

_HINT = (
    "A step failed on shapes that may fit on one device: each of {n} replicas runs it with its own rows of the batch. "
    "Where a step takes the number of rows from the batch's static size, as in tf.reshape(x, (32, 8)), write -1, or "
    "tf.shape(x)[0]. A batch that is one thing, such as a graph whose adjacency matrix has a row and a column for each "
    "row, cannot be divided: give it one more dimension, so that a batch has several graphs, or train it on one "
    'replica, MirroredStrategy(["GPU:0"]), or spread over "tensor" and "pipe". Received: {name}: '
    "{error}"
)


@contextlib.contextmanager
def explained(num_replicas: int) -> Iterator[None]:
    """Context manager: explains errors about shapes that differ by a factor of the number of replicas.

    Args:
        num_replicas: the number of replicas over which a batch is divided.

    Raises:
        ValueError: in place of TensorFlow's error, which it contains.
    """
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        text = str(error)
        if num_replicas == 1 or not _SHAPES.search(text) or not _differ_as_rows(text, num_replicas):
            raise
        raise ValueError(_HINT.format(n=num_replicas, name=type(error).__name__, error=text)) from error


def _differ_as_rows(text: str, num_replicas: int) -> bool:
    """Returns True if a number in the text is `num_replicas` times another, as rows of a batch and of a replica are."""
    numbers = sorted({int(number) for number in _NUMBER.findall(_LINE.sub("", text))} - {0})
    return any(whole // part == num_replicas for part, whole in itertools.combinations(numbers, 2))
