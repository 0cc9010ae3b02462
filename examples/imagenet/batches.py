"""Batches of images for training and evaluation, as `tf.data` pipelines that can start at any step.

Each pipeline is `range(...).map(row).batch(...).prefetch(...)`, of known length, and a row depends only on its number
and the seed. So each process can decode only its own rows of the batches, a run can start at any step, and the batches
are the same for any number of processes.
"""

from __future__ import annotations

import tensorflow as tf

from imagenet import crops
from imagenet.decoding import Decoder
from imagenet.index import Split
from imagenet.skipped import Skipped

__all__ = ["Skipped", "evaluation_batches", "steps_per_epoch", "training_batches"]

PREFETCH_BATCHES = 2


def steps_per_epoch(split: Split, batch_size: int) -> int:
    """Returns the training steps of an epoch: full batches only, or one step of all rows if these are fewer."""
    return max(1, split.num_rows // batch_size)


def training_batches(
    split: Split,
    *,
    image_size: int,
    batch_size: int,
    seed: int,
    first_step: int,
    num_steps: int,
) -> tf.data.Dataset:
    """Returns the batches of `num_steps` training steps from `first_step` on, counted from 0 over all epochs.

    Every epoch uses another order of all rows; the rows left over at its end are not used. Images are cropped at random
    (8 to 100 % of the area, aspect 3/4 to 4/3) and flipped with probability 1/2.

    Args:
        split: the images.
        image_size: height and width of the images, pixels.
        batch_size: rows in a global batch.
        seed: determines order, crops and flips, together with the epoch and the position in it.
        first_step: the first step.
        num_steps: the number of steps.

    Returns:
        A dataset of (images uint8 `[rows, image_size, image_size, 3]`, labels int32 `[rows]`, weights float32
        `[rows]`); a skipped image is blank and has weight 0.
    """
    num_rows = split.num_rows
    batch_size = min(batch_size, num_rows)
    per_epoch = steps_per_epoch(split, batch_size) * batch_size

    def choose(number: tf.Tensor) -> list[tf.Tensor]:
        epoch, position = number // per_epoch, number % per_epoch
        order = tf.stack([tf.constant(seed, tf.int64), epoch])
        row = tf.random.experimental.index_shuffle(position, order, num_rows - 1)
        # A key for each position of each epoch, independent of the batch size.
        key = tf.stack([tf.constant(seed, tf.int64), epoch * num_rows + position])
        draws = tf.random.stateless_uniform([crops.NUM_DRAWS], key, alg="philox")
        return [row, draws[-1] < 0.5, *crops.drawn(draws)]

    decode = Decoder(split, image_size, choose, crops.random_box, Skipped())
    numbers = tf.data.Dataset.range(first_step * batch_size, (first_step + num_steps) * batch_size)
    examples = numbers.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return examples.batch(batch_size, drop_remainder=True).prefetch(PREFETCH_BATCHES)


def evaluation_batches(
    split: Split, *, image_size: int, batch_size: int, skipped: Skipped | None = None
) -> tf.data.Dataset:
    """Returns all rows once, in order, as centre crops; the last batch may be smaller.

    Args:
        split: the images.
        image_size: height and width of the images, pixels.
        batch_size: rows in a global batch.
        skipped: records the images that cannot be used.

    Returns:
        A dataset like that of `training_batches`.
    """

    def choose(number: tf.Tensor) -> list[tf.Tensor]:
        return [number, tf.constant(False)]

    decode = Decoder(split, image_size, choose, crops.central_box, skipped or Skipped())
    numbers = tf.data.Dataset.range(split.num_rows)
    examples = numbers.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return examples.batch(batch_size).prefetch(PREFETCH_BATCHES)
