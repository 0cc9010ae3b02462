"""Text that is in this repository, a tokenizer trained on it, and a small GPT-2 that takes and returns strings."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from tests.hub import backbones

#: In tokens: of a row in training, and of a generated text.
SEQUENCE_LENGTH = 16
_FILE = Path(__file__).parents[2] / "CONTRIBUTING.md"
_VOCABULARY = 300


def rows() -> list[str]:
    """Returns lines of text, not all of one length, and not a multiple of the batch size."""
    return [line for line in _FILE.read_text().splitlines() if line][:10]


@functools.cache
def _trained() -> tuple[dict[str, int], list[str]]:
    """Returns the vocabulary and the merges of byte pairs of all of the text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    pieces: Any = pre_tokenizers.ByteLevel
    tokenizer.pre_tokenizer = pieces(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pieces.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_FILE.read_text().splitlines(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]


def task() -> Any:
    """Builds a small GPT-2 with its preprocessor; weights are the same on every call."""
    import keras
    import keras_hub

    models = keras_hub.models
    vocabulary, merges = _trained()
    keras.utils.set_random_seed(7)
    backbone = backbones.make(models.GPT2Backbone, vocabulary_size=len(vocabulary), max_sequence_length=SEQUENCE_LENGTH)
    preprocessor = models.GPT2CausalLMPreprocessor(
        models.GPT2Tokenizer(vocabulary=vocabulary, merges=merges), sequence_length=SEQUENCE_LENGTH
    )
    return models.GPT2CausalLM(backbone, preprocessor=preprocessor)
