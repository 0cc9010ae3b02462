"""Copies layers and models: the copies have the same classes and settings, weights and other learnt state.

`Copies` copies layers and models, `cloned` a model's graph, `remade` makes one layer from its config, `copy_state`
copies weights and other state. `pairs` matches the layers of a model and of its copy by position, because Keras numbers
the names of inner layers: the same layer has another name in another instance.
"""

from keras_ext.cloning.copies import Copies, is_by_attributes
from keras_ext.cloning.graphs import cloned, counted_layers, init_graph, input_of, put_in_order
from keras_ext.cloning.layers import remade
from keras_ext.cloning.pairing import pairs
from keras_ext.cloning.state import copy_state, copy_values, copy_weights
from keras_ext.cloning.training import copy_training

__all__ = [
    "Copies",
    "cloned",
    "copy_state",
    "copy_training",
    "copy_values",
    "copy_weights",
    "counted_layers",
    "init_graph",
    "input_of",
    "is_by_attributes",
    "pairs",
    "put_in_order",
    "remade",
]
