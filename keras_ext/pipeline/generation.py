"""Generation of text by tasks of KerasHub that are cut into stages.

A task generates a token at a time, by calling its layers with caches of earlier keys and values. Here these calls are
placed on the stages' devices, and a batch is cut into as many groups of rows as the model has micro-batches, so that the
stages work on different rows at the same time:

    stage 0    a b c d . a b c d .
    stage 1    . a b c d . a b c d       a, b, c, d: groups of rows; each column is one pass of a group

The sampler sees the logits of the whole batch, and draws as on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.pipeline.microbatch import Microbatches
from strategies import layer_api


def methods_of(plain_class: Any) -> dict[str, Any]:
    """Returns the methods by which a pipeline of a task overrides those of the task's class that call its layers.

    Args:
        plain_class: the task's class, or another user's class; a method that it does not have is left out.
    """
    made = {"generate_step": _generate_step, "score": _score, "call_with_cache": _call_with_cache}
    return {name: make(plain_class) for name, make in made.items() if hasattr(plain_class, name)}


def _generate_step(plain_class: Any) -> Callable[..., Any]:
    def generate_step(self: Any, inputs: Any, stop_token_ids: Any = None) -> Any:
        """Generates a batch, with each layer on the device of its stage; arguments and results are the task's."""
        with self._calls.placed():
            return plain_class.generate_step(self, inputs, stop_token_ids)

    return generate_step


def _score(plain_class: Any) -> Callable[..., Any]:
    def score(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Scores tokens, with each layer on the device of its stage; arguments and results are the task's."""

        def scored() -> Any:
            with self._calls.placed():
                return plain_class.score(self, *args, **kwargs)

        # Messages between processes are in traced functions only.
        return layer_api.traced(scored)() if self._placed.crosses else scored()

    return score


def _call_with_cache(plain_class: Any) -> Callable[..., Any]:
    def call_with_cache(self: Any, token_ids: Any, cache: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns logits, hidden states and the new cache of the next tokens; arguments are the task's.

        The cache of a batch that is cut into groups of rows is a tuple of the groups' caches.
        """

        def called(token_ids: Any, cache: Any, rest: Any) -> Any:
            return plain_class.call_with_cache(self, token_ids, cache, *rest[0], **rest[1])

        hides = _takes_cache_as_it_is(getattr(self, "sampler", None))
        groups = _groups(self, token_ids, (args, kwargs)) if hides and _is_cut(cache) else None
        if groups is None:
            made = called(token_ids, cache, (args, kwargs))
            return made if hides else _with_hidden_states_on_all(self, made)
        caches = cache if isinstance(cache, _Caches) else groups.split(cache)
        parts = zip(groups.split(token_ids), caches, _split(groups, (args, kwargs)), strict=True)
        results = [called(*part) for part in parts]
        joined = [
            None if own[0] is None else ops.concatenate(own, axis=0) for own in list(zip(*results, strict=True))[:-1]
        ]
        return (*joined, _Caches(each[-1] for each in results))

    return call_with_cache


class _Caches(tuple[Any, ...]):
    """The caches of groups of rows."""


def _takes_cache_as_it_is(sampler: Any) -> bool:
    """Returns True if a sampler hands a cache from one call to the next, and does not select rows from it."""
    owner: Any = next((each for each in type(sampler).__mro__ if "__call__" in vars(each)), None)
    return owner is not None and owner.__name__ == "Sampler"


def _is_cut(cache: Any) -> bool:
    return isinstance(cache, _Caches) or (ops.is_tensor(cache) and len(cache.shape) > 1)


def _groups(model: Any, token_ids: Any, rest: Any) -> Microbatches | None:
    """Returns the groups of rows of a batch; None if it is computed as a whole."""
    if model.num_microbatches == 1 or model._num_devices == 1 or token_ids.shape[0] in (None, 1):
        return None
    tensors = [each for each in keras.tree.flatten(rest) if ops.is_tensor(each) and len(each.shape)]
    if any(each.shape[0] != token_ids.shape[0] for each in tensors):
        return None
    return Microbatches.from_batch(token_ids, model.num_microbatches)


def _split(groups: Microbatches, arguments: Any) -> list[Any]:
    """Returns the arguments of each group: tensors with rows are cut, everything else is the same for all."""
    leaves = keras.tree.flatten(arguments)
    cut = [groups.split(each) if ops.is_tensor(each) and len(each.shape) else [each] * groups.number for each in leaves]
    return [keras.tree.pack_sequence_as(arguments, [each[group] for each in cut]) for group in range(groups.number)]


def _with_hidden_states_on_all(model: Any, made: Sequence[Any]) -> Any:
    """Returns what a call returned, with the last stage's hidden states, which some samplers read, on all processes."""
    logits, hidden_states, *cache = made
    [shared] = model._parts.broadcast_last_stage([hidden_states])
    return (logits, shared, *cache)
