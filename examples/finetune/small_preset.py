"""A small model like GPT-2, trained by `examples/gpt` on this repository's pages when it is used for the first time."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
from gpt import text, train
from gpt.options import Options as GptOptions

import strategies
from finetune.options import Options

#: In the working directory, beside the folders of runs.
FOLDER = Path("runs") / "small_gpt2"

#: Options of its training.
TRAINING: Mapping[str, Any] = {
    "backbone": "GPT2Backbone",
    "tokenizer": "gpt2",
    "vocab_size": 512,
    "sequence_length": 128,
    "batch_size": 8,
    "num_layers": 2,
    "units": 128,
    "initial_scale": 6.0,
    "learning_rate": 4e-3,
    "epochs": 6,
    "steps_per_epoch": 100,
    "sample_length": 0,
}

_log = logging.getLogger(__name__)


def small_preset(strategy: Any, options: Options) -> str:
    """Returns the folder of the small model's preset; if it does not exist, the model is trained first.

    All processes train it together, with replicas or as the mesh says. After an interruption, training resumes.
    """
    # All processes follow rank 0, which writes the folder.
    if strategies.load_on_all(strategy, lambda: str((FOLDER / "config.json").is_file()), []) == "True":
        return str(FOLDER)
    _log.info("there is no --preset: first, a small model is trained on this repository's pages, once")
    pages = text.load()
    # Another text, or other options in a later version, are another training.
    digest = hashlib.sha256(repr((sorted(TRAINING.items()), pages.documents)).encode()).hexdigest()[:8]
    small = GptOptions(
        strategy=options.strategy,
        mesh=options.mesh,
        devices=options.devices,
        verbose=options.verbose,
        microbatches=options.microbatches,
        run_dir=str(FOLDER.with_name(f"{FOLDER.name}-training-{digest}")),
        **TRAINING,
        save_preset=str(FOLDER),
    )
    train.run(small, pages, strategy)
    # As if the program had started with the preset: a resumed run does.
    keras.utils.clear_session()
    # Rank 0 has written it when this returns.
    strategies.load_on_all(strategy, lambda: "", [])
    return str(FOLDER)
