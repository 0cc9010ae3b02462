"""A plain model whose micro-batches are computed one after the other, unrolled in one graph."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class Unrolled(keras.Model):
    """A Functional model that accumulates the gradients of micro-batches, as one would write it by hand.

    Args:
        model: its layers are trained.
        num_microbatches: number of micro-batches, all of the same number of rows; it divides the batch size.
    """

    def __init__(self, model: Any, num_microbatches: int) -> None:
        super().__init__(inputs=model.inputs, outputs=model.outputs)
        self.num_microbatches = num_microbatches

    def train_step(self, data: Any) -> dict[str, Any]:
        """Runs forward and backward pass of each micro-batch, then one update."""
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        weights = [variable.value for variable in self.trainable_variables]
        total: list[Any] = []
        losses = []
        pieces = zip(*(tf.split(value, self.num_microbatches) for value in (x, y)), strict=True)
        for own_x, own_y in pieces:
            with tf.GradientTape() as tape:
                predicted = self(own_x, training=True)
                part = self.compute_loss(x=own_x, y=own_y, y_pred=predicted) / self.num_microbatches
            gradients = tape.gradient(part, weights)
            total = [tf.add(one, other) for one, other in zip(total, gradients, strict=True)] if total else gradients
            losses.append(part)
        self.optimizer.apply_gradients(zip(total, self.trainable_variables, strict=True))
        return {"loss": tf.add_n(losses)}
