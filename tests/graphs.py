"""Graphs of plain Keras that TensorFlow would keep until the process ends.

`tf.custom_gradient` in a graph, as Keras' crossentropies use it, puts a function into TensorFlow's registry of
gradients, under a name of its own, and nothing ever takes it out. It holds the graph: all operations of every step that
was ever traced stay. A thousand models in one process are 10 GB, and the more objects there are, the longer each of
Python's collections takes. Under the strategies graphs go with their models; what they are compared with would stay.
"""

import re

from tensorflow.python.framework.ops import gradient_registry

_OF_ONE_GRAPH = re.compile(r"CustomGradient-\d+")


def forget_gradients() -> None:
    """Lets go of them. Gradients of functions that were traced before cannot be traced afterwards."""
    # A public way does not exist: a registry of TensorFlow's only grows.
    registered = gradient_registry._registry
    for name in [name for name in registered if _OF_ONE_GRAPH.fullmatch(name)]:
        del registered[name]
