"""KerasHub's side of a run: tokenizers of presets, tokenizers learnt in GPT-2's format, and presets that are saved."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common.folders import make_folder
from common.options import OptionError

from gpt.text import DataError, Text
from gpt.tokens import Tokens, check_utf8

#: The token between two documents in GPT-2's vocabulary.
_SEPARATOR = "<|endoftext|>"


class HubTokenizer:
    """A tokenizer of KerasHub, with the interface of `gpt.tokens.Tokenizer`.

    Attributes:
        layer: the tokenizer itself, a layer of KerasHub.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.num_tokens = int(layer.vocabulary_size())
        self.separator = int(layer.end_token_id)

    def encode(self, text: bytes) -> Tokens:
        """Returns the tokens of UTF-8 text."""
        return np.asarray(self.layer(text.decode()), np.int32)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Returns the UTF-8 text of tokens."""
        return str(self.layer.detokenize(list(tokens))).encode()


def preset_tokenizer(folder: str) -> HubTokenizer:
    """Returns the tokenizer of a preset.

    Raises:
        OptionError: the folder has no tokenizer, or one that cannot be read.
    """
    try:
        return HubTokenizer(keras_hub().models.Tokenizer.from_preset(folder))
    # A wrong folder raises many kinds of errors.
    except Exception as error:
        raise OptionError(f"--tokenizer=preset: {folder} has no tokenizer that can be read. {error}") from error


def learnt_tokenizer(text: Text, num_tokens: int) -> HubTokenizer:
    """Returns a tokenizer like that of GPT-2, byte pairs learnt from a text; the same for the same text.

    Args:
        text: UTF-8 documents.
        num_tokens: number of tokens, with the 256 bytes and the separator.

    Raises:
        DataError: KerasHub is not installed, or the text is not UTF-8 or too short for that number of tokens.
    """
    models = keras_hub().models
    # KerasHub requires it.
    import tokenizers

    check_utf8(text, "gpt2")
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=[_SEPARATOR],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pairs.train_from_iterator((document.decode() for document in text.documents), trainer)
    learnt = json.loads(pairs.to_str())["model"]
    if len(learnt["vocab"]) != num_tokens:
        raise DataError(
            f"--vocab_size={num_tokens} does not fit {text.source}: {len(learnt['vocab'])} tokens can be learnt."
        )
    # The separator is the last token, as in GPT-2: token 0 pads, and `generate` would take padding for an end.
    vocabulary = {token: number - 1 for token, number in learnt["vocab"].items()} | {_SEPARATOR: num_tokens - 1}
    return HubTokenizer(models.GPT2Tokenizer(vocabulary, [" ".join(pair) for pair in learnt["merges"]]))


def save_preset(folder: str, backbone: Any, tokenizer: HubTokenizer, sequence_length: int) -> None:
    """Saves a backbone and its tokenizer as a preset of KerasHub's task for causal language models.

    The folder is complete or does not exist, also when the program is killed. One process calls it.

    Args:
        folder: the folder to make or replace.
        backbone: a plain backbone with the trained weights.
        tokenizer: its tokenizer.
        sequence_length: the length in tokens to which the preset's preprocessor pads.

    Raises:
        OptionError: KerasHub's task for this backbone has a tokenizer of another class.
    """
    task = task_of(backbone)
    if not isinstance(tokenizer.layer, task.preprocessor_cls.tokenizer_cls):
        raise OptionError(
            f"--save_preset: {task.__name__} has a tokenizer of another class than {type(tokenizer.layer).__name__}."
        )
    preprocessor = task.preprocessor_cls(tokenizer.layer, sequence_length=sequence_length)
    target = Path(folder)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        task(backbone=backbone, preprocessor=preprocessor).save_to_preset(str(part))
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_preset_folder(folder: str) -> None:
    """Checks the path of `--save_preset` and makes the folder above it."""
    path = Path(folder)
    if path.exists() and not (path / "metadata.json").is_file():
        raise OptionError(f"--save_preset: {path} exists and is not a preset. Choose another folder.")
    make_folder("--save_preset", path.parent)


def task_of(backbone: Any) -> Any:
    """Returns KerasHub's class of causal language models for a backbone; None if it has none."""
    return next((task for task in causal_tasks() if type(backbone) is task.backbone_cls), None)


def causal_tasks() -> list[Any]:
    """Returns KerasHub's causal language models that have a backbone."""
    return [
        task
        for name, task in vars(keras_hub().models).items()
        if name.endswith("CausalLM") and getattr(task, "backbone_cls", None) is not None
    ]


def keras_hub() -> Any:
    """Returns the package.

    Raises:
        OptionError: it is not installed.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise OptionError("This needs KerasHub. Run `pip install keras-hub`.") from error
    return keras_hub
