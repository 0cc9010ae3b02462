"""Trains a small transformer on several meshes, on both of two ranks, and writes which collectives each rank traces."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from gpt.model import Sizes, build_model

import keras_ext
import strategies
from strategies.collectives.ledger import Ledger
from strategies.control_plane import Wait

SIZES = Sizes(num_tokens=64, sequence_length=16, num_layers=4, num_heads=2, units=32)
ROWS, NUM_MICROBATCHES = 8, 4
#: By name, the mesh and the options of the strategy, and the options of the pipeline.
CASES: dict[str, tuple[dict[str, int], dict[str, Any], dict[str, Any]]] = {
    "data": ({"data": 2}, {}, {}),
    "optimizer": ({"data": 2}, {"shard": "optimizer"}, {}),
    "weights": ({"data": 2}, {"shard": "weights"}, {}),
    "tensor": ({"tensor": 2}, {}, {}),
    "sequence": ({"tensor": 2}, {}, {"sequence_parallel": True}),
    "1f1b": ({"pipe": 2}, {}, {"schedule": "1f1b"}),
    "zb_v": ({"pipe": 2}, {}, {"schedule": "zb_v"}),
}


@contextmanager
def recorded() -> Iterator[list[Wait]]:
    """Yields the collectives that are traced in the block, in order."""
    found: list[Wait] = []
    entry = Ledger.entry

    def noted(self: Ledger, wait: Wait, device: str | None = None) -> Any:
        made = entry(self, wait, device)
        if not tf.executing_eagerly() and not made.is_eager:
            found.append(made.wait)
        return made

    Ledger.entry = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Ledger.entry = entry  # type: ignore[method-assign]


def traced(name: str) -> list[Wait]:
    """Returns the collectives of a training step of a case."""
    mesh, options, more = CASES[name]
    more = dict(more)
    strategy = strategies.MultiWorkerMirroredStrategy(mesh=mesh, **options)
    with strategy.scope():
        model = build_model(SIZES)
        if "tensor" in mesh:
            model = keras_ext.parallelize(model, **more)
        elif "pipe" in mesh:
            model = keras_ext.PipelineModel(model, partition="uniform", num_microbatches=NUM_MICROBATCHES, **more)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tokens = np.zeros((ROWS, SIZES.sequence_length), "int32")
    data = tf.data.Dataset.from_tensors((tokens, tokens))
    with recorded() as found:
        model.fit(data, epochs=1, verbose=0)
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    # The strategy that is made first starts the runtime.
    rank = strategies.Cluster.from_environment().rank
    names = sys.argv[2:] or list(CASES)
    rows = {name: [[w.kind, list(w.members), w.key, w.what, w.form] for w in traced(name)] for name in names}
    (folder / f"rank{rank}.json").write_text(json.dumps(rows))
