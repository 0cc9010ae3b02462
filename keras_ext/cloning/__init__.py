"""Copies of layers and models: the same classes and settings, with the weights and all that was learnt beside them.

`Copies` copies layers and models of them, `cloned` a model's graph, `remade` one layer by its config, `copy_state`
weights and the rest. A layer of a copy is found by its place, by `pairs`: what a layer makes inside is named by a
counter, and otherwise in the next layer of its class.
"""

from keras_ext.cloning.copies import Copies
from keras_ext.cloning.graphs import cloned, counted_layers, input_of, put_in_order
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
    "input_of",
    "pairs",
    "put_in_order",
    "remade",
]
