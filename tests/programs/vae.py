"""A variational autoencoder: own losses in `train_step`, averaged by hand, a layer that samples, trackers.

Changed for comparison: what the sampling layer draws comes with the pictures, row by row.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model, features

L, ops = keras.layers, keras.ops
LATENT_DIM, NUM_ROWS = 2, 19


class Sampling(keras.layers.Layer):
    """Uses (z_mean, z_log_var) to sample z, the vector encoding a digit."""

    def call(self, inputs: Any) -> Any:
        z_mean, z_log_var, epsilon = inputs
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


def make_encoder() -> Model:
    encoder_inputs, epsilon = keras.Input(shape=(8, 8, 1)), keras.Input(shape=(LATENT_DIM,))
    x = L.Conv2D(4, 3, activation="relu", strides=2, padding="same")(encoder_inputs)
    x = L.Conv2D(6, 3, activation="relu", strides=2, padding="same")(x)
    x = L.Dense(5, activation="relu")(L.Flatten()(x))
    z_mean = L.Dense(LATENT_DIM, name="z_mean")(x)
    z_log_var = L.Dense(LATENT_DIM, name="z_log_var")(x)
    z = Sampling()([z_mean, z_log_var, epsilon])
    return keras.Model([encoder_inputs, epsilon], [z_mean, z_log_var, z], name="encoder")


def make_decoder() -> Model:
    latent_inputs = keras.Input(shape=(LATENT_DIM,))
    x = L.Reshape((2, 2, 6))(L.Dense(2 * 2 * 6, activation="relu")(latent_inputs))
    x = L.Conv2DTranspose(6, 3, activation="relu", strides=2, padding="same")(x)
    x = L.Conv2DTranspose(4, 3, activation="relu", strides=2, padding="same")(x)
    outputs = L.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    return keras.Model(latent_inputs, outputs, name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder: Model, decoder: Model, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.kl_loss_tracker]

    def train_step(self, data: Any) -> Any:
        data, epsilon = data
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder([data, epsilon])
            reconstruction = self.decoder(z)
            reconstruction_loss = ops.mean(ops.sum(keras.losses.binary_crossentropy(data, reconstruction), axis=(1, 2)))
            kl_loss = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
            kl_loss = ops.mean(ops.sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {
            "loss": self.total_loss_tracker.result(),
            "reconstruction_loss": self.reconstruction_loss_tracker.result(),
            "kl_loss": self.kl_loss_tracker.result(),
        }


def make() -> Model:
    vae = VAE(make_encoder(), make_decoder())
    vae.compile(optimizer=keras.optimizers.Adam())
    return vae


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    digits = np.random.default_rng(4).uniform(size=(NUM_ROWS, 8, 8, 1)).astype("float32")
    logs = fit(model, digits, features(NUM_ROWS, LATENT_DIM, seed=5), epochs=2, batch_size=8)
    return logs | {"decoded": model.decoder.predict(np.array([[0.5, -1.0]]), verbose=0)}


CASE = Case("variational autoencoder", make, run)
