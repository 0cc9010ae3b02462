"""Fine-tunes a task under a strategy: preset, text, a sample before and after, files, result."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import devices, training
from common.folders import run_folder
from gpt import rows
from gpt.backbone import as_inputs
from gpt.hub import keras_hub
from gpt.text import Text
from gpt.tokens import Tokens

from finetune import saving
from finetune.model import compiled_task, without_preprocessor
from finetune.options import Options
from finetune.small_preset import small_preset

#: Peak learning rates: of KerasHub's guides for presets of published size, and for the small model of this example.
_RATE = 5e-5
_RATE_OF_SMALL = 3e-3


@dataclass(frozen=True)
class Result:
    """The result of a run; `str` is the sample after training and one line of `key=value` for a log parser.

    Attributes:
        before: loss and perplexity of the held-out rows before training; empty if there are none.
        samples: the samples before and after training.
        outcome: the outcome of the training.
    """

    before: dict[str, float]
    samples: tuple[str, str]
    outcome: training.Outcome

    @property
    def is_chief(self) -> bool:
        """True if this process is the one that prints and writes for all."""
        return self.outcome.is_chief

    def __str__(self) -> str:
        last = {name: values[-1] for name, values in self.outcome.history.items()}
        numbers = {
            "perplexity": last["perplexity"],
            "val_perplexity_before": self.before.get("perplexity", math.nan),
            "val_perplexity": last.get("val_perplexity", math.nan),
        }
        line = " ".join(f"{name}={value:.4f}" for name, value in numbers.items())
        return f"{_shown('after', self.samples[1])}result {line} {self.outcome.summary()}"


def run(options: Options, text: Text) -> Result:
    """Fine-tunes, evaluates, samples and saves as `options` say; call it before TensorFlow is initialised.

    Raises:
        OptionError: an option that cannot work here, or the folder belongs to another run.
        DataError: a text shorter than a row.
    """
    keras_hub()
    folder = run_folder("finetune", options)
    strategy = devices.make_strategy(options.strategy, options.devices, devices.mesh_of(options.mesh), options.shard)
    preset = small_preset(strategy, options) if options.preset is None else options.preset
    training.prepare(options)
    tokens = packed(preset, text)
    train_rows, held_out = rows.split(tokens, options.sequence_length)
    steps = math.ceil(train_rows.num_rows / options.batch_size)
    with strategy.scope():
        task = compiled_task(preset, options.epochs * steps, rate_of(options), strategy, options)
    validation_data = None if held_out is None else as_inputs(rows.in_order(held_out, options.batch_size))
    is_chief: bool = task.distribute_strategy.is_chief
    before = sample(task, options)
    if is_chief:
        print(_shown("before", before), end="", flush=True)
    with without_preprocessor(task):
        first = {} if validation_data is None else task.evaluate(validation_data, return_dict=True, verbose=0)
        outcome = training.train(
            task,
            lambda first_step, num_steps: as_inputs(
                rows.batches(
                    train_rows, options.batch_size, seed=options.seed, first_step=first_step, num_steps=num_steps
                )
            ),
            steps_per_epoch=steps,
            epochs=options.epochs,
            units_per_step=options.batch_size * options.sequence_length,
            unit="tokens",
            folder=folder,
            options=options,
            data_digest=hashlib.sha256(tokens.tobytes()).hexdigest(),
            validation_data=validation_data,
        )
    after = sample(task, options)
    saved = Path(options.save) if options.save is not None else folder / "preset"
    saving.save_preset(task, saved)
    if options.save_adapters is not None:
        saving.save_adapters(task, Path(options.save_adapters))
    files = tuple(str(path) for path in (saved, options.save_adapters) if path is not None)
    return Result(before=first, samples=(before, after), outcome=dataclasses.replace(outcome, saved=files))


def packed(preset: str, text: Text) -> Tokens:
    """Returns the tokens of all documents, each between the start and the end token of the preset's tokenizer.

    Where these are one token, as for GPT-2, it stands once between two documents.
    """
    tokenizer = keras_hub().models.Tokenizer.from_preset(preset)
    start, end = (np.array([token], np.int32) for token in (tokenizer.start_token_id, tokenizer.end_token_id))
    documents = [np.asarray(tokenizer(document.decode()), np.int32) for document in text.documents]
    if start == end:
        return rows.pack(documents, int(end[0]))
    return np.concatenate([part for document in documents for part in (start, document, end)])


def rate_of(options: Options) -> float:
    """Returns the peak learning rate: the given one, or a default that suits the preset."""
    if options.learning_rate is not None:
        return options.learning_rate
    rate = _RATE_OF_SMALL if options.preset is None else _RATE
    # Gradients through int8 products are rough: at higher rates, the loss of plain Keras rises, too.
    return rate / 6 if options.quantize else rate


def sample(task: Any, options: Options) -> str:
    """Returns the prompt and its continuation; all processes call it."""
    return str(task.generate(options.prompt, max_length=options.sample_length)) if options.sample_length else ""


def _shown(when: str, sample: str) -> str:
    return f"sample {when} training:\n{sample}\n\n" if sample else ""
