"""Text generation with a miniature GPT: lines of text, token and position embeddings, a causal mask.

Changed for comparison: Dropout drops nothing, the callback takes the likeliest word where the original draws one, and
Adam has a larger epsilon, since it divides by the gradients of attention's key biases, which are rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.programs.transformers import TokenAndPositionEmbedding, TransformerBlock
from tests.strategies.parity.harness import Case, Logs, Model

L, ops = keras.layers, keras.ops
VOCAB_SIZE, MAXLEN, EMBED_DIM, NUM_HEADS, FEED_FORWARD_DIM, BATCH_SIZE = 20, 6, 8, 2, 8, 8


def lines() -> list[str]:
    words = ["a", "actor", "bad", "film", "good", "it", "never", "not", "once", "plot", "rather", "the", "very", "was"]
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(words, rng.integers(3, 9))) + "!" for _ in range(21)]


def vectorize_layer() -> Any:
    layer = L.TextVectorization(
        standardize="lower_and_strip_punctuation",
        max_tokens=VOCAB_SIZE - 1,
        output_mode="int",
        output_sequence_length=MAXLEN + 1,
    )
    layer.adapt(lines())
    return layer


def create_model() -> Model:
    inputs = keras.Input(shape=(MAXLEN,), dtype="int32")
    x = TokenAndPositionEmbedding(MAXLEN, VOCAB_SIZE, EMBED_DIM)(inputs)
    x = TransformerBlock(EMBED_DIM, NUM_HEADS, FEED_FORWARD_DIM, causal=True)(x)
    return keras.Model(inputs=inputs, outputs=[L.Dense(VOCAB_SIZE)(x), x])


def make(place: Callable[[Model], Model] = lambda model: model) -> Model:
    model = place(create_model())
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # No loss for the second output, the words' embeddings.
    model.compile(keras.optimizers.Adam(epsilon=1e-3), loss=[loss_fn, None])
    return model


class TextGenerator(keras.callbacks.Callback):
    def __init__(self, max_tokens: int, start_tokens: list[int]) -> None:
        super().__init__()
        self.max_tokens = max_tokens
        self.start_tokens = start_tokens
        self.generated: list[list[int]] = []

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        tokens = list(self.start_tokens)
        while len(tokens) < self.max_tokens:
            x = np.array([(tokens + [0] * MAXLEN)[:MAXLEN]])
            y, _ = self.model.predict(x, verbose=0)
            tokens.append(int(np.argmax(y[0][min(len(tokens), MAXLEN) - 1])))
        self.generated.append(tokens)


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    vectorize = vectorize_layer()

    def prepare_lm_inputs_labels(text: Any) -> Any:
        tokenized_sentences = vectorize(tf.expand_dims(text, -1))
        return tokenized_sentences[:, :-1], tokenized_sentences[:, 1:]

    text_ds = tf.data.Dataset.from_tensor_slices(lines()).shuffle(buffer_size=256, seed=3).batch(BATCH_SIZE)
    text_ds = text_ds.map(prepare_lm_inputs_labels, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    callback = TextGenerator(MAXLEN + 2, [3, 5])
    logs = fit(model, text_ds, epochs=2, callbacks=(callback,))
    return logs | {"generated": callback.generated}


CASE = Case("miniature GPT", make, run)
