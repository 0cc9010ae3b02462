"""Documents packed into rows of equal length, and batches of them from any step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from gpt.text import DataError
from gpt.tokens import Tokens

# One row per this number of rows is held out, at the end of the text.
_ROWS_PER_VALIDATION_ROW = 20


@dataclass(frozen=True)
class Rows:
    """Rows of `length` tokens, each with the token that follows it.

    Attributes:
        tokens: int32, of shape (at least num_rows * length + 1,).
        length: number of tokens in a row.
    """

    tokens: Tokens
    length: int

    @property
    def num_rows(self) -> int:
        """The number of full rows; the remaining tokens at the end are not used."""
        return max(0, len(self.tokens) - 1) // self.length


def pack(documents: Iterable[Sequence[int] | Tokens], separator: int) -> Tokens:
    """Returns all documents concatenated, with a separator before each of them and at the end."""
    mark = np.array([separator], np.int32)
    parts = [mark]
    for document in documents:
        parts += [np.asarray(document, np.int32), mark]
    return np.concatenate(parts)


def split(tokens: Tokens, length: int) -> tuple[Rows, Rows | None]:
    """Splits the text into training rows and held-out rows at its end: one in twenty; None if there is only one row.

    Raises:
        DataError: the text is shorter than one row.
    """
    every = Rows(tokens, length)
    if every.num_rows == 0:
        raise DataError(
            f"The text has {len(tokens)} tokens, with its separators; a row takes {length + 1}. Give --data_file a "
            "longer text, or make --sequence_length smaller."
        )
    num_held_out = max(1, every.num_rows // _ROWS_PER_VALIDATION_ROW) if every.num_rows > 1 else 0
    end = (every.num_rows - num_held_out) * length
    # The last token of one split is the first of the other: a target in one, an input in the other.
    return Rows(tokens[: end + 1], length), Rows(tokens[end:], length) if num_held_out else None


def batches(rows: Rows, batch_size: int, *, seed: int, first_step: int = 0, num_steps: int) -> tf.data.Dataset:
    """Returns batches `first_step` to `first_step + num_steps - 1` of an infinite run, each (inputs, targets).

    Each pass over the text has another offset, so that a model cannot memorise the rows, and another order of the rows.
    The text is cyclic: its beginning follows its end. Offset and order depend only on `seed` and the number of the
    pass: a run can start at any step, on any machine, with the same batches. A batch may contain the end of one pass
    and the beginning of the next, so that no row is skipped.

    Returns:
        A dataset of `num_steps` pairs of int32 tensors of shape (batch_size, length).
    """
    return _batches(rows, batch_size, _shuffled(rows, seed), first_step * batch_size, num_steps * batch_size)


def in_order(rows: Rows, batch_size: int) -> tf.data.Dataset:
    """Returns batches of all rows once, in the order of the text; the last one may be smaller."""
    return _batches(rows, batch_size, lambda row: row * rows.length, 0, rows.num_rows, drop_remainder=False)


def _shuffled(rows: Rows, seed: int) -> Callable[[tf.Tensor], tf.Tensor]:
    last = tf.constant(rows.num_rows - 1, tf.int64)

    def start_of(row: tf.Tensor) -> tf.Tensor:
        numbers = tf.stack([tf.constant(seed, tf.int64), row // rows.num_rows])
        first = tf.random.stateless_uniform([], numbers, maxval=len(rows.tokens), dtype=tf.int64)
        index = tf.random.experimental.index_shuffle(row % rows.num_rows, numbers, last)
        return first + index * rows.length

    return start_of


def _batches(
    rows: Rows,
    batch_size: int,
    start_of: Callable[[tf.Tensor], tf.Tensor],
    start: int,
    count: int,
    *,
    drop_remainder: bool = True,
) -> tf.data.Dataset:
    length = rows.length
    # On the host, in the smallest integer type that suffices.
    with tf.device("CPU:0"):
        tokens = tf.constant(rows.tokens.astype(np.min_scalar_type(int(rows.tokens.max()))))

    def row(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        indices = (start_of(number) + tf.range(length + 1, dtype=tf.int64)) % len(rows.tokens)
        piece = tf.cast(tf.gather(tokens, indices), tf.int32)
        return piece[:-1], piece[1:]

    return (
        tf.data.Dataset.range(start, start + count)
        .map(row)
        .batch(batch_size, drop_remainder=drop_remainder)
        .prefetch(2)
    )
