"""Generation of text by tasks of KerasHub whose replica spans processes.

All processes of a replica run the same loop over tokens, with collectives in each pass. They must have the same prompts
and the same random numbers, or they would generate different texts, or wait for each other forever.

Its contract is tested in ``tests/strategies/processes/spanning_generation.py``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from strategies.collectives.process_group import ProcessGroup
from strategies.collectives.strings import gather_texts
from strategies.engine.engine import engine_of


def agreed(generate: Callable[..., Any], task: Any) -> Callable[..., Any]:
    """Returns a task's generate function, which first compares its arguments between the processes of a replica.

    Args:
        generate: takes a batch of prompts as tokens, and the ids of tokens at which to stop.
        task: the task, whose sampler gets the random state of the first process.
    """
    groups = _groups(task)
    if not groups:
        return generate

    def checked(inputs: Any, stop_token_ids: Any = None) -> Any:
        _agree(groups, inputs, stop_token_ids, task.sampler)
        return generate(inputs, stop_token_ids=stop_token_ids)

    return checked


def _groups(task: Any) -> list[ProcessGroup]:
    """Returns the process groups whose collectives a forward pass of the task's model runs."""
    engine = engine_of(task.distribute_strategy)
    if engine is None:
        return []
    groups = engine.parts.groups
    shards = [each.inside for each in groups.sharding] if engine.sharded_weights is not None else []
    return [each for each in (*groups.model.values(), *shards) if each.num_processes > 1]


def _agree(groups: Sequence[ProcessGroup], inputs: Any, stop_token_ids: Any, sampler: Any) -> None:
    """Refuses different prompts, and gives the sampler the random state of the first process.

    Raises:
        ValueError: on all processes, if their prompts differ.
    """
    own = {
        "prompts": [_described(inputs, stop_token_ids)],
        "state": [np.asarray(v).tolist() for v in sampler.variables],
    }
    for group in groups:
        found = [json.loads(text) for text in gather_texts(json.dumps(own), group)]
        prompts = sorted({each for one in found for each in one["prompts"]})
        own = {"prompts": prompts, "state": found[0]["state"]}
    if len(own["prompts"]) > 1:
        raise ValueError(
            "The devices of a replica are in several processes, which generate together: call generate() on all of "
            "them with the same prompts, max_length and stop_token_ids. Received different ones: "
            f"{' and '.join(own['prompts'])}."
        )
    for variable, value in zip(sampler.variables, own["state"], strict=True):
        variable.assign(np.asarray(value, variable.dtype))


def _described(inputs: Any, stop_token_ids: Any) -> str:
    """Returns a text that differs for different prompts, and that a person can read."""
    arrays = [np.asarray(each) for each in keras.tree.flatten(inputs)]
    checksum = zlib.crc32(repr(stop_token_ids).encode())
    for each in arrays:
        checksum = zlib.crc32(f"{each.dtype}{each.shape}".encode() + np.ascontiguousarray(each).tobytes(), checksum)
    shapes = ", ".join(str(list(each.shape)) for each in arrays)
    return f"tokens of shapes {shapes}, stop_token_ids={stop_token_ids!r} (checksum {checksum:08x})"
