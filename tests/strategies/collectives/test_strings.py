"""Exchange of strings and texts; real processes are in `tests/strategies/processes/suite_programs.py`."""

from __future__ import annotations

import pytest
import tensorflow as tf

from strategies.collectives.strings import broadcast_text, gather_texts, gathered_strings

OTHERS = 'a second\nline, "quoted", ü'


class Twice:
    """A group of two processes with equal values."""

    def gather(self, value: tf.Tensor, dim: int = 0) -> tf.Tensor:
        return tf.concat([value, value], dim)

    def broadcast(self, value: tf.Tensor) -> tf.Tensor:
        return value


@pytest.mark.parametrize("in_graph", [False, True])
def test_any_bytes_and_none(in_graph: bool) -> None:
    for own in ([b"", b"a\x00\xff", "\u00e9".encode()], [[b"x", b""], [b"", b"yz"]], [b""]):
        value = tf.constant(own)
        function = (lambda v: gathered_strings(Twice(), v)) if not in_graph else None
        found = (function or tf.function(lambda v: gathered_strings(Twice(), v)))(value)
        assert found.numpy().tolist() == [*own, *own]
        assert found.shape == (2 * len(own), *value.shape[1:])
    with pytest.raises(ValueError, match=r"first dimension, dim=0. Received: dim=1"):
        gathered_strings(Twice(), tf.constant([["a"]]), 1)


def test_texts_of_any_letters() -> None:
    group = Twice()
    assert gather_texts(OTHERS, group) == [OTHERS, OTHERS]
    assert gather_texts("", group) == ["", ""]
    assert broadcast_text(OTHERS, group) == OTHERS
    assert broadcast_text("", group) == ""
