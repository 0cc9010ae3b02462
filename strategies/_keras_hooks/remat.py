"""Layers made under a ``keras.RematScope``: the backward pass recomputes them with the same state and seeds.

Keras 3.15 passes the call of such a layer to ``tf.recompute_grad``, which takes no keyword arguments in a graph, so
that ``fit`` fails for all layers with a ``training`` argument; and the recomputation draws new random numbers, so the
gradient belongs to another Dropout mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import core

from strategies._keras_hooks.wrapping import wrap
from strategies.engine.engine import engine_of
from strategies.replica.row_exchange import lie_on_replicas


def install() -> None:
    """Wraps Keras' ``remat``."""
    wrap(core, "remat", _remat)


def _remat(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    if engine_of(tf.distribute.get_strategy()) is None:
        return original(function)
    # A layer's call may change its non-trainable variables, such as seeds; an activation function changes none.
    layer = getattr(function, "__self__", None)
    trained = {id(variable) for variable in layer.trainable_variables} if isinstance(layer, keras.Layer) else set()
    changing = [v for v in layer.variables if id(v) not in trained] if isinstance(layer, keras.Layer) else []

    def computed(*args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, keras.Layer) and lie_on_replicas(layer.variables):
            raise ValueError(
                "A layer that runs a collective over replicas cannot be recomputed in the backward pass: its "
                "weights are those of experts, or of a ShardedEmbedding. Make it outside of the RematScope, or use "
                f"a mesh without 'expert'. Received: {layer.name!r}."
            )
        before = [(variable, tf.stop_gradient(variable.value)) for variable in changing]
        is_recomputation = False

        def compute(*tensors: Any) -> Any:
            nonlocal is_recomputation
            if not is_recomputation:
                is_recomputation = True
                return function(*tensors, **kwargs)
            with keras.StatelessScope(before):
                return function(*tensors, **kwargs)

        return original(compute)(*args)

    return computed
