"""A task of KerasHub from a preset: quantized, with adapters, placed on a mesh, compiled."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import keras
from common.options import OptionError
from common.placing import place
from common.rate import WarmUpThenDecay
from gpt.hub import keras_hub
from gpt.perplexity import Perplexity

from finetune.options import Options

# Names of biases, norms and embeddings, which are exempt from weight decay.
_NOT_DECAYED = ["bias", "gamma", "beta", "scale", "embeddings"]
#: The sampler takes one of this number of most likely tokens.
_TOP_K = 5


def compiled_task(preset: str, num_updates: int, rate: float, strategy: Any, options: Options) -> Any:
    """Returns the task of a preset, ready for `fit` and `generate`; call it in the strategy's scope.

    Args:
        preset: folder of the preset.
        num_updates: number of steps of the whole training.
        rate: peak learning rate.
        strategy: the strategy.
        options: the options of the run.

    Raises:
        OptionError: the preset cannot be read, has no adapters to enable, or cannot be placed on the mesh.
    """
    task: Any = place(lambda: _adapted(_loaded(preset, options), options), strategy, options)
    optimizer = keras.optimizers.AdamW(
        WarmUpThenDecay(rate, num_updates, options.warmup_steps),
        weight_decay=options.weight_decay,
        global_clipnorm=options.global_clipnorm or None,
    )
    optimizer.exclude_from_weight_decay(var_names=_NOT_DECAYED)
    task.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[Perplexity()],
        sampler=_sampler(options),
    )
    return task


@contextlib.contextmanager
def without_preprocessor(task: Any) -> Iterator[None]:
    """Context manager: the task takes tokens, not text, in `fit` and `evaluate`."""
    preprocessor = task.preprocessor
    task.preprocessor = None
    try:
        yield
    finally:
        task.preprocessor = preprocessor


def _loaded(preset: str, options: Options) -> Any:
    try:
        task = keras_hub().models.CausalLM.from_preset(preset)
    # A wrong folder raises many kinds of errors.
    except Exception as error:
        raise OptionError(f"--preset={preset}: it cannot be read as a causal language model. {error}") from error
    takes = sorted(task.backbone.input) if isinstance(task.backbone.input, dict) else task.backbone.input
    if task.preprocessor is None or takes != ["padding_mask", "token_ids"]:
        raise OptionError(
            f"--preset={preset}: expected a task with a tokenizer that takes tokens only. Received: "
            f"{type(task).__name__} with inputs {takes}."
        )
    longest = getattr(task.backbone, "max_sequence_length", math.inf)
    for name in ("sequence_length", "sample_length"):
        if getattr(options, name) > longest:
            raise OptionError(f"--{name}={getattr(options, name)}: --preset={preset} takes {longest} at most.")
    return task


def _adapted(task: Any, options: Options) -> Any:
    """Returns the task with int8 weights and adapters, as the options say: in this order, which Keras needs."""
    if options.quantize is not None:
        # Not the task's `quantize`, which in Keras 3.15 stops at the tokenizer.
        with warnings.catch_warnings():
            # Of each layer that stays as it is.
            warnings.filterwarnings("ignore", message=r".* does not have a `quantize` method")
            task.backbone.quantize(options.quantize)
    if options.lora_rank:
        task.backbone.enable_lora(options.lora_rank)
        if not any("lora" in weight.name for weight in task.trainable_weights):
            raise OptionError(
                f"--lora_rank={options.lora_rank}: no layer of {type(task.backbone).__name__} is among those that "
                f"KerasHub adapts by default: {', '.join(task.backbone.default_lora_layer_names())}."
            )
    return task


def _sampler(options: Options) -> Any:
    samplers = keras_hub().samplers
    if options.temperature == 0:
        return samplers.GreedySampler()
    return samplers.TopKSampler(k=_TOP_K, temperature=options.temperature, seed=options.seed)
