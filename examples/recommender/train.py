"""Trains the recommender under a strategy: model, input, training, result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf
from common.devices import make_strategy, mesh_of
from common.epochs import digest_of, train_and_save
from common.folders import check_saved_model, run_folder
from common.training import Outcome, prepare

from recommender.model import build_model
from recommender.options import LEARNING_RATES, Options
from recommender.ratings import Ratings, split

_SHARDS: dict[str, Literal["optimizer", "weights"] | None] = {
    "none": None,
    "optimizer": "optimizer",
    "weights": "weights",
}


@dataclass(frozen=True)
class Result:
    """The result of a run; `str` is one line of `key=value` for a log parser."""

    outcome: Outcome

    @property
    def is_chief(self) -> bool:
        """True if this process is the one that prints and writes for all."""
        return self.outcome.is_chief

    @property
    def val_auc(self) -> float:
        """The ROC AUC of the held-out clicks, after the last epoch: 0.5 by chance."""
        return self.outcome.history["val_auc"][-1]

    @property
    def val_loss(self) -> float:
        """The loss of the held-out clicks, after the last epoch."""
        return self.outcome.history["val_loss"][-1]

    def __str__(self) -> str:
        return f"result val_auc={self.val_auc:.4f} val_loss={self.val_loss:.4f} {self.outcome.summary()}"


def run(options: Options, ratings: Ratings) -> Result:
    """Trains and evaluates as `options` say; call it before anything else has started TensorFlow.

    Raises:
        OptionError: an option that cannot work here, or the folder belongs to another run.
        DataError: too few ratings to hold some out.
    """
    folder = run_folder("recommender", options)
    if options.save is not None:
        check_saved_model(options.save)
    training, held_out = split(ratings)
    strategy = make_strategy(options.strategy, options.devices, mesh_of(options.mesh), _SHARDS[options.shard])
    prepare(options)
    with strategy.scope():
        towers = build_model(
            ratings.num_users, ratings.num_movies, options.embedding_dim, sharded=options.shard != "none"
        )
        model = compiled(towers, options)
    outcome = train_and_save(
        model,
        training,
        len(training),
        training_batches=training_batches,
        validation_data=evaluation_batches(held_out, options.batch_size),
        unit="ratings",
        folder=folder,
        options=options,
        data_digest=digest_of((ratings.users, ratings.movies, ratings.ratings, ratings.timestamps)),
    )
    return Result(outcome)


def compiled(model: Any, options: Options) -> Any:
    """Compiles the model; call it in the scope of its strategy."""
    rate = LEARNING_RATES[options.optimizer] if options.learning_rate is None else options.learning_rate
    makers = {
        # A row's gradient comes from a few ratings in a mean over a batch: its square is far below Keras' default, 0.1.
        "adagrad": lambda: keras.optimizers.Adagrad(rate, initial_accumulator_value=1e-6),
        "adam": lambda: keras.optimizers.Adam(rate),
    }
    model.compile(
        makers[options.optimizer](),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    )
    return model


def training_batches(
    ratings: Ratings, batch_size: int, *, seed: int, first_step: int = 0, num_steps: int
) -> tf.data.Dataset:
    """Returns batches `first_step` to `first_step + num_steps - 1`, counted over all epochs, as the model takes them.

    Every epoch uses another order, and its last batch has the remaining rows. An order depends only on `seed` and the
    number of the epoch: a run can start at any step with the same batches.
    """
    count = len(ratings)
    steps_per_epoch = math.ceil(count / batch_size)

    def indices(step: tf.Tensor) -> tf.Tensor:
        numbers = tf.stack([tf.constant(seed, tf.int64), step // steps_per_epoch])
        start = step % steps_per_epoch * batch_size
        rows = tf.range(start, tf.minimum(start + batch_size, count))
        return tf.random.experimental.index_shuffle(rows, numbers, tf.constant(count - 1, tf.int64))

    return _batches(ratings, indices, first_step, num_steps)


def evaluation_batches(ratings: Ratings, batch_size: int) -> tf.data.Dataset:
    """Returns batches of all ratings in their order; the last one may be smaller."""
    count = len(ratings)

    def indices(step: tf.Tensor) -> tf.Tensor:
        return tf.range(step * batch_size, tf.minimum((step + 1) * batch_size, count))

    return _batches(ratings, indices, 0, math.ceil(count / batch_size))


def _batches(ratings: Ratings, indices: Any, first_step: int, num_steps: int) -> tf.data.Dataset:
    # On the host. Batches are small compared with the model, so each process can make whole ones: the dataset does not
    # map row by row.
    with tf.device("CPU:0"):
        columns = [tf.constant(column) for column in (ratings.users, ratings.movies, ratings.clicks)]

    def batch(step: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        rows = indices(step)
        users, movies, clicks = (tf.gather(column, rows) for column in columns)
        return {"user": users, "movie": movies}, clicks[:, None]

    steps = tf.data.Dataset.range(first_step, first_step + num_steps)
    return steps.map(batch, num_parallel_calls=2).prefetch(2)
