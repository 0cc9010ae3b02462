"""Sequence to sequence: an LSTM encodes masked words, another decodes from its states; then word by word."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model

L = keras.layers
NUM_ENCODER_TOKENS, NUM_DECODER_TOKENS, LATENT_DIM, LENGTH, NUM_ROWS = 12, 10, 5, 6, 21


def sentences(num_tokens: int, seed: int) -> np.ndarray:
    """Words from 1 on, padded by 0, of shape (21, 6)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, LENGTH + 1, NUM_ROWS)
    return np.where(np.arange(LENGTH) < lengths[:, None], rng.integers(1, num_tokens, (NUM_ROWS, LENGTH)), 0)


def create_model() -> Model:
    encoder_inputs = keras.Input(shape=(None,), dtype="int32", name="encoder_inputs")
    embedded = L.Embedding(NUM_ENCODER_TOKENS, LATENT_DIM, mask_zero=True, name="encoder_words")(encoder_inputs)
    _, state_h, state_c = L.LSTM(LATENT_DIM, return_state=True, name="encoder")(embedded)
    decoder_inputs = keras.Input(shape=(None,), dtype="int32", name="decoder_inputs")
    embedded = L.Embedding(NUM_DECODER_TOKENS, LATENT_DIM, mask_zero=True, name="decoder_words")(decoder_inputs)
    decoder_lstm = L.LSTM(LATENT_DIM, return_sequences=True, return_state=True, name="decoder")
    decoder_outputs, _, _ = decoder_lstm(embedded, initial_state=[state_h, state_c])
    decoder_outputs = L.Dense(NUM_DECODER_TOKENS, activation="softmax", name="words")(decoder_outputs)
    return keras.Model([encoder_inputs, decoder_inputs], decoder_outputs)


def make(place: Callable[[Model], Model] = lambda model: model) -> Model:
    model = place(create_model())
    model.compile(optimizer="rmsprop", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    encoder_input_data = sentences(NUM_ENCODER_TOKENS, 22)
    decoder_input_data = sentences(NUM_DECODER_TOKENS, 23)
    # The word after each word; 0 after the last.
    decoder_target_data = np.pad(decoder_input_data[:, 1:], ((0, 0), (0, 1)))
    data = [encoder_input_data, decoder_input_data]
    logs = fit(model, data, decoder_target_data, batch_size=8, epochs=2, shuffle=True, validation_split=0.2)
    target = np.ones((1, 1), dtype="int32")
    for _ in range(3):
        words = model.predict([encoder_input_data[:1], target], verbose=0)[:, -1]
        target = np.concatenate([target, [[1 + int(np.argmax(words[0, 1:]))]]], axis=1)
    return logs | {"decoded": target, "likelihood": words}


CASE = Case("sequence to sequence", make, run)
