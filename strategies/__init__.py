"""Strategies that train Keras 3 models on TensorFlow across devices, with the numbers of one device."""

from strategies.mirrored import MirroredStrategy

__all__ = ["MirroredStrategy"]
