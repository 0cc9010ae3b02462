"""Copies of layers and models: the same classes and configs, with the weights and all that was learnt beside them.

`cloned` copies a model's graph, `remade` a layer, `copy_state` weights and the rest. A layer of a copy is found by its
place, by `pairs`: what a layer makes inside is named by a counter, and otherwise in the next layer of its class.
"""

from keras_ext.cloning.graphs import cloned, input_of, put_in_order
from keras_ext.cloning.layers import remade
from keras_ext.cloning.pairing import pairs
from keras_ext.cloning.state import copy_state, copy_values

__all__ = ["cloned", "copy_state", "copy_values", "input_of", "pairs", "put_in_order", "remade"]
