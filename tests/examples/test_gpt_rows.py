"""Rows of the language model: no text omitted or repeated, and orders that any step can reproduce."""

from typing import Any

import numpy as np
import pytest
from common.options import OptionError
from gpt import rows

# Token i is i, so that a row shows where it starts.
TOKENS = np.arange(42, dtype=np.int32)


def inputs(dataset: Any) -> list[list[int]]:
    """Returns the first token of each row, by batch; checks the targets, too."""
    found = []
    for x, y in dataset.as_numpy_iterator():
        assert x.dtype == y.dtype == np.int32
        np.testing.assert_array_equal(y, (x + 1) % len(TOKENS))
        np.testing.assert_array_equal(x, (x[:, :1] + np.arange(x.shape[1])) % len(TOKENS))
        found.append(x[:, 0].tolist())
    return found


def test_documents_are_joined_by_separators() -> None:
    packed = rows.pack([[1, 2], np.array([], np.int32), [3]], separator=9)
    assert packed.tolist() == [9, 1, 2, 9, 9, 3, 9]


def test_rows_meet_and_the_last_are_held_out() -> None:
    training, held_out = rows.split(TOKENS, 5)
    assert held_out is not None
    assert (training.num_rows, held_out.num_rows) == (7, 1)
    assert inputs(rows.in_order(training, 3)) == [[0, 5, 10], [15, 20, 25], [30]]
    assert inputs(rows.in_order(held_out, 3)) == [[35]]
    many, some = rows.split(np.arange(501, dtype=np.int32), 5)
    assert some is not None
    assert (many.num_rows, some.num_rows) == (95, 5)


def test_a_single_row_is_trained_on() -> None:
    training, held_out = rows.split(TOKENS, 41)
    assert held_out is None
    assert [len(batch) for batch in inputs(rows.batches(training, 2, seed=0, num_steps=3))] == [2, 2, 2]


def test_a_text_shorter_than_a_row() -> None:
    with pytest.raises(OptionError, match=r"42 tokens.* a row takes 43\. Give --data_file a longer text"):
        rows.split(TOKENS, 42)


def test_each_pass_goes_through_the_text_by_rows_and_in_an_order_of_its_own() -> None:
    training = rows.Rows(TOKENS, 2)
    assert training.num_rows == 20
    # Batches of 3 do not divide 20 rows: the seventh batch has rows of two passes.
    order = [row for batch in inputs(rows.batches(training, 3, seed=1, num_steps=20)) for row in batch]
    passes = [order[start : start + 20] for start in (0, 20, 40)]
    for each in passes:
        # Rows of 2 divide the circle of 42 tokens into 21; one row is left out, which depends on the offset.
        assert len({row % 2 for row in each}) == 1
        assert len(set(each)) == 20
    assert len({tuple(each) for each in passes}) == 3
    assert len({frozenset(each) for each in passes}) == 3
    other = [row for batch in inputs(rows.batches(training, 3, seed=2, num_steps=20)) for row in batch]
    assert other != order


@pytest.mark.parametrize("first_step", [1, 6, 13])
def test_a_run_starts_at_any_step(first_step: int) -> None:
    training = rows.Rows(TOKENS, 2)
    whole = rows.batches(training, 3, seed=1, num_steps=20)
    assert int(whole.cardinality()) == 20
    rest = rows.batches(training, 3, seed=1, first_step=first_step, num_steps=20 - first_step)
    assert int(rest.cardinality()) == 20 - first_step
    assert inputs(rest) == inputs(whole)[first_step:]
    assert whole.element_spec[0].shape == (3, 2)
