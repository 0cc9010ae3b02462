"""Perplexity as a Keras metric."""

from typing import Any

import keras
from keras import ops


class Perplexity(keras.metrics.Mean):
    """The exponential of the mean cross-entropy of all tokens so far, without the loss' penalties.

    It sums cross-entropies, not perplexities, so that it is the same for every batch size and on every mesh.
    """

    def __init__(self, name: str = "perplexity", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the tokens of a batch.

        Args:
            y_true: tokens, of shape (batch, length).
            y_pred: logits, of shape (batch, length, vocabulary).
            sample_weight: weights of the rows or of the tokens.
        """
        logits = ops.cast(y_pred, self.dtype)
        losses = ops.sparse_categorical_crossentropy(y_true, logits, from_logits=True)
        super().update_state(losses, sample_weight)

    def result(self) -> Any:
        """Returns the perplexity."""
        return ops.exp(super().result())
