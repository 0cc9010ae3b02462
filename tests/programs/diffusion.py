"""A denoising diffusion model: a residual network, a loss per pixel, an averaged copy of the network, an own test step.

Changed for comparison: noises and diffusion times come with the pictures, row by row; BatchNormalization is
synchronized and SGD trains, as AdamW would divide by the gradients of biases before it, which are rounding; embeddings
of times have frequencies up to 20 where the original's, up to 1000, multiply the rounding of times.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model, features

L, ops = keras.layers, keras.ops
IMAGE_SIZE, EMBEDDING_DIMS, NUM_ROWS = 8, 4, 19
MIN_SIGNAL_RATE, MAX_SIGNAL_RATE, EMA = 0.02, 0.95, 0.9


@keras.saving.register_keras_serializable("programs")
def sinusoidal_embedding(x: Any) -> Any:
    frequencies = ops.exp(ops.linspace(ops.log(1.0), ops.log(20.0), EMBEDDING_DIMS // 2))
    angular_speeds = ops.cast(2.0 * math.pi * frequencies, "float32")
    return ops.concatenate([ops.sin(angular_speeds * x), ops.cos(angular_speeds * x)], axis=3)


def residual_block(x: Any, width: int) -> Any:
    residual = x if x.shape[3] == width else L.Conv2D(width, kernel_size=1)(x)
    x = L.BatchNormalization(center=False, scale=False, synchronized=True)(x)
    x = L.Conv2D(width, kernel_size=3, padding="same", activation="swish")(x)
    x = L.Conv2D(width, kernel_size=3, padding="same")(x)
    return L.Add()([x, residual])


def get_network() -> Model:
    noisy_images, noise_variances = keras.Input(shape=(IMAGE_SIZE, IMAGE_SIZE, 3)), keras.Input(shape=(1, 1, 1))
    e = L.Lambda(sinusoidal_embedding, output_shape=(1, 1, EMBEDDING_DIMS))(noise_variances)
    e = L.UpSampling2D(size=IMAGE_SIZE, interpolation="nearest")(e)
    x = L.Concatenate()([L.Conv2D(4, kernel_size=1)(noisy_images), e])
    skip = residual_block(x, 4)
    x = residual_block(L.AveragePooling2D(pool_size=2)(skip), 5)
    x = L.Concatenate()([L.UpSampling2D(size=2, interpolation="bilinear")(x), skip])
    x = L.Conv2D(3, kernel_size=1, kernel_initializer="zeros")(residual_block(x, 4))
    return keras.Model([noisy_images, noise_variances], x, name="residual_unet")


class DiffusionModel(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.normalizer = L.Normalization()
        self.network = get_network()
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs: Any) -> None:
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def diffusion_schedule(self, diffusion_times: Any) -> Any:
        start_angle, end_angle = math.acos(MAX_SIGNAL_RATE), math.acos(MIN_SIGNAL_RATE)
        diffusion_angles = start_angle + diffusion_times * (end_angle - start_angle)
        return ops.sin(diffusion_angles), ops.cos(diffusion_angles)

    def denoise(self, noisy_images: Any, noise_rates: Any, signal_rates: Any, training: bool) -> Any:
        network = self.network if training else self.ema_network
        pred_noises = network([noisy_images, noise_rates**2], training=training)
        return pred_noises, (noisy_images - noise_rates * pred_noises) / signal_rates

    def train_step(self, data: Any) -> Any:
        images, noises, diffusion_times = data
        images = self.normalizer(images, training=True)
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        noisy_images = signal_rates * images + noise_rates * noises
        with tf.GradientTape() as tape:
            pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=True)
            noise_loss = self.loss(noises, pred_noises)
            image_loss = self.loss(images, pred_images)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(EMA * ema_weight + (1 - EMA) * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data: Any) -> Any:
        images, noises, diffusion_times = data
        images = self.normalizer(images, training=False)
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        noisy_images = signal_rates * images + noise_rates * noises
        pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=False)
        self.noise_loss_tracker.update_state(self.loss(noises, pred_noises))
        self.image_loss_tracker.update_state(self.loss(images, pred_images))
        return {m.name: m.result() for m in self.metrics}


def make() -> Model:
    model = DiffusionModel()
    model.compile(optimizer=keras.optimizers.SGD(1e-4, momentum=0.5), loss=keras.losses.mean_absolute_error)
    model.normalizer.adapt(flowers(NUM_ROWS, 13).map(lambda images, noises, times: images))
    return model


def flowers(count: int, seed: int) -> tf.data.Dataset:
    rng = np.random.default_rng(seed)
    images = rng.uniform(size=(count, IMAGE_SIZE, IMAGE_SIZE, 3)).astype("float32")
    times = rng.uniform(size=(count, 1, 1, 1)).astype("float32")
    noises = features(count, IMAGE_SIZE, IMAGE_SIZE, 3, seed=seed + 1)
    return tf.data.Dataset.from_tensor_slices((images, noises, times)).batch(8)


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    return fit(model, flowers(NUM_ROWS, 13), epochs=2, validation_data=flowers(5, 15))


CASE = Case("diffusion", make, run)
