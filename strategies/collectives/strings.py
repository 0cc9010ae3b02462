"""Exchange of strings between processes, by their lengths and bytes, since collectives carry numbers only."""

from __future__ import annotations

import json
from typing import Protocol

import tensorflow as tf


class _Gathers(Protocol):
    """A process group that gathers."""

    def gather(self, value: tf.Tensor, dim: int = 0) -> tf.Tensor:
        """Returns the processes' values concatenated along `dim`."""


class _Broadcasts(Protocol):
    """A process group that broadcasts."""

    def broadcast(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value of rank 0."""


def gathered_strings(group: _Gathers, value: tf.Tensor, dim: int = 0) -> tf.Tensor:
    """Returns the processes' strings concatenated along the first dimension, by rank; their numbers may differ.

    Args:
        group: the group of the processes, all of which call this function.
        value: ``[n, ...]``; the other dimensions are equal on all.
        dim: 0.

    Raises:
        ValueError: another dimension.
    """
    if dim != 0:
        raise ValueError(f"Strings are gathered along the first dimension, dim=0. Received: dim={dim}.")
    lengths = group.gather(tf.strings.length(value))
    own = tf.io.decode_raw(tf.strings.reduce_join(tf.reshape(value, [-1])), tf.uint8)
    codes = tf.cast(group.gather(own), tf.int32)
    flat = tf.reshape(lengths, [-1])
    string_of_byte = tf.repeat(tf.range(tf.size(flat)), flat)
    characters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), codes)
    strings = tf.strings.unsorted_segment_join(characters, string_of_byte, tf.size(flat))
    return tf.ensure_shape(tf.reshape(strings, tf.shape(lengths)), lengths.shape)


def gather_texts(text: str, group: _Gathers) -> list[str]:
    """Returns the texts of all processes, by rank. All processes call it, eagerly."""
    # A text in JSON has no line break, so that one gather carries texts of any length.
    sent = tf.io.decode_raw(json.dumps(text) + "\n", tf.uint8)
    return [json.loads(line) for line in bytes(group.gather(sent).numpy()).decode().splitlines()]


def broadcast_text(text: str, group: _Broadcasts) -> str:
    """Returns the text of rank 0 on all processes. All processes call it, eagerly."""
    encoded = text.encode()
    size = int(group.broadcast(tf.constant(len(encoded))))
    sent = encoded if len(encoded) == size else bytes(size)
    if size == 0:
        return ""
    return bytes(group.broadcast(tf.io.decode_raw(sent, tf.uint8)).numpy()).decode()
