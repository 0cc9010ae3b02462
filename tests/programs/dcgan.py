"""A deep convolutional adversarial network: two optimizers, Keras' loss object, each network trained in one step.

Changed for comparison: the noise, in latent vectors and labels, comes with the pictures, row by row; Dropout drops
nothing.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model, features

L, ops = keras.layers, keras.ops
LATENT_DIM, NUM_ROWS, BATCH_SIZE = 5, 19, 8


def make_discriminator() -> Model:
    return keras.Sequential(
        [
            keras.Input(shape=(8, 8, 3)),
            L.Conv2D(4, kernel_size=4, strides=2, padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.Conv2D(6, kernel_size=4, strides=2, padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.Flatten(),
            L.Dropout(0.0),
            L.Dense(1, activation="sigmoid"),
        ],
        name="discriminator",
    )


def make_generator() -> Model:
    return keras.Sequential(
        [
            keras.Input(shape=(LATENT_DIM,)),
            L.Dense(2 * 2 * 6),
            L.Reshape((2, 2, 6)),
            L.Conv2DTranspose(6, kernel_size=4, strides=2, padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.Conv2DTranspose(8, kernel_size=4, strides=2, padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.Conv2D(3, kernel_size=5, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


class GAN(keras.Model):
    def __init__(self, discriminator: Model, generator: Model) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, data: Any) -> Any:
        real_images, first_latent_vectors, second_latent_vectors, label_noise = data
        batch_size = ops.shape(real_images)[0]
        generated_images = self.generator(first_latent_vectors)
        combined_images = ops.concatenate([generated_images, real_images], axis=0)
        labels = ops.concatenate([ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0)
        labels += 0.05 * ops.concatenate([label_noise[:, :1], label_noise[:, 1:]], axis=0)

        with tf.GradientTape() as tape:
            predictions = self.discriminator(combined_images)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights, strict=True))

        misleading_labels = ops.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(second_latent_vectors))
            g_loss = self.loss_fn(misleading_labels, predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def make() -> Model:
    gan = GAN(make_discriminator(), make_generator())
    gan.compile(
        d_optimizer=keras.optimizers.Adam(learning_rate=0.0001),
        g_optimizer=keras.optimizers.Adam(learning_rate=0.0001),
        loss_fn=keras.losses.BinaryCrossentropy(),
    )
    return gan


class GANMonitor(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[np.ndarray] = []

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        generated_images = self.model.generator(features(2, LATENT_DIM, seed=9)) * 255
        self.seen.append(ops.convert_to_numpy(generated_images))


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    faces = np.random.default_rng(6).uniform(size=(NUM_ROWS, 8, 8, 3)).astype("float32")
    noise = np.random.default_rng(7).uniform(size=(NUM_ROWS, 2)).astype("float32")
    latent = features(NUM_ROWS, LATENT_DIM, seed=8), features(NUM_ROWS, LATENT_DIM, seed=9)
    dataset = tf.data.Dataset.from_tensor_slices((faces, *latent, noise)).batch(BATCH_SIZE)
    monitor = GANMonitor()
    return fit(model, dataset, epochs=2, callbacks=(monitor,)) | {"generated": np.stack(monitor.seen)}


CASE = Case("DCGAN", make, run)
