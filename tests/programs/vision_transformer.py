"""Image classification with a vision transformer: patches, position embeddings, attention.

Changed for comparison: pictures are not turned or flipped at random and Dropout drops nothing; AdamW has a larger
epsilon, since it divides by the gradients of attention's key biases, which are rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tests.strategies.parity.harness import Case, Model, fit_arrays

NUM_CLASSES, IMAGE_SIZE, PATCH_SIZE, PROJECTION, NUM_HEADS, NUM_LAYERS = 5, 12, 4, 8, 2, 1
NUM_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2
L, ops = keras.layers, keras.ops


def pictures() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (19, 8, 8, 3)).astype("float32"), rng.integers(0, NUM_CLASSES, (19, 1))


@keras.saving.register_keras_serializable("programs")
class Patches(keras.layers.Layer):
    def __init__(self, patch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patch_size = patch_size

    def call(self, images: Any) -> Any:
        batch_size, height, width, channels = ops.shape(images)
        patches = ops.image.extract_patches(images, size=self.patch_size)
        count = (height // self.patch_size) * (width // self.patch_size)
        return ops.reshape(patches, (batch_size, count, self.patch_size * self.patch_size * channels))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"patch_size": self.patch_size}


@keras.saving.register_keras_serializable("programs")
class PatchEncoder(keras.layers.Layer):
    def __init__(self, num_patches: int, projection_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_patches = num_patches
        self.projection_dim = projection_dim
        self.projection = L.Dense(units=projection_dim)
        self.position_embedding = L.Embedding(input_dim=num_patches, output_dim=projection_dim)

    def call(self, patches: Any) -> Any:
        positions = ops.expand_dims(ops.arange(start=0, stop=self.num_patches, step=1), axis=0)
        return self.projection(patches) + self.position_embedding(positions)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_patches": self.num_patches, "projection_dim": self.projection_dim}


def mlp(x: Any, hidden_units: list[int], dropout_rate: float) -> Any:
    for units in hidden_units:
        x = L.Dense(units, activation=keras.activations.gelu)(x)
        x = L.Dropout(dropout_rate)(x)
    return x


def create_vit_classifier() -> Model:
    inputs = keras.Input(shape=(8, 8, 3))
    normalization = L.Normalization()
    normalization.adapt(pictures()[0])
    preprocessed = L.Resizing(IMAGE_SIZE, IMAGE_SIZE)(normalization(inputs))
    encoded_patches = PatchEncoder(NUM_PATCHES, PROJECTION)(Patches(PATCH_SIZE)(preprocessed))
    for _ in range(NUM_LAYERS):
        x1 = L.LayerNormalization(epsilon=1e-6)(encoded_patches)
        attention_output = L.MultiHeadAttention(num_heads=NUM_HEADS, key_dim=PROJECTION, dropout=0.0)(x1, x1)
        x2 = L.Add()([attention_output, encoded_patches])
        x3 = L.LayerNormalization(epsilon=1e-6)(x2)
        x3 = mlp(x3, hidden_units=[PROJECTION * 2, PROJECTION], dropout_rate=0.0)
        encoded_patches = L.Add()([x3, x2])
    representation = L.LayerNormalization(epsilon=1e-6)(encoded_patches)
    representation = L.Dropout(0.0)(L.Flatten()(representation))
    features = mlp(representation, hidden_units=[16], dropout_rate=0.0)
    return keras.Model(inputs=inputs, outputs=L.Dense(NUM_CLASSES)(features))


def make(place: Callable[[Model], Model] = lambda model: model) -> Model:
    model = place(create_vit_classifier())
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate=0.001, weight_decay=0.0001, epsilon=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseTopKCategoricalAccuracy(2, name="top-2-accuracy"),
        ],
    )
    return model


CASE = Case("vision transformer", make, fit_arrays(*pictures(), batch_size=8, validation_split=0.1, predict=False))
