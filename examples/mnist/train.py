"""Trains the digit classifier under a strategy: devices, input, fit, result."""

import importlib.util
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf
from common.devices import make_strategy
from common.folders import check_saved_model, make_folder
from common.options import OptionError

import keras_ext
from mnist import data
from mnist.model import build_model

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """The options of a run; `main.py` has a flag for each, with the same name and default."""

    strategy: str = "mirrored"
    devices: int | None = None
    epochs: int = 15
    batch_size: int = 64
    learning_rate: float = 2e-3
    dropout: float = 0.25
    seed: int = 0
    tensorboard_dir: str | None = None
    save: str | None = None
    verbose: int = 1


@dataclass(frozen=True)
class Result:
    """The result of a run; `str` is one line of `key=value` for a log parser."""

    test_accuracy: float
    test_loss: float
    images_per_second: float
    epochs: int
    devices: int
    # True if this process is the one that prints and writes for all.
    is_chief: bool
    seconds: float
    # Keras' logs by name, one value per epoch.
    history: dict[str, list[float]]

    def __str__(self) -> str:
        return (
            f"result test_accuracy={self.test_accuracy:.4f} test_loss={self.test_loss:.4f} "
            f"images_per_second={self.images_per_second:.0f} epochs={self.epochs} devices={self.devices} "
            f"seconds={self.seconds:.1f}"
        )


def run(options: Options, digits: data.Digits) -> Result:
    """Trains and evaluates as `options` say; call it before anything else has started TensorFlow.

    Raises:
        OptionError: More GPUs asked for than there are, a path that cannot be written, TensorBoard missing.
    """
    start = time.perf_counter()
    # Options that cannot work are refused before the training, not after it.
    _check_outputs(options)
    keras.utils.set_random_seed(options.seed)
    strategy = make_strategy(options.strategy, options.devices)
    num_images = len(digits.train.labels)
    steps_per_epoch = math.ceil(num_images / options.batch_size)
    with strategy.scope():
        model = build_model(options.dropout)
        model.compile(
            optimizer=keras.optimizers.Adam(
                keras.optimizers.schedules.CosineDecay(options.learning_rate, options.epochs * steps_per_epoch)
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    # The last batch of an epoch may be smaller.
    throughput = keras_ext.Throughput(num_images / steps_per_epoch, unit="images")
    callbacks: list[keras.callbacks.Callback] = [throughput]
    if options.tensorboard_dir is not None:
        callbacks.append(keras.callbacks.TensorBoard(options.tensorboard_dir))
    test_set = make_dataset(digits.test, options.batch_size)
    history = model.fit(
        make_dataset(digits.train, options.batch_size, shuffle_seed=options.seed),
        validation_data=test_set,
        epochs=options.epochs,
        callbacks=callbacks,
        shuffle=False,  # The dataset shuffles itself.
        verbose=options.verbose,
    )
    logs: dict[str, float] = model.evaluate(test_set, return_dict=True, verbose=0)
    if options.save is not None:
        model.save(options.save)  # All processes call it, one writes.
        _log.info("saved: %s", options.save)
    return Result(
        test_accuracy=logs["accuracy"],
        test_loss=logs["loss"],
        images_per_second=throughput.units_per_second,
        epochs=options.epochs,
        devices=strategy.num_replicas_in_sync,
        is_chief=strategy.is_chief,
        seconds=time.perf_counter() - start,
        history=history.history,
    )


def make_dataset(split: data.Split, batch_size: int, shuffle_seed: int | None = None) -> tf.data.Dataset:
    """Global batches of (images, labels), the last one as large as what is left.

    With `shuffle_seed` every epoch has another order, and every run the same orders on any number of devices.
    """
    dataset = tf.data.Dataset.from_tensor_slices((split.images, split.labels))
    if shuffle_seed is not None:
        dataset = dataset.shuffle(len(split.labels), seed=shuffle_seed)
    return dataset.batch(batch_size).prefetch(2)


def _check_outputs(options: Options) -> None:
    if options.tensorboard_dir is not None and importlib.util.find_spec("tensorboard") is None:
        raise OptionError("--tensorboard_dir: tensorboard is not installed. Run `pip install tensorboard`.")
    if options.tensorboard_dir is not None:
        make_folder("--tensorboard_dir", Path(options.tensorboard_dir))
    if options.save is not None:
        check_saved_model(options.save)
