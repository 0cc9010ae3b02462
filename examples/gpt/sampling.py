"""Sampling from a model, token by token."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf


def sample(
    model: keras.Model,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    choices: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[int]:
    """Samples the tokens after the prompt, with a plain model, on its device.

    Each token takes one pass through the model. The model's context is a window over the preceding tokens, which slides
    once it is full. All passes are one TensorFlow function.

    Args:
        model: a model from tokens (batch, length) to logits (batch, length, vocabulary).
        prompt: at least one token.
        num_tokens: number of tokens to draw.
        choices: tokens are less than this; the remaining logits are padding.
        temperature: divides the logits; 0 always takes the most likely token.
        seed: the same model, prompt, temperature and seed give the same tokens.
    """
    length = int(model.input_shape[1])
    start = list(prompt)[-length:]
    window = np.zeros((1, length), np.int32)
    window[0, : len(start)] = start
    draw = _drawing(model, length, num_tokens, choices, temperature)
    drawn: list[int] = draw(tf.constant(window), tf.constant(len(start)), tf.constant(seed)).numpy().tolist()
    return drawn


def _drawing(
    model: keras.Model, length: int, num_tokens: int, choices: int, temperature: float
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    @tf.function(autograph=False)
    def draw(window: tf.Tensor, filled: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        def step(
            index: tf.Tensor, window: tf.Tensor, filled: tf.Tensor, drawn: tf.TensorArray
        ) -> tuple[tf.Tensor, ...]:
            # Tokens after the last one have no influence: attention is causal.
            logits = tf.cast(model(window, training=False)[:, filled - 1, :choices], tf.float32)
            if temperature > 0:
                token = tf.random.stateless_categorical(
                    logits / temperature, 1, seed=tf.stack([seed, index]), dtype=tf.int32
                )[0, 0]
            else:
                token = tf.argmax(logits[0], output_type=tf.int32)
            slid = tf.where(filled < length, window, tf.roll(window, -1, axis=1))
            position = tf.minimum(filled, length - 1)
            window = tf.where(tf.range(length) == position, token, slid)
            return index + 1, window, tf.minimum(filled + 1, length), drawn.write(index, token)

        drawn = tf.TensorArray(tf.int32, num_tokens)
        state = (tf.constant(0), window, filled, drawn)
        return tf.while_loop(lambda index, *_: index < num_tokens, step, state)[-1].stack()

    return draw
