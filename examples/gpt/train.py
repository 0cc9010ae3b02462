"""Trains the language model under a strategy: tokens, model, training, a sample, result."""

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from common import devices, training
from common.folders import check_saved_model, run_folder
from common.options import OptionError
from common.placing import place
from common.rate import WarmUpThenDecay

import keras_ext
from gpt import backbone, hub, rows
from gpt.model import Sizes, build_model
from gpt.options import Options
from gpt.perplexity import Perplexity
from gpt.sampling import sample
from gpt.text import Text
from gpt.tokens import Tokenizer, make_tokenizer

# Names of biases, norms and embeddings, which are exempt from weight decay.
_NOT_DECAYED = ["bias", "gamma", "beta", "scale", "embeddings"]


@dataclass(frozen=True)
class Result:
    """The result of a run; `str` is a sample and then one line of `key=value` for a log parser.

    Attributes:
        bytes_per_token: mean bytes per token of the text; perplexities are per token.
        sample: the prompt and its continuation by the model; None if `sample_length` is 0.
        outcome: the outcome of the training.
    """

    bytes_per_token: float
    sample: str | None
    outcome: training.Outcome

    @property
    def is_chief(self) -> bool:
        """True if this process is the one that prints and writes for all."""
        return self.outcome.is_chief

    @property
    def perplexity(self) -> float:
        """The training perplexity of the last epoch."""
        return self.outcome.history["perplexity"][-1]

    @property
    def val_perplexity(self) -> float:
        """The perplexity of the held-out rows after the last epoch; NaN if the text has one row only."""
        return self.outcome.history.get("val_perplexity", [math.nan])[-1]

    def __str__(self) -> str:
        drawn = "" if self.sample is None else f"sample:\n{self.sample}\n\n"
        return (
            f"{drawn}result perplexity={self.perplexity:.4f} val_perplexity={self.val_perplexity:.4f} "
            f"bytes_per_token={self.bytes_per_token:.3f} {self.outcome.summary()}"
        )


def run(options: Options, text: Text, strategy: Any = None) -> Result:
    """Trains, evaluates and generates a sample as `options` say; call it before TensorFlow is initialised.

    Args:
        options: the options of the run.
        text: the text to train on.
        strategy: the strategy of the caller; by default it is made as `options` say.

    Raises:
        OptionError: an option that cannot work here, or the folder belongs to another run.
        DataError: a text shorter than a row, or not supported by the tokenizer.
    """
    folder = run_folder("gpt", options)
    if options.save is not None:
        check_saved_model(options.save)
    if options.save_preset is not None:
        hub.check_preset_folder(options.save_preset)
    tokenizer = _tokenizer(options, text, folder)
    packed = rows.pack(map(tokenizer.encode, text.documents), tokenizer.separator)
    train_rows, held_out = rows.split(packed, options.sequence_length)
    if strategy is None:
        mesh = devices.mesh_of(options.mesh)
        strategy = devices.make_strategy(options.strategy, options.devices, mesh, options.shard)
    training.prepare(options)
    sizes = sizes_of(options, tokenizer.num_tokens)
    _check_experts(sizes, strategy)
    with strategy.scope():
        model = compiled(place(lambda: _plain_model(sizes, options), strategy, options), options)
        # Stages in several processes keep no metrics.
        tracks_experts = bool(sizes.num_experts) and (
            options.strategy == "mirrored" or strategy.mesh.axis_size("pipe") == 1
        )
        if tracks_experts:
            keras_ext.track_expert_load(model)
    as_inputs: Any = (lambda batches: batches) if options.backbone is None else backbone.as_inputs
    outcome = training.train(
        model,
        lambda first_step, num_steps: as_inputs(
            rows.batches(train_rows, options.batch_size, seed=options.seed, first_step=first_step, num_steps=num_steps)
        ),
        steps_per_epoch=options.steps_per_epoch,
        epochs=options.epochs,
        units_per_step=options.batch_size * options.sequence_length,
        unit="tokens",
        folder=folder,
        options=options,
        data_digest=hashlib.sha256(packed.tobytes()).hexdigest(),
        validation_data=None if held_out is None else as_inputs(rows.in_order(held_out, options.batch_size)),
        tracks_experts=tracks_experts,
    )
    if options.save is not None:
        # Without optimizer and metric, whose custom classes plain Keras does not know.
        model.compiled = False
        model.save(options.save)  # All processes call it, one writes.
    if options.save_preset is not None:
        _save_preset(model, sizes, tokenizer, options)
    saved = tuple(path for path in (options.save, options.save_preset) if path is not None)
    return Result(
        bytes_per_token=text.num_bytes / len(packed),
        sample=sample_text(model, sizes, tokenizer, options) if options.sample_length else None,
        outcome=dataclasses.replace(outcome, saved=saved),
    )


def _tokenizer(options: Options, text: Text, folder: Path) -> Tokenizer:
    if options.tokenizer == "preset" and options.backbone is not None:
        return hub.preset_tokenizer(options.backbone)
    if options.tokenizer == "gpt2":
        return hub.learnt_tokenizer(text, options.vocab_size)
    return make_tokenizer(options.tokenizer, text, options.vocab_size, folder)


def _save_preset(model: Any, sizes: Sizes, tokenizer: Any, options: Options) -> None:
    """Saves the trained backbone; all processes call it, since reading weights may be collective, and one writes."""
    weights = model.get_weights()
    if model.distribute_strategy.is_chief:
        made = backbone.make_backbone(str(options.backbone), sizes)
        backbone.with_logits(made).set_weights(weights)
        hub.save_preset(str(options.save_preset), made, tokenizer, options.sequence_length)


def _plain_model(sizes: Sizes, options: Options) -> Any:
    return build_model(sizes) if options.backbone is None else backbone.build_model(options.backbone, sizes)


def _check_experts(sizes: Sizes, strategy: Any) -> None:
    along = strategy.mesh.axis_size("expert")
    if sizes.num_experts % along:
        raise OptionError(
            f"--num_experts={sizes.num_experts} must be a multiple of {along}, the size of the mesh axis expert."
        )


def sizes_of(options: Options, num_tokens: int) -> Sizes:
    """Returns the model's sizes, for a tokenizer with `num_tokens` tokens."""
    return Sizes(
        num_tokens,
        options.sequence_length,
        options.num_layers,
        options.num_heads,
        options.units,
        options.dropout,
        options.num_experts,
        options.top_k,
        options.load_balancing_loss,
        options.initial_scale,
    )


def compiled(model: Any, options: Options) -> Any:
    """Compiles the model with AdamW, linear warm-up and cosine decay; call it in the scope of its strategy."""
    rate = WarmUpThenDecay(
        options.learning_rate,
        max(1, options.epochs * options.steps_per_epoch // options.accumulation),
        options.warmup_steps,
        batches_per_update=options.accumulation,
    )
    optimizer = keras.optimizers.AdamW(
        rate,
        weight_decay=options.weight_decay,
        global_clipnorm=options.global_clipnorm or None,
        gradient_accumulation_steps=options.accumulation if options.accumulation > 1 else None,
    )
    optimizer.exclude_from_weight_decay(var_names=_NOT_DECAYED)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[Perplexity()])
    return model


def sample_text(model: Any, sizes: Sizes, tokenizer: Tokenizer, options: Options) -> str:
    """Returns the prompt and its continuation, sampled from a plain model with the weights of `model`.

    All processes call it, since reading weights is collective where a replica spans processes; each computes the same
    sample. The plain model has to fit on one device.
    """
    plain = _plain_model(sizes, options)
    plain.set_weights(model.get_weights())
    if options.backbone is not None:
        plain = backbone.from_tokens(plain, options.sequence_length)
    prompt = [tokenizer.separator, *tokenizer.encode(options.prompt.encode()).tolist()]
    drawn = sample(
        plain,
        prompt,
        options.sample_length,
        choices=tokenizer.num_tokens,
        temperature=options.temperature,
        seed=options.seed,
    )
    return tokenizer.decode([*prompt[1:], *drawn]).decode(errors="replace")
