"""Garbage: graphs of plain Keras that TensorFlow would keep as long as a process lives, and how often Python collects.

`tf.custom_gradient` in a graph, as Keras' crossentropies use it, puts a function into TensorFlow's registry of
gradients, under a name of its own, and nothing ever takes it out. It holds the graph: all operations of every step that
was ever traced stay. A thousand models in one process are 10 GB, and the more objects there are, the longer each of
Python's collections takes. Under the strategies graphs go with their models; what they are compared with would stay.
"""

import gc
import re

from strategies._tf_internals import gradient_registry

_OF_ONE_GRAPH = re.compile(r"CustomGradient-\d+")


def forget_gradients() -> None:
    """Lets go of them. Gradients of functions that were traced before cannot be traced afterwards."""
    # A public way does not exist: a registry of TensorFlow's only grows.
    registered = gradient_registry._registry
    for name in [name for name in registered if _OF_ONE_GRAPH.fullmatch(name)]:
        del registered[name]


def collect_seldom() -> None:
    """Makes Python's garbage collector look at new objects only, and not at every 700th of them.

    Tracing makes millions of objects, nearly all of which stay as long as their graph: a fifth of the time that traces
    take was spent in looking for garbage among them. Called once, when everything has been imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
