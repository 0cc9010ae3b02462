"""Crops of an image and their resizing to a square of pixels, as pure functions of tensors."""

from __future__ import annotations

import math

import tensorflow as tf

#: The recipe of the Inception paper (Szegedy et al., 2014, section 6): share of the area, and aspect ratios.
MIN_AREA, MAX_AREA = 0.08, 1.0
MIN_ASPECT, MAX_ASPECT = 3 / 4, 4 / 3

#: Attempts to draw a box before the largest centred one is used.
NUM_TRIES = 10

#: Random numbers for a crop and a flip.
NUM_DRAWS = 2 * NUM_TRIES + 3

#: Side of the evaluation crop, as a fraction of the shorter side.
EVALUATION_SHARE = 0.875


def drawn(draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the part of a random box that does not depend on the image's size, for `random_box`.

    Args:
        draws: float32 `[NUM_DRAWS]`, in [0, 1).

    Returns:
        float32 `[NUM_TRIES, 2]`, heights and widths of boxes in an image of area 1, and `[2]`, the relative position.
    """
    area = MIN_AREA + (MAX_AREA - MIN_AREA) * draws[:NUM_TRIES]
    low, high = math.log(MIN_ASPECT), math.log(MAX_ASPECT)
    # Log-uniform: portrait boxes are as frequent as landscape ones.
    aspect = tf.exp(low + (high - low) * draws[NUM_TRIES : 2 * NUM_TRIES])
    return tf.sqrt(tf.stack([area / aspect, area * aspect], 1)), draws[2 * NUM_TRIES : 2 * NUM_TRIES + 2]


def random_box(shape: tf.Tensor, sides: tf.Tensor, fraction: tf.Tensor) -> tf.Tensor:
    """Returns a box of random area, aspect ratio and position inside an image.

    It is the first of `NUM_TRIES` boxes that fits. If none fits, as in a very long image, the first one is cut down
    until it fits and its aspect ratio is allowed.

    The function uses few operations, constants included: its caller prepares each of them again for every image, which
    costs more than a microsecond.

    Args:
        shape: int32, height, width and channels of the image.
        sides: from `drawn`.
        fraction: from `drawn`.

    Returns:
        int32 `[4]`: top, left, height, width.
    """
    height_width = tf.cast(tf.raw_ops.Gather(params=shape, indices=[0, 1]), tf.float32)
    width_height = tf.cast(tf.raw_ops.Gather(params=shape, indices=[1, 0]), tf.float32)
    boxes = tf.round(sides * tf.sqrt(tf.reduce_prod(height_width)))
    fits = tf.reduce_all(boxes <= height_width, 1)
    box = tf.raw_ops.Gather(params=boxes, indices=tf.argmax(tf.cast(fits, tf.int8)))
    # Width to height and height to width have the same bound.
    box = tf.maximum(tf.minimum(box, tf.minimum(height_width, width_height * MAX_ASPECT)), 1.0)
    free = height_width - box
    # `fraction` is below 1, so that each position is equally likely; rounding may step outside, hence the minimum.
    begin = tf.minimum(fraction * (free + 1.0), free)
    return tf.cast(tf.concat([begin, box], 0), tf.int32)


def central_box(shape: tf.Tensor) -> tf.Tensor:
    """Returns the centred square with side `EVALUATION_SHARE` of the shorter side, in the form of `random_box`."""
    size = tf.cast(tf.raw_ops.Gather(params=shape, indices=[0, 1]), tf.float32)
    side = tf.maximum(tf.round(EVALUATION_SHARE * tf.reduce_min(size)), 1.0)
    begin = (size - side + 1.0) * 0.5
    return tf.cast(tf.concat([begin, tf.stack([side, side])], 0), tf.int32)


def resized(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """Resizes a uint8 image `[height, width, 3]` to uint8 `[image_size, image_size, 3]`, bilinear, rounded."""
    # The kernel is a third faster on floats than on bytes, conversion included.
    image = tf.cast(image, tf.float32)[tf.newaxis]
    size = [image_size, image_size]
    image = tf.raw_ops.ResizeBilinear(images=image, size=size, half_pixel_centers=True)[0]
    # No value is negative, so truncation after adding one half is rounding.
    image = tf.cast(image + 0.5, tf.uint8)
    return tf.ensure_shape(image, [image_size, image_size, 3])


def flipped(image: tf.Tensor, flip: tf.Tensor) -> tf.Tensor:
    """Returns the image, mirrored horizontally if `flip` is true."""
    return tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
