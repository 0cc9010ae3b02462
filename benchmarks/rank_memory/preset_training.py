"""One rank: loads a preset straight into its shards and trains adapters, and reports its peak of memory."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from harness import memory
from harness.workers import Report

import keras_ext
import strategies
from rank_memory.preset_cases import NUM_POSITIONS, VOCABULARY_SIZE, PresetCase

_NUM_TOKENS = 8


def write(case: PresetCase, folder: str, report: Report) -> None:
    """Writes the preset, with random weights, and reports once.

    Args:
        case: the preset.
        folder: for its files.
        report: takes a measurement; returns at the next turn of this process.
    """
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY_SIZE,
        num_layers=case.num_layers,
        num_heads=16,
        hidden_dim=case.width,
        intermediate_dim=4 * case.width,
        max_sequence_length=NUM_POSITIONS,
        dropout=0.0,
    )
    backbone.save_to_preset(folder)
    report(0.0)


def run(case: PresetCase, cluster: str, folder: str, report: Report) -> None:
    """Reports one phase per turn; call it before TensorFlow has started in this process.

    Args:
        case: the preset.
        cluster: how the ranks are connected.
        folder: the preset's.
        report: takes a measurement; returns at the next turn of this process.
    """
    tf.get_logger().setLevel("ERROR")
    make = strategies.HorovodStrategy if cluster == "horovod" else strategies.MultiWorkerMirroredStrategy
    options: dict[str, Any] = {"shard": "weights"} if "tensor" not in case.mesh else {}
    strategy = make(mesh=dict(case.mesh), **options)
    model: Any = None

    def load() -> None:
        nonlocal model
        with strategy.scope():
            model = keras_ext.from_preset(keras_hub.models.CausalLM, folder, preprocessor=None)

    def train() -> None:
        with strategy.scope():
            model.backbone.enable_lora(4)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(1e-3), loss)
        # A row for each replica: the logits of a row are large.
        tokens = np.ones((case.mesh.get("data", 1), _NUM_TOKENS), "int32")
        model.fit({"token_ids": tokens, "padding_mask": tokens}, tokens, batch_size=len(tokens), verbose=0)

    report(0.0)
    loaded = memory.peak(load)[1]
    report(float(sum(strategies.bytes_per_device(model.variables).values())))
    report(loaded)
    report(memory.peak(train)[1])
