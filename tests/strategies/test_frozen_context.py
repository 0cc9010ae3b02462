"""A frozen context has changed fields inside of blocks, and in the thread that runs them only."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import pytest

from strategies.frozen_context import FrozenContext


@dataclasses.dataclass(frozen=True)
class Value:
    one: int = 1
    two: int = 2


def test_fields_are_changed_inside_of_blocks() -> None:
    context = FrozenContext("test", Value())
    with context.changing(one=3):
        with context.changing(two=4):
            assert context.get() == Value(3, 4)
        assert context.get() == Value(3, 2)
    assert context.get() == Value()


def test_other_threads_have_the_outermost_value() -> None:
    context, seen = FrozenContext("test", Value()), []
    with context.changing(one=3):
        thread = threading.Thread(target=lambda: seen.append(context.get()))
        thread.start()
        thread.join()
    assert seen == [Value()]


def test_a_block_that_fails_changes_nothing_after_it() -> None:
    context = FrozenContext("test", Value())
    with contextlib.suppress(KeyError), context.changing(one=3):
        raise KeyError
    assert context.get() == Value()


def test_unknown_fields_are_refused() -> None:
    context = FrozenContext("test", Value())
    with pytest.raises(TypeError, match="three"), context.changing(three=3):
        pass
