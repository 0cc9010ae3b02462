"""Image classifiers by name: ResNet50 and AlexNet are built here, all others are those of keras.applications."""

from __future__ import annotations

import inspect
from typing import Any

import keras
from common.options import OptionError

layers = keras.layers

#: Mean and standard deviation of ImageNet's pixels: red, green and blue.
_MEAN = (123.675, 116.28, 103.53)
_STANDARD_DEVIATION = (58.395, 57.12, 57.375)


def build_model(
    name: str,
    image_size: int,
    num_classes: int,
    *,
    width: float = 1.0,
    dropout: float = 0.5,
    synchronized: bool = True,
) -> keras.Model:
    """Returns a model from raw pixels (rows, image_size, image_size, 3), 0 to 255, to logits (rows, num_classes).

    Args:
        name: "ResNet50", "AlexNet", or the name of a function of keras.applications.
        image_size: pixels on each side.
        num_classes: number of classes.
        width: multiplies the filters and units of ResNet50 and AlexNet.
        dropout: dropout rate of AlexNet's dense layers.
        synchronized: whether ResNet50's batch normalisation uses the rows of all replicas, which gives the numbers of
            one device and costs an all-reduce per layer.

    Raises:
        OptionError: no such model, or it does not support this size.
    """
    if width <= 0:
        raise OptionError(f"--width must be above 0. Received: --width={width}.")
    pixels = keras.Input((image_size, image_size, 3), dtype="uint8", name="pixels")
    variance = [deviation**2 for deviation in _STANDARD_DEVIATION]
    x = layers.Normalization(mean=_MEAN, variance=variance, name="normalized")(pixels)
    if name == "ResNet50":
        logits = _resnet50(x, num_classes, width, synchronized)
    elif name == "AlexNet":
        logits = _alexnet(x, num_classes, width, dropout)
    else:
        if width != 1.0:
            raise OptionError(
                f"--width is supported by ResNet50 and AlexNet only. Received: --model={name}, --width={width}."
            )
        logits = _application(name, image_size, num_classes)(x)
    return keras.Model(pixels, layers.Activation("linear", dtype="float32", name="logits")(logits), name=name.lower())


def _resnet50(x: Any, num_classes: int, width: float, synchronized: bool) -> Any:
    """Returns the logits of He et al., arXiv:1512.03385; a block's stride is in its 3x3 convolution, as usual since.

    The last normalisation of each block starts at 0 (Goyal et al., arXiv:1706.02677, section 5.1).
    """

    def normalized(x: Any, name: str, gamma: str = "ones") -> Any:
        return layers.BatchNormalization(
            momentum=0.9, epsilon=1e-5, gamma_initializer=gamma, synchronized=synchronized, name=f"{name}_norm"
        )(x)

    def convolved(x: Any, filters: int, size: int, strides: int, name: str, gamma: str = "ones") -> Any:
        x = layers.Conv2D(
            filters, size, strides, "same", use_bias=False, kernel_initializer="he_normal", name=f"{name}_conv"
        )(x)
        return normalized(x, name, gamma)

    x = layers.Activation("relu", name="stem_relu")(convolved(x, _wide(64, width), 7, 2, "stem"))
    x = layers.MaxPooling2D(3, 2, "same", name="stem_pool")(x)
    for stage, (usual, num_blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        filters = _wide(usual, width)
        for block in range(num_blocks):
            strides = 2 if block == 0 and stage > 1 else 1
            name = f"stage{stage}_block{block}"
            shortcut = convolved(x, 4 * filters, 1, strides, f"{name}_shortcut") if block == 0 else x
            y = layers.Activation("relu", name=f"{name}_a_relu")(convolved(x, filters, 1, 1, f"{name}_a"))
            y = layers.Activation("relu", name=f"{name}_b_relu")(convolved(y, filters, 3, strides, f"{name}_b"))
            y = convolved(y, 4 * filters, 1, 1, f"{name}_c", gamma="zeros")
            x = layers.Activation("relu", name=f"{name}_relu")(layers.Add(name=f"{name}_add")([shortcut, y]))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return layers.Dense(num_classes, kernel_initializer=keras.initializers.RandomNormal(stddev=0.01), name="head")(x)


def _alexnet(x: Any, num_classes: int, width: float, dropout: float) -> Any:
    """Returns the logits of Krizhevsky, arXiv:1404.5997: one tower, without local response normalisation."""
    for number, (filters, size, strides, pooled) in enumerate(
        ((64, 11, 4, True), (192, 5, 1, True), (384, 3, 1, False), (256, 3, 1, False), (256, 3, 1, True)), start=1
    ):
        x = layers.Conv2D(
            _wide(filters, width),
            size,
            strides,
            "same",
            activation="relu",
            kernel_initializer="he_normal",
            name=f"conv{number}",
        )(x)
        if pooled:
            # "same" also allows small images.
            x = layers.MaxPooling2D(3, 2, "same", name=f"pool{number}")(x)
    x = layers.Flatten(name="flat")(x)
    for number in (6, 7):
        x = layers.Dropout(dropout, name=f"drop{number}")(x)
        x = layers.Dense(_wide(4096, width), "relu", kernel_initializer="he_normal", name=f"dense{number}")(x)
    return layers.Dense(num_classes, name="head")(x)


def _wide(usual: int, width: float) -> int:
    return max(1, round(usual * width))


def _application(name: str, image_size: int, num_classes: int) -> keras.Model:
    make = getattr(keras.applications, name, None)
    if not inspect.isfunction(make):
        names = sorted(each for each, value in vars(keras.applications).items() if inspect.isfunction(value))
        raise OptionError(f"--model: expected ResNet50, AlexNet or one of {names}, received {name!r}.")
    arguments: dict[str, Any] = {
        "weights": None,
        "classes": num_classes,
        "classifier_activation": None,
        "input_shape": (image_size, image_size, 3),
    }
    if "include_preprocessing" in inspect.signature(make).parameters:
        # Pixels are already normalised.
        arguments["include_preprocessing"] = False
    try:
        return make(**arguments)
    except ValueError as error:
        raise OptionError(f"--model={name} does not support --image_size={image_size}: {error}") from error
