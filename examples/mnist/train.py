"""Trains the digit classifier under a strategy: model, input, training, result."""

from dataclasses import dataclass

import keras
import tensorflow as tf
from common.devices import make_strategy, mesh_of
from common.epochs import digest_of, steps_per_epoch, train_and_save
from common.folders import check_saved_model, run_folder
from common.options import EpochOptions, PlacingOptions
from common.placing import place
from common.training import Outcome, prepare

from mnist import data
from mnist.model import build_model


@dataclass(frozen=True)
class Options(PlacingOptions, EpochOptions):
    """The options of a run; `main.py` has a flag for each, with the same name and default."""

    data_dir: str | None = None
    epochs: int = 15
    batch_size: int = 64
    learning_rate: float = 2e-3
    dropout: float = 0.25


@dataclass(frozen=True)
class Result:
    """The result of a run; `str` is one line of `key=value` for a log parser."""

    outcome: Outcome

    @property
    def is_chief(self) -> bool:
        """True if this process is the one that prints and writes for all."""
        return self.outcome.is_chief

    @property
    def test_accuracy(self) -> float:
        """The accuracy on the test images after the last epoch."""
        return self.outcome.history["val_accuracy"][-1]

    @property
    def test_loss(self) -> float:
        """The loss on the test images after the last epoch."""
        return self.outcome.history["val_loss"][-1]

    def __str__(self) -> str:
        return f"result test_accuracy={self.test_accuracy:.4f} test_loss={self.test_loss:.4f} {self.outcome.summary()}"


def run(options: Options, digits: data.Digits) -> Result:
    """Trains and evaluates as `options` say; call it before anything else has started TensorFlow.

    Raises:
        OptionError: an option that cannot work here, or the folder belongs to another run.
    """
    # Options that cannot work are refused before the training, not after it.
    folder = run_folder("mnist", options)
    if options.save is not None:
        check_saved_model(options.save)
    strategy = make_strategy(options.strategy, options.devices, mesh_of(options.mesh), options.shard)
    prepare(options)
    num_images = len(digits.train.labels)
    num_steps = options.epochs * steps_per_epoch(num_images, options)
    with strategy.scope():
        model = place(lambda: build_model(options.dropout), strategy, options)
        model.compile(
            optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(options.learning_rate, num_steps)),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    outcome = train_and_save(
        model,
        digits.train,
        num_images,
        training_batches=training_batches,
        validation_data=evaluation_batches(digits.test, options.batch_size),
        unit="images",
        folder=folder,
        options=options,
        data_digest=digest_of(part for split in (digits.train, digits.test) for part in (split.images, split.labels)),
    )
    return Result(outcome)


def training_batches(
    split: data.Split, batch_size: int, *, seed: int, first_step: int = 0, num_steps: int
) -> tf.data.Dataset:
    """Returns global batches `first_step` to `first_step + num_steps - 1` of (images, labels), over all epochs.

    Every epoch uses another order, and its last batch has the remaining images. The batches depend only on `seed`: a
    resumed run, on any number of devices, gets the batches of a run that was not interrupted.
    """
    batches = _dataset(split).shuffle(len(split.labels), seed=seed).batch(batch_size)
    return batches.repeat().skip(first_step).take(num_steps).prefetch(2)


def evaluation_batches(split: data.Split, batch_size: int) -> tf.data.Dataset:
    """Returns global batches of (images, labels) in the order of the files; the last one may be smaller."""
    return _dataset(split).batch(batch_size).prefetch(2)


def _dataset(split: data.Split) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((split.images, split.labels))
