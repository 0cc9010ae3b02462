"""Garbage: plain Keras' graphs, which TensorFlow would keep as long as the process lives, and Python's collections.

`tf.custom_gradient` in a graph, which Keras' crossentropies use, registers a function in TensorFlow's gradient
registry, under a unique name, and nothing ever removes it. It holds the graph: all operations of every traced step
stay. A thousand models in one process take 10 GB, and the more objects exist, the longer each of Python's collections
takes. Under the strategies, graphs are freed with their models; the plain graphs of comparisons would stay.
"""

import functools
import gc
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras

from strategies._tf_internals import gradient_registry

_OF_ONE_GRAPH = re.compile(r"CustomGradient-\d+")


def forget_gradients() -> None:
    """Removes their gradients from the registry. Functions traced before cannot be differentiated in a trace later."""
    # There is no public way: TensorFlow's registry only grows.
    registered = gradient_registry._registry
    for name in [name for name in registered if _OF_ONE_GRAPH.fullmatch(name)]:
        del registered[name]


def collect_seldom() -> None:
    """Makes Python's garbage collector consider new objects only, and less often than after every 700th.

    Tracing makes millions of objects, nearly all of which live as long as their graph: looking for garbage among them
    took a fifth of the tracing time. Call it once, when everything has been imported.

    Keras' layers no longer collect garbage whenever they delete a variable, either: `quantize` does so for each layer,
    and a collection that looks at the objects of all tests before takes a third of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    layer_class: Any = keras.layers.Layer
    layer_class.__delattr__ = _without_collecting(layer_class.__delattr__)


def _without_collecting(delete: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    @functools.wraps(delete)
    def deleted(layer: Any, name: str) -> None:
        with mock.patch("gc.collect"):
            delete(layer, name)

    return deleted
