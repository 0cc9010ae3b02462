"""The copies that `parallelize` and `PipelineModel` make of a model have everything that it has."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_ext
from tests.keras_ext.cloning.copies import L, each_copy, staged
from tests.releases import is_there

# One layer of each class in keras.layers, by kind of input.
TEXT = np.array([["a b"], ["b c"], ["c q"]])
WORDS = np.array([["a", "b"], ["b", "c"], ["c", "q"]])
IDS = np.array([[1, 2], [2, 3], [3, 1]])
ROWS = np.random.default_rng(0).uniform(0.1, 0.9, (3, 4)).astype("float32")
SERIES = np.random.default_rng(1).uniform(0.1, 0.9, (3, 8, 4)).astype("float32")
IMAGES = np.random.default_rng(2).uniform(0.1, 0.9, (3, 8, 8, 3)).astype("float32")
VOLUMES = np.random.default_rng(3).uniform(0.1, 0.9, (3, 4, 4, 4, 2)).astype("float32")
FILMS = np.random.default_rng(4).uniform(0.1, 0.9, (3, 2, 8, 8, 3)).astype("float32")


def adapted(layer: Any, data: Any) -> Any:
    layer.adapt(data)
    return layer


def set_to(layer: Any, vocabulary: Any) -> Any:
    layer.set_vocabulary(vocabulary)
    return layer


def newer(name: str, *args: Any, **kwargs: Any) -> list[Any]:
    """Returns a list with the layer, empty if the installed Keras does not have it."""
    return [getattr(L, name)(*args, **kwargs)] if is_there(name) else []


LAYERS: Sequence[tuple[Any, Callable[[], Sequence[Any]]]] = (
    (
        ROWS,
        lambda: [
            *(getattr(L, name)() for name in ("ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax", "Identity", "Masking")),
            *(getattr(L, name)() for name in ("BatchNormalization", "LayerNormalization", "RMSNormalization")),
            *(getattr(L, name)(0.5) for name in ("AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise")),
            *(L.UnitNormalization(), L.GroupNormalization(2), L.SpectralNormalization(L.Dense(3))),
            *(L.Activation("tanh"), L.Dense(3), L.EinsumDense("ab,bc->ac", 3), L.Lambda(lambda x: 2 * x)),
            *(L.Flatten(), L.Reshape((2, 2)), L.Permute((1,)), L.RepeatVector(2), L.ActivityRegularization(0.1)),
            *(L.Rescaling(2.0), L.Pipeline([L.Rescaling(2.0), L.Dropout(0.5)])),
            *(L.Discretization([0.3, 0.6]), adapted(L.Discretization(num_bins=3), ROWS)),
            *(L.Normalization(mean=3.0, variance=2.0), adapted(L.Normalization(), 100 * ROWS + 300)),
            # A learnt state that is not at the top level.
            keras.Sequential([keras.Input((4,)), adapted(L.Normalization(), 9 * ROWS), L.Dense(2)]),
        ],
    ),
    (
        SERIES,
        lambda: [
            *(L.Conv1D(3, 2), L.SeparableConv1D(3, 2)),
            *(L.Conv1DTranspose(3, 2), L.DepthwiseConv1D(2), L.SpatialDropout1D(0.5), L.UpSampling1D(), L.Cropping1D()),
            *(L.ZeroPadding1D(), L.AveragePooling1D(2), L.MaxPooling1D(2), L.GlobalMaxPooling1D()),
            *(L.GlobalAveragePooling1D(), *newer("AdaptiveAveragePooling1D", 2), *newer("AdaptiveMaxPooling1D", 2)),
            *(L.LSTM(3, dropout=0.5), L.GRU(3), L.SimpleRNN(3), L.RNN([L.GRUCell(3), L.LSTMCell(2)])),
            *(L.RNN(L.StackedRNNCells([L.SimpleRNNCell(2)])), L.Bidirectional(L.LSTM(3, recurrent_dropout=0.5))),
            *(L.TimeDistributed(L.Dense(3)), L.STFTSpectrogram("magnitude", 4, 2)),
        ],
    ),
    (
        IMAGES,
        lambda: [
            *(L.Conv2D(3, 2), L.SeparableConv2D(3, 2), L.Conv2DTranspose(3, 2), L.DepthwiseConv2D(2)),
            *(L.SpatialDropout2D(0.5), L.UpSampling2D(), L.Cropping2D(), L.ZeroPadding2D(), L.AveragePooling2D(2)),
            *(L.MaxPooling2D(2), L.GlobalMaxPooling2D(), L.GlobalAveragePooling2D(), *newer("AdaptiveMaxPooling2D", 2)),
            *(*newer("AdaptiveAveragePooling2D", 2), L.CenterCrop(4, 4), L.Resizing(4, 4), L.Equalization((0, 1))),
            *(L.AutoContrast(value_range=(0, 1)), L.Solarization(value_range=(0, 1)), L.RandomCrop(4, 4)),
            *newer("ContrastLimitedAdaptiveHistogramEqualization", value_range=(0, 1), tile_grid_size=(2, 2)),
            *(L.RandomBrightness(0.5, (0, 1)), L.RandomColorDegeneration(0.5, (0, 1)), L.RandomContrast(0.5, (0, 1))),
            *(L.RandomColorJitter((0, 1), 0.5), L.RandomElasticTransform(value_range=(0, 1)), L.RandomErasing()),
            *(L.RandomFlip(), L.RandomGaussianBlur(value_range=(0, 1)), L.RandomGrayscale(0.5)),
            *(L.RandomHue(0.5, (0, 1)), L.RandomInvert(0.5, (0, 1)), L.RandomPerspective(), L.RandomRotation(0.5)),
            *(L.RandomPosterization(4, value_range=(0, 1)), L.RandomSaturation(0.5, (0, 1)), L.RandomShear(0.5, 0.5)),
            *(L.RandomSharpness(0.5, (0, 1)), L.RandomTranslation(0.5, 0.5), L.RandomZoom(0.5)),
            *(L.RandAugment((0, 1)), L.AugMix((0, 1))),
        ],
    ),
    (
        VOLUMES,
        lambda: [
            *(L.Conv3D(3, 2), L.Conv3DTranspose(3, 2), L.SpatialDropout3D(0.5), L.UpSampling3D(), L.Cropping3D()),
            *(L.ZeroPadding3D(), L.AveragePooling3D(2), L.MaxPooling3D(2), L.GlobalMaxPooling3D()),
            *(L.GlobalAveragePooling3D(), *newer("AdaptiveAveragePooling3D", 2), *newer("AdaptiveMaxPooling3D", 2)),
            L.ConvLSTM2D(2, 2),
        ],
    ),
    (SERIES[:, None], lambda: [L.ConvLSTM1D(2, 2)]),
    (VOLUMES[:, None], lambda: [L.ConvLSTM3D(2, 2)]),
    (SERIES[:, :, 0], lambda: [L.MelSpectrogram(4, 2, 4, sampling_rate=8)]),
    (
        IDS,
        lambda: [
            *(L.Embedding(5, 3), L.ReversibleEmbedding(5, 3), L.Hashing(3), L.CategoryEncoding(5, "count")),
            *(L.IntegerLookup(vocabulary=[3, 2, 1]), adapted(L.IntegerLookup(), [3, 2])),
            *(set_to(L.IntegerLookup(num_oov_indices=2), [3, 2]), set_to(L.IntegerLookup(vocabulary=[1, 2]), [2, 1])),
        ],
    ),
    (
        WORDS,
        lambda: [
            *(L.Hashing(3, salt=1), L.StringLookup(vocabulary=["a", "b"]), adapted(L.StringLookup(), ["b", "c"])),
            adapted(
                L.StringLookup(output_mode="tf_idf", max_tokens=9, pad_to_max_tokens=True), [["b", "b"], ["c", "b"]]
            ),
            adapted(L.StringLookup(output_mode="multi_hot", mask_token="a"), ["b", "c"]),
            keras.Sequential([keras.Input((2,), dtype="string"), adapted(L.StringLookup(), ["c"]), L.Embedding(5, 2)]),
        ],
    ),
    (
        TEXT,
        lambda: [
            L.TextVectorization(vocabulary=["a", "b"], output_mode="multi_hot"),
            adapted(L.TextVectorization(output_mode="tf_idf", standardize=lambda x: tf.strings.lower(x)), TEXT),
        ],
    ),
)
# Layers that take several inputs.
MERGING = ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract", "Attention")
# Layers of other backends or of TensorFlow's files, base classes, and layers for images with boxes and labels.
LEFT_OUT = {"FlaxLayer", "JaxLayer", "TorchModuleWrapper", "TFSMLayer", "Layer", "Wrapper"}
LEFT_OUT |= {"CutMix", "MixUp", "MaxNumBoundingBoxes", "HashedCrossing"}


def one_of_each(dropout: float) -> tuple[Any, list[Any], set[type]]:
    """Returns a model with a branch per layer, its inputs, and the layers' classes; `dropout` is for attentions."""
    keras.utils.set_random_seed(1)
    inputs, values, outputs, seen = [], [], [], set()
    for value, make in LAYERS:
        inputs.append(keras.Input(value.shape[1:], dtype="string" if value.dtype.kind == "U" else str(value.dtype)))
        values.append(keras.ops.convert_to_tensor(value))
        for layer in make():
            # Keras makes no graph for some layers: they return their symbolic input. Before Keras 3.15, EinsumDense
            # knows its output only when built.
            is_whole = isinstance(layer, L.EinsumDense) or layer.compute_output_spec(inputs[-1]) is not inputs[-1]
            outputs.append((layer if is_whole else L.Pipeline([layer]))(inputs[-1]))
            seen |= {type(inner) for inner in layer._flatten_layers()}
    x = inputs[1]
    merging = [getattr(L, name)() for name in (*MERGING, "AdditiveAttention")]
    outputs += [layer([x, x]) for layer in (*merging, L.Dot(1))]
    attentions = (L.MultiHeadAttention(2, 2, dropout=dropout), L.GroupQueryAttention(2, 2, 1, dropout=dropout))
    outputs += [layer(x, x) for layer in attentions]
    seen |= {type(layer) for layer in merging} | {L.Dot, L.MultiHeadAttention, L.GroupQueryAttention}
    return keras.Model(inputs, outputs), values, seen | {L.InputLayer}


@each_copy
def test_of_each_of_keras_layers_it_has_all(copied: Any) -> None:
    # An attention whose heads may be split draws dropout from new seeds, so it has none here.
    model, values, seen = one_of_each(0.5 if copied is staged else 0.0)
    classes = {each for each in vars(L).values() if isinstance(each, type) and issubclass(each, keras.Layer)}
    assert sorted(each.__name__ for each in classes - seen) == sorted(LEFT_OUT)
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            # Generators have advanced from their initial state.
            generator.next()
    copy = copied(model) if copied is staged else keras_ext.parallelize(model)
    results = []
    for each in (copy, model):
        # AugMix uses Python's random generator.
        random.seed(1)
        results.append(keras.tree.flatten(each(values, training=True)))
    for output, mine, theirs in zip(model.outputs, *results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6, err_msg=str(output._keras_history.operation))
