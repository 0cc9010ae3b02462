"""Language models from KerasHub's backbones: decoders with random weights, or a preset in a folder."""

import inspect
import math
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from common.options import OptionError
from keras import ops

from gpt.hub import causal_tasks, keras_hub
from gpt.model import Sizes


def build_model(backbone: str, sizes: Sizes) -> keras.Model:
    """Returns a model from the inputs of `as_inputs` to logits (batch, length, vocabulary_size).

    The backbone's layers become layers of the model itself, so that it can be split, and partitioned into stages.

    Args:
        backbone: the name of a class in `keras_hub.models`, made with these sizes and random weights; or a folder that
            `save_to_preset` has written.
        sizes: sizes of the model; for a preset, only the tokens and the sequence length are checked against it.

    Raises:
        OptionError: KerasHub is not installed, `backbone` is not a causal decoder of KerasHub, or the sizes do not fit.
    """
    return with_logits(make_backbone(backbone, sizes))


def make_backbone(backbone: str, sizes: Sizes) -> Any:
    """Returns the backbone itself; arguments and errors are those of `build_model`."""
    if Path(backbone).is_dir():
        made = _preset(backbone)
    else:
        made = _from_sizes(backbone, sizes)
        _scale(made, sizes.initial_scale)
    _check(made, backbone, sizes)
    return made


def with_logits(made: Any) -> keras.Model:
    """Returns the model of a backbone's layers, whose logits are from its token embedding."""
    return keras.Model(made.input, made.token_embedding(made.output, reverse=True), name="gpt")


def from_tokens(model: keras.Model, length: int) -> keras.Model:
    """Returns the model as a model from tokens (batch, length), for sampling."""
    tokens = keras.Input((length,), dtype="int32")
    return keras.Model(tokens, model(_inputs(tokens)))


def as_inputs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns batches (tokens, targets) in the model's input format: no row is padded."""
    return dataset.map(lambda tokens, targets: (_inputs(tokens), targets))


def _inputs(tokens: Any) -> dict[str, Any]:
    return {"token_ids": tokens, "padding_mask": ops.ones_like(tokens)}


def _preset(folder: str) -> Any:
    try:
        return keras_hub().models.Backbone.from_preset(folder)
    except (OSError, ValueError, KeyError) as error:
        raise OptionError(f"--backbone={folder}: not a preset that can be read. {error}") from error


def _from_sizes(name: str, sizes: Sizes) -> Any:
    models = keras_hub().models
    cls = getattr(models, name, None)
    if not (inspect.isclass(cls) and issubclass(cls, models.Backbone)):
        known = ", ".join(sorted(each.backbone_cls.__name__ for each in causal_tasks()))
        raise OptionError(f"--backbone={name}: expected a folder, or one of KerasHub's decoders: {known}.")
    given: dict[str, Any] = {
        "vocabulary_size": sizes.vocabulary_size,
        "num_layers": sizes.num_layers,
        "hidden_dim": sizes.units,
        "intermediate_dim": 4 * sizes.units,
        "head_dim": sizes.units // sizes.num_heads,
        "max_sequence_length": sizes.sequence_length,
        "dropout": sizes.dropout,
    } | dict.fromkeys(("num_heads", "num_query_heads", "num_key_value_heads", "num_attention_heads"), sizes.num_heads)
    parameters = inspect.signature(cls.__init__).parameters
    missing = [
        parameter.name
        for parameter in list(parameters.values())[1:]
        if parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_KEYWORD
        and parameter.name not in given
    ]
    if missing:
        raise OptionError(
            f"--backbone={name}: there is no flag for its {', '.join(missing)}. Make it in Python, write it by "
            "save_to_preset, and give its folder."
        )
    return cls(**{name: value for name, value in given.items() if name in parameters})


def _scale(made: Any, factor: float) -> None:
    """Multiplies the random kernels and embeddings; biases and norms, which are zeros and ones, stay."""
    for weight in made.weights if factor != 1.0 else ():
        if weight.name in ("kernel", "embeddings"):
            weight.assign(factor * weight)


def _check(made: Any, backbone: str, sizes: Sizes) -> None:
    takes = sorted(made.input) if isinstance(made.input, dict) else made.input
    if not any(isinstance(made, task.backbone_cls) for task in causal_tasks()) or takes != [
        "padding_mask",
        "token_ids",
    ]:
        raise OptionError(
            f"--backbone={backbone}: not a decoder that takes tokens only. Received: {type(made).__name__} with inputs "
            f"{takes}."
        )
    if made.vocabulary_size < sizes.num_tokens:
        raise OptionError(
            f"--backbone={backbone}: it has {made.vocabulary_size} tokens, and --tokenizer {sizes.num_tokens}."
        )
    longest = getattr(made, "max_sequence_length", math.inf)
    if sizes.sequence_length > longest:
        raise OptionError(f"--sequence_length={sizes.sequence_length}: --backbone={backbone} takes {longest} at most.")
