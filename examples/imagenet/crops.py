"""Crops of an image, and their resizing to a square of pixels; all pure functions of tensors."""

from __future__ import annotations

import math

import tensorflow as tf

#: The recipe of the Inception paper (Szegedy et al., 2014, section 6): share of the area, and aspect ratios.
MIN_AREA, MAX_AREA = 0.08, 1.0
MIN_ASPECT, MAX_ASPECT = 3 / 4, 4 / 3

#: Boxes that are tried before the largest one in the middle is taken.
NUM_TRIES = 10

#: Numbers that a random crop and a flip take.
NUM_DRAWS = 2 * NUM_TRIES + 3

#: Share of the shorter side that the crop for evaluation takes.
EVALUATION_SHARE = 0.875


def drawn(draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the part of a random box that does not depend on the image's size, for `random_box`.

    Args:
        draws: float32 `[NUM_DRAWS]`, from 0 to below 1.

    Returns:
        float32 `[NUM_TRIES, 2]`, heights and widths of boxes in an image of area 1, and `[2]`, the place.
    """
    area = MIN_AREA + (MAX_AREA - MIN_AREA) * draws[:NUM_TRIES]
    low, high = math.log(MIN_ASPECT), math.log(MAX_ASPECT)
    # Evenly between the logarithms: upright boxes are as frequent as lying ones.
    aspect = tf.exp(low + (high - low) * draws[NUM_TRIES : 2 * NUM_TRIES])
    return tf.sqrt(tf.stack([area / aspect, area * aspect], 1)), draws[2 * NUM_TRIES : 2 * NUM_TRIES + 2]


def random_box(shape: tf.Tensor, sides: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    """A box of random area, aspect and place inside an image.

    Of `NUM_TRIES` boxes the first that fits. If none does, as in a very long image, the first one cut down to where it
    fits and its aspect is allowed.

    In few operations, constants included: where this is called, each is prepared anew for every image, and costs more
    than a microsecond.

    Args:
        shape: int32, height, width and channels of the image.
        sides: from `drawn`.
        place: from `drawn`.

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
    # The place is below 1, so that each is equally likely; rounding must not step outside all the same.
    begin = tf.minimum(place * (free + 1.0), free)
    # To whole numbers by cutting off.
    return tf.cast(tf.concat([begin, box], 0), tf.int32)


def central_box(shape: tf.Tensor) -> tf.Tensor:
    """The square in the middle with `EVALUATION_SHARE` of the shorter side, as `random_box`."""
    size = tf.cast(tf.raw_ops.Gather(params=shape, indices=[0, 1]), tf.float32)
    side = tf.maximum(tf.round(EVALUATION_SHARE * tf.reduce_min(size)), 1.0)
    begin = (size - side + 1.0) * 0.5
    return tf.cast(tf.concat([begin, tf.stack([side, side])], 0), tf.int32)


def resized(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """An image of uint8 `[height, width, 3]` as uint8 `[image_size, image_size, 3]`, bilinear, rounded."""
    # The kernel is a third faster on floats than on bytes, conversion included.
    image = tf.cast(image, tf.float32)[tf.newaxis]
    size = [image_size, image_size]
    image = tf.raw_ops.ResizeBilinear(images=image, size=size, half_pixel_centers=True)[0]
    # No value is below 0, so that cutting off after adding a half is rounding.
    image = tf.cast(image + 0.5, tf.uint8)
    return tf.ensure_shape(image, [image_size, image_size, 3])


def flipped(image: tf.Tensor, flip: tf.Tensor) -> tf.Tensor:
    """`image` with left and right exchanged if `flip` is true."""
    return tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
