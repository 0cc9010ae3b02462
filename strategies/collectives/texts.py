"""Exchange of texts through a process group."""

from __future__ import annotations

import json

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup


def gather_texts(text: str, group: ProcessGroup) -> list[str]:
    """Returns the texts of all processes, by rank; all processes call it."""
    # A text in JSON has no line break, so that one gather carries texts of any length.
    sent = tf.io.decode_raw(json.dumps(text) + "\n", tf.uint8)
    return [json.loads(line) for line in bytes(group.gather(sent).numpy()).decode().splitlines()]


def broadcast_text(text: str, group: ProcessGroup) -> str:
    """Returns the text of rank 0 on all processes."""
    encoded = text.encode()
    size = int(group.broadcast(tf.constant(len(encoded))))
    sent = encoded if len(encoded) == size else bytes(size)
    if size == 0:
        return ""
    return bytes(group.broadcast(tf.io.decode_raw(sent, tf.uint8)).numpy()).decode()
