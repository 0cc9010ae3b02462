"""One contender in its process: a task with random weights generates for the same prompts at each turn."""

from __future__ import annotations

import time
from typing import Any

import keras
import keras_hub
import numpy as np
from harness.workers import Report

from generation.workload import Workload

HEAD_SIZE = 64
VOCABULARY = 8192


def make_task(workload: Workload) -> Any:
    """Returns a GPT-2 with random weights that generates greedily."""
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=workload.num_blocks,
        num_heads=workload.width // HEAD_SIZE,
        hidden_dim=workload.width,
        intermediate_dim=4 * workload.width,
        max_sequence_length=workload.num_prompt_tokens + workload.num_new_tokens,
    )
    task = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    task.compile(sampler="greedy")
    return task


def spread(workload: Workload, cluster: str, axis: str, num_groups: int) -> Any:
    """Returns the task over two processes."""
    import keras_ext
    import strategies

    strategy_class = strategies.HorovodStrategy if cluster == "horovod" else strategies.MultiWorkerMirroredStrategy
    with strategy_class(mesh={axis: 2}).scope():
        task = make_task(workload)
        if axis == "tensor":
            return keras_ext.parallelize(task)
        # One half of the blocks each; the table is in both stages.
        second = f"transformer_layer_{workload.num_blocks // 2}"
        return keras_ext.PipelineModel(task, num_microbatches=num_groups, partition=[second])


def run(workload: Workload, cluster: str, axis: str | None, num_groups: int, report: Report) -> None:
    """Reports new tokens a second, of all rows together, until the benchmark ends."""
    task = make_task(workload) if axis is None else spread(workload, cluster, axis, num_groups)
    length = workload.num_prompt_tokens + workload.num_new_tokens
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (workload.num_rows, length))
    is_prompt = np.broadcast_to(np.arange(length) < workload.num_prompt_tokens, ids.shape)
    prompts = {"token_ids": np.where(is_prompt, ids, 0).astype("int32"), "padding_mask": is_prompt.astype("int32")}
    task.generate({**prompts}, stop_token_ids=None)
    while True:
        start = time.perf_counter()
        task.generate({**prompts}, stop_token_ids=None)
        report(workload.num_rows * workload.num_new_tokens / (time.perf_counter() - start))
