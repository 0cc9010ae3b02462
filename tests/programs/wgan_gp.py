"""A Wasserstein adversarial network with gradient penalty: own losses, a tape within the tape, several critic steps.

Changed for comparison: the noise, in latent vectors and mixtures, comes with the pictures, row by row;
BatchNormalization is synchronized, SGD trains where Adam would divide by the gradients of biases before it, which are
rounding; Dropout drops nothing.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model, features

L = keras.layers
NOISE_DIM, NUM_ROWS, D_STEPS = 4, 19, 2


def conv_block(x: Any, filters: int) -> Any:
    x = L.Conv2D(filters, (5, 5), strides=(2, 2), padding="same")(x)
    return L.Dropout(0.0)(L.LeakyReLU(0.2)(x))


def get_discriminator_model() -> Model:
    img_input = keras.Input(shape=(3, 3, 1))
    x = conv_block(L.ZeroPadding2D(((0, 1), (0, 1)))(img_input), 4)
    return keras.Model(img_input, L.Dense(1)(L.Flatten()(x)), name="discriminator")


def upsample_block(x: Any, filters: int, activation: Any) -> Any:
    x = L.Conv2D(filters, (3, 3), padding="same", use_bias=False)(L.UpSampling2D((2, 2))(x))
    return activation(L.BatchNormalization(synchronized=True)(x))


def get_generator_model() -> Model:
    noise = keras.Input(shape=(NOISE_DIM,))
    x = L.BatchNormalization(synchronized=True)(L.Dense(2 * 2 * 4, use_bias=False)(noise))
    x = L.Reshape((2, 2, 4))(L.LeakyReLU(0.2)(x))
    x = upsample_block(x, 1, L.Activation("tanh"))
    return keras.Model(noise, L.Cropping2D(((0, 1), (0, 1)))(x), name="generator")


def discriminator_loss(real_img: Any, fake_img: Any) -> Any:
    return tf.reduce_mean(fake_img) - tf.reduce_mean(real_img)


def generator_loss(fake_img: Any) -> Any:
    return -tf.reduce_mean(fake_img)


class WGAN(keras.Model):
    def __init__(self, discriminator: Model, generator: Model, gp_weight: float = 10.0) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_steps = D_STEPS
        self.gp_weight = gp_weight

    def compile(self, d_optimizer: Any, g_optimizer: Any, d_loss_fn: Any, g_loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, alpha: Any, real_images: Any, fake_images: Any) -> Any:
        diff = fake_images - real_images
        interpolated = real_images + alpha * diff
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, data: Any) -> Any:
        real_images, latent_vectors, alphas = data
        for i in range(self.d_steps):
            with tf.GradientTape() as tape:
                fake_images = self.generator(latent_vectors[:, i], training=True)
                fake_logits = self.discriminator(fake_images, training=True)
                real_logits = self.discriminator(real_images, training=True)
                d_cost = self.d_loss_fn(real_img=real_logits, fake_img=fake_logits)
                gp = self.gradient_penalty(alphas[:, i], real_images, fake_images)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(zip(d_gradient, self.discriminator.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            generated_images = self.generator(latent_vectors[:, self.d_steps], training=True)
            gen_img_logits = self.discriminator(generated_images, training=True)
            g_loss = self.g_loss_fn(gen_img_logits)
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gen_gradient, self.generator.trainable_variables, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def make() -> Model:
    wgan = WGAN(get_discriminator_model(), get_generator_model())
    wgan.compile(
        d_optimizer=keras.optimizers.SGD(0.01, momentum=0.5),
        g_optimizer=keras.optimizers.SGD(0.01, momentum=0.5),
        g_loss_fn=generator_loss,
        d_loss_fn=discriminator_loss,
    )
    return wgan


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    images = features(NUM_ROWS, 3, 3, 1, seed=10)
    noise = features(NUM_ROWS, D_STEPS + 1, NOISE_DIM, seed=11), features(NUM_ROWS, D_STEPS, 1, 1, 1, seed=12)
    dataset = tf.data.Dataset.from_tensor_slices((images, *noise)).batch(8)
    return fit(model, dataset, epochs=2)


CASE = Case("WGAN with gradient penalty", make, run)
