"""Trains a small transformer on several meshes, on all ranks of a job, and writes what each rank traces.

The step is that of `strategies.planning.dry_run`: the table of tokens also makes the logits, and there is no
normalization at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_ext
import strategies
from strategies.collectives.tf_runtime import channel, collectives
from strategies.planning.layout import Shard

BLOCKS, UNITS, HEADS, TOKENS, VOCABULARY = 4, 32, 2, 16, 64
ROWS, NUM_MICROBATCHES, BUCKET_BYTES = 8, 4, 2**14


@dataclass(frozen=True)
class Setting:
    """A mesh, and options: of the strategy, of `parallelize`, and the schedule of the pipeline."""

    mesh: Mapping[str, int]
    shard: Shard = None
    sequence_parallel: bool = False
    schedule: str = "1f1b"


SETTINGS: dict[str, Setting] = {
    "data": Setting({"data": 2}),
    "optimizer": Setting({"data": 2}, shard="optimizer"),
    "weights": Setting({"data": 2}, shard="weights"),
    "tensor": Setting({"tensor": 2}),
    "sequence": Setting({"tensor": 2}, sequence_parallel=True),
    "1f1b": Setting({"pipe": 2}),
    "interleaved": Setting({"pipe": 2}, schedule="interleaved_1f1b"),
    "zb_v": Setting({"pipe": 2}, schedule="zb_v"),
    "pipe, tensor": Setting({"pipe": 2, "tensor": 2}),
    "pipe, sequence": Setting({"pipe": 2, "tensor": 2}, sequence_parallel=True),
    "data, pipe": Setting({"data": 2, "pipe": 2}),
    "data, tensor, weights": Setting({"data": 2, "tensor": 2}, shard="weights"),
    "data, pipe, weights": Setting({"data": 2, "pipe": 2}, shard="weights"),
}


@contextmanager
def recorded() -> Iterator[list[list[Any]]]:
    """Yields (kind, axis or ranks, bytes of the whole tensor) of what is traced in the block, in order."""
    found: list[list[Any]] = []
    run = collectives.TensorFlowCollectives._run
    send, recv = channel.RuntimeChannel.send, channel.RuntimeChannel.recv

    def ran(self: Any, body: Any, tensors: Any, axis: str, *key: Any, **options: Any) -> Any:
        size = self.mesh.axis_size(axis)
        if not tf.executing_eagerly() and size > 1:
            number = (tensors[0].shape.num_elements() or 0) * tensors[0].dtype.size
            found.append([key[0], axis, number * size if key[0] == "all_gather" else number])
        return run(self, body, tensors, axis, *key, **options)

    def sent(self: Any, values: Any, tag: int = 0) -> Any:
        for value, (_, group, _) in zip(values, self._sends, strict=True):
            found.append(["send", list(group.ranks), (value.shape.num_elements() or 0) * value.dtype.size])
        return send(self, values, tag)

    def received(self: Any, shapes: Any, dtype: Any, tag: int = 0) -> Any:
        for shape, (_, group, _) in zip(shapes, self._receives, strict=True):
            found.append(["receive", list(group.ranks), int(np.prod(shape)) * dtype.size])
        return recv(self, shapes, dtype, tag)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(collectives.TensorFlowCollectives, "_run", ran))
        stack.enter_context(mock.patch.object(channel.RuntimeChannel, "send", sent))
        stack.enter_context(mock.patch.object(channel.RuntimeChannel, "recv", received))
        yield found


def build_model(*, sequence_parallel: bool) -> keras.Model:
    """Returns the model; its logits are in pieces along the axis "tensor"."""
    # As in examples/gpt, a regularizer makes the gradients of tables dense.
    dense = {"embeddings_regularizer": keras.regularizers.L2(0.0)}
    table = keras_ext.VocabParallelReversibleEmbedding(VOCABULARY, UNITS, gather_output=False, name="table", **dense)
    embed = keras_ext.VocabParallelEmbedding(TOKENS, UNITS, name="positions", **dense)
    tokens, positions = keras.Input((TOKENS,), dtype="int32"), keras.Input((TOKENS,), dtype="int32")
    x = layers.Add()([table(tokens), embed(positions)])
    for number in range(BLOCKS):
        x = keras_ext.ParallelTransformerBlock(
            UNITS, HEADS, 4 * UNITS, sequence_parallel=sequence_parallel, kind="decoder", name=f"block{number}"
        )(x)
    return keras.Model([tokens, positions], table(x, reverse=True))


def traced(setting: Setting) -> list[list[Any]]:
    """Returns what this rank traces in a training step."""
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=BUCKET_BYTES)
    strategy = strategies.MultiWorkerMirroredStrategy(
        mesh=dict(setting.mesh), shard=setting.shard, communication_options=options
    )
    with strategy.scope():
        model = build_model(sequence_parallel=setting.sequence_parallel)
        if "pipe" in setting.mesh:
            numbers = [1, 2, 3] if setting.schedule in ("interleaved_1f1b", "zb_v") else [2]
            cuts = [f"block{number}/attention_normalization" for number in numbers]
            model = keras_ext.PipelineModel(
                model, partition=cuts, num_microbatches=NUM_MICROBATCHES, schedule=setting.schedule
            )
        loss = keras_ext.VocabParallelSparseCategoricalCrossentropy()
        model.compile(keras.optimizers.Adam(), loss)
    tokens = np.zeros((ROWS, TOKENS), "int32")
    data = tf.data.Dataset.from_tensors(((tokens, tokens), tokens))
    with recorded() as found:
        model.fit(data, epochs=1, verbose=0, shuffle=False)
    return found


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    rank = strategies.Cluster.from_environment().rank
    rows = {}
    for name in names:
        print(name, flush=True)
        rows[name] = traced(SETTINGS[name])
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(rows))
