"""Trains an image classifier under a strategy: data, model, recipe, fit, result."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

import keras
from common.devices import make_strategy, mesh_of
from common.folders import check_saved_model, run_folder
from common.options import OptionError, PlacingOptions, RunOptions
from common.placing import place
from common.rate import Decay
from common.training import Outcome, prepare, train

from imagenet import batches, data, recipe, synthetic
from imagenet.models import build_model

#: The folder of the synthetic images, kept for the next run.
SYNTHETIC_DIR = "runs/synthetic-images"


@dataclass(frozen=True)
class Options(PlacingOptions, RunOptions):
    """The options of a run; `main.py` has a flag for each, with the same name and default."""

    data_dir: str | None = None
    model: str = "ResNet50"
    width: float = 1.0
    image_size: int = 224
    batch_size: int = 256
    epochs: int = 90
    optimizer: str = "sgd"
    learning_rate: float | None = None
    decay: Decay = "cosine"
    warmup_epochs: int = 5
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.1
    dropout: float = 0.5
    accumulation: int = 1
    sync_batch_norm: bool = True
    save: str | None = None


@dataclass(frozen=True)
class Result:
    """The result of a run; `str` is one line of `key=value` for a log parser."""

    outcome: Outcome

    @property
    def is_chief(self) -> bool:
        """True if this process is the one that prints and writes for all."""
        return self.outcome.is_chief

    def __str__(self) -> str:
        last = {name: values[-1] for name, values in self.outcome.history.items()}
        # The maximum over epochs: the rows left over at the end of one may be just those that cannot be decoded.
        skipped = sum(max(self.outcome.history[name]) for name in ("skipped", "val_skipped"))
        return (
            f"result val_accuracy={last['val_accuracy']:.4f} val_top5={last['val_top5']:.4f} "
            f"val_loss={last['val_loss']:.4f} loss={last['loss']:.4f} "
            f"skipped={skipped:.0f} {self.outcome.summary()}"
        )


def run(options: Options) -> Result:
    """Trains and evaluates as `options` say; call it before anything else has started TensorFlow.

    Raises:
        OptionError: an option that cannot work here, or missing data.
    """
    # Options that cannot work are refused before the training, not after it.
    folder = run_folder("imagenet", options)
    if options.save is not None:
        check_saved_model(options.save)
    strategy = make_strategy(options.strategy, options.devices, mesh_of(options.mesh), options.shard)
    prepare(options)
    try:
        data_dir = synthetic.make_synthetic(SYNTHETIC_DIR) if options.data_dir is None else options.data_dir
        training, validation = (data.open_split(data_dir, split) for split in ("train", "val"))
    except data.DataError as error:
        raise OptionError(str(error)) from error

    steps_per_epoch = batches.steps_per_epoch(training, options.batch_size)
    batch_size = min(options.batch_size, training.num_rows)
    with strategy.scope():
        model = place(
            lambda: build_model(
                options.model,
                options.image_size,
                training.num_classes,
                width=options.width,
                dropout=options.dropout,
                synchronized=options.sync_batch_norm,
            ),
            strategy,
            options,
        )
        model.compile(
            optimizer=_optimizer(options, steps_per_epoch, batch_size),
            loss=recipe.SmoothedCrossentropy(options.label_smoothing),
            weighted_metrics=[
                keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
                keras.metrics.SparseTopKCategoricalAccuracy(min(5, training.num_classes), name="top5"),
                recipe.SkippedRows(),
            ],
        )
    outcome = train(
        model,
        lambda first_step, num_steps: batches.training_batches(
            training,
            image_size=options.image_size,
            batch_size=batch_size,
            seed=options.seed,
            first_step=first_step,
            num_steps=num_steps,
        ),
        steps_per_epoch=steps_per_epoch,
        epochs=options.epochs,
        units_per_step=batch_size,
        unit="images",
        folder=folder,
        options=options,
        data_digest=_digest(training, validation),
        validation_data=batches.evaluation_batches(validation, image_size=options.image_size, batch_size=batch_size),
    )
    if options.save is not None:
        # Without the recipe, whose custom classes plain Keras does not know.
        model.compiled = False
        model.save(options.save)  # All processes call it, one writes.
        outcome = dataclasses.replace(outcome, saved=(options.save,))
    return Result(outcome)


def _digest(*splits: data.Split) -> str:
    """Returns a digest of the images' names, positions and labels, not of their pixels."""
    digest = hashlib.sha256()
    for split in splits:
        index = split.index
        for part in (index.names, index.name_ends, index.files, index.offsets, index.lengths, index.labels):
            digest.update(part.tobytes())
        digest.update("\n".join(index.classes).encode(errors="surrogateescape"))
    return digest.hexdigest()


def _optimizer(options: Options, steps_per_epoch: int, batch_size: int) -> keras.Optimizer:
    schedule = recipe.learning_rate(
        options.optimizer,
        options.learning_rate,
        batch_size,
        decay=options.decay,
        warmup_steps=options.warmup_epochs * steps_per_epoch,
        num_steps=options.epochs * steps_per_epoch,
        accumulation=options.accumulation,
    )
    return recipe.make_optimizer(
        options.optimizer,
        schedule,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        accumulation=options.accumulation,
    )
