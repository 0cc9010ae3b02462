"""Graphs that TensorFlow would keep until the process ends.

`tf.custom_gradient` in a graph puts a function into TensorFlow's registry of gradients, under a name of its own, and
nothing ever takes it out. The function holds the graph: of every step that was traced with a loss or a layer that uses
`tf.custom_gradient`, as Keras' crossentropies do, all operations stay. A thousand models in one process are 10 GB,
and the more objects there are, the longer each of Python's collections takes.
"""

from tensorflow.python.framework.ops import gradient_registry

_PREFIX = "CustomGradient-"


def forget_gradients() -> None:
    """Lets go of them. Gradients of functions that were traced before cannot be traced afterwards."""
    # A public way does not exist: a registry of TensorFlow's only grows.
    registered = gradient_registry._registry
    for name in [name for name in registered if name.startswith(_PREFIX)]:
        del registered[name]
