"""Exchange of texts between two processes, one of which is real."""

from typing import Any

import tensorflow as tf

from strategies.collectives.texts import broadcast_text, gather_texts

OTHERS = 'a second\nline, "quoted", ü'


class Group:
    """Two processes; the second sends the same text as this one."""

    def gather(self, value: tf.Tensor) -> tf.Tensor:
        return tf.concat([value, value], 0)

    def broadcast(self, value: tf.Tensor) -> tf.Tensor:
        return value


def test_texts_of_any_letters() -> None:
    group: Any = Group()
    assert gather_texts(OTHERS, group) == [OTHERS, OTHERS]
    assert gather_texts("", group) == ["", ""]
    assert broadcast_text(OTHERS, group) == OTHERS
    assert broadcast_text("", group) == ""
